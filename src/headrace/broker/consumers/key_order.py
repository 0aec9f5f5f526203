"""Order per key: which messages wait because earlier ones of their key are not acknowledged.

Owns the messages that the delivery loop passed over: for each blocked key a sequence from which on its messages, up to
the position of the consumer, were not delivered. Invariants: inside a key, deliveries go forward only, so that this one
sequence says it all; it is a lower bound, so that it stays true when messages leave the stream. A key that has
passed-over messages delivers those first. Knows no receivers and no clock. See ADR 24.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from headrace._native import KeyTable
from headrace.broker.consumers.key_search import KeySearch
from headrace.broker.consumers.message_keys import Keys, make_keys
from headrace.broker.consumers.passed_messages import DeliveryPosition, PassedMessages
from headrace.code_probes import sometimes
from headrace.storage import Filter, StreamLog
from headrace.storage.native_records import Array
from headrace.storage.sequence_arrays import Seqs

UNLIMITED = (1 << 31) - 1
#: Maximum number of messages that one step of the delivery loop goes through.
ADMIT_MAX = 1024
#: Keys that are compared with a new filter or limit at a time.
_KEYS_AT_ONCE = 2_048
#: What each subject whose key was not known counts against the budget of a delivery.
_LOOKUP_OVERHEAD = 1024
#: The same for each key that became blocked, which is written to the journal.
_CHANGE_OVERHEAD = 512
#: With so many of them, the next flush would take long.
_CHANGES_MAX = 2_048
_FINISHED = object()
#: What a search for the next messages of many keys counts, and each row that it looks at.
_CHUNK_OVERHEAD = 4 * 1024
_ROW_OVERHEAD = 4
#: Maximum number of passed-over messages that are delivered in one run.
LATE_MAX = 64

StoredKey = tuple[bytes, int]  # text of a key, its first passed-over sequence (0: none is left)


class KeyOrder:
    """The blocked keys of one consumer. `passed` is the number of messages that were passed over."""

    __slots__ = (
        "_changed_count",
        "_changes",
        "_heap",
        "_keys",
        "_late_count",
        "_late_keys",
        "_late_seqs",
        "_log",
        "_out",
        "_passed",
        "_position",
        "_search",
        "needs_snapshot",
        "on_ready",
        "release_key",
        "table",
    )

    def __init__(
        self,
        log: StreamLog,
        position: DeliveryPosition,
        limit: int,
        key_tokens: str,
        on_ready: Callable[[], None],
    ) -> None:
        self._log = log
        self._position = position
        self._keys = make_keys(log, key_tokens)
        self.on_ready = on_ready
        self._heap: list[int] = []
        self._changed_count = 0  # those that `take_cost` has returned
        self._changes: dict[str, Iterator[None]] = {}  # those that are not finished
        self._out: Seqs = np.empty(ADMIT_MAX, np.uint64)
        self._late_seqs: Seqs = np.empty(LATE_MAX, np.uint64)
        self._late_count = 0
        self._late_keys: Keys = np.empty(LATE_MAX, np.uint32)
        self.table = KeyTable(limit or UNLIMITED)
        self._passed = PassedMessages(log, self._keys, self.table, position)
        self._search = KeySearch(log, self._keys, self.table, self._passed)
        self.release_key = self.table.release  # called for each ack
        self.needs_snapshot = False  # keys disappeared, which a delta cannot say
        log.id_listeners.append(self)

    def close(self) -> None:
        """Stop: the consumer no longer needs it."""
        listeners = self._log.id_listeners
        if self in listeners:
            listeners.remove(self)

    @property
    def subject_filter(self) -> Filter | None:
        return self._passed.subject_filter

    @property
    def passed(self) -> int:
        return self.table.passed

    @property
    def blocked(self) -> int:
        """Return how many keys have passed-over messages."""
        return self.table.blocked

    # Recovery and changes

    def restore(
        self, pending: Collection[int], firsts: Mapping[bytes, int], subject_filter: Filter | None = None
    ) -> None:
        """Start with these pending messages, and these first passed-over sequences by key."""
        table = self.table
        table.clear()
        self._passed.subject_filter = subject_filter
        seqs = np.sort(np.fromiter(pending, np.uint64, len(pending)))
        self._heap = seqs.tolist()
        live, keys = self._passed.find_keys(seqs)
        table.add_many(live, np.ascontiguousarray(keys))
        for name, first in firsts.items():
            key = self._keys.find(name)
            if key >= 0:
                table.set_first(key, first)
            else:
                self.needs_snapshot = True  # it has no messages any more; a delta could not say so
        for _ in self._iter_recount():  # before the consumer is open
            pass

    def set_limit(self, limit: int) -> None:
        """Change how many messages of a key may be pending; 0: any number. `continue_changes` must follow."""
        limit, old_limit = limit or UNLIMITED, self.table.limit
        self.table.limit = limit
        if limit > old_limit:
            self._changes["limit"] = self._iter_queue_ready()

    def set_filter(self, subject_filter: Filter | None) -> None:
        """Change the filter; what it does not match is dropped. `continue_changes` must follow."""
        self._search.cancel()
        self._passed.subject_filter = subject_filter
        self._changes["filter"] = self._iter_recount()
        self.continue_changes()

    def continue_changes(self) -> bool:
        """Apply more of changes; return whether that is unfinished: nothing may be delivered.

        Until then, `passed` is too low after a change of the filter.
        """
        for name, steps in self._changes.items():
            if next(steps, _FINISHED) is _FINISHED:
                del self._changes[name]
            break
        return bool(self._changes)

    def _list_blocked(self) -> Keys:
        keys: Keys = np.empty(self.table.blocked, np.uint32)
        self.table.copy_blocked(keys)
        return keys

    def _iter_queue_ready(self) -> Iterator[None]:
        """Queue the keys that are no longer blocked, in slices."""
        keys = self._list_blocked()
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            self.table.queue_ready(keys[start : start + _KEYS_AT_ONCE])
            yield

    def _iter_recount(self) -> Iterator[None]:
        """Drop keys whose messages do not match the filter, and count again, in slices."""
        self._passed.start_count()
        keys = self._list_blocked()
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[start : start + _KEYS_AT_ONCE]
            dropped = some[~self._keys.may_match(some, self.subject_filter)]
            for key in dropped.tolist():
                self.table.set_first(key, 0)
            self._position.dirty |= len(dropped) > 0
            if start + _KEYS_AT_ONCE < len(keys):
                yield
        yield from self._passed.iter_count()

    def clear(self) -> None:
        """Forget everything: the consumer was reset."""
        self.table.clear()
        self._search.clear()
        self._heap = []
        self._changes.clear()
        self._passed.set_counted()

    def on_subjects_remapped(self, new_ids: Array, kept: Array) -> None:
        """Follow the log, which gave subjects new ids."""
        sometimes("subjects renumbered while keys are blocked")
        new_keys, kept_keys = self._keys.remap(new_ids, kept, self._list_blocked())
        self._search.clear()
        self.table.remap(new_keys, kept_keys.view(np.uint8))
        self.needs_snapshot = True
        if "filter" in self._changes:
            self._changes["filter"] = self._iter_recount()
        self._changes.pop("limit", None)  # the table has queued all keys again

    # Delivery of new messages

    def find_keys(self, seqs: Seqs) -> Keys:
        """Return the keys of live messages."""
        return self._keys.from_subjects(self._log.get_subject_ids(seqs)[1])

    def take_cost(self) -> int:
        """Return what the keys that were looked up or changed since the last call count against the budget of a delivery."""
        lookups, self._keys.lookups = self._keys.lookups, 0
        before, self._changed_count = self._changed_count, self.table.changed_count
        return lookups * _LOOKUP_OVERHEAD + max(self._changed_count - before, 0) * _CHANGE_OVERHEAD

    def has_many_changes(self) -> bool:
        """Return whether to persist what changed at once, so that this takes little time."""
        return self.table.changed_count >= _CHANGES_MAX

    def admit(self, seqs: Seqs, keys: Keys, at: int, most: int) -> tuple[Seqs, int]:
        """Choose up to `most` messages from index `at` on, in order; pass over those of blocked keys.

        Returns the chosen ones, and the index where it stopped.
        """
        count, stop = self.table.admit(seqs, keys, at, most, self._out)
        return self._out[:count].copy(), stop

    def undo(self, seqs: Seqs, keys: Keys, start: int, end: int) -> None:
        """Take back what `admit` did with the messages from index `start` to `end`."""
        self.table.undo(seqs, keys, start, end)

    def add_delivered(self, seqs: Seqs) -> None:
        """Add deliveries that needed no choice."""
        for seq, key in zip(seqs.tolist(), self.find_keys(seqs).tolist(), strict=True):
            self.table.add(seq, key)

    def record(self, seqs: list[int]) -> None:
        """Remember new pending messages for the ack floor; they are later than all others, so the heap stays a heap."""
        self._heap += seqs

    # Delivery of passed-over messages

    def has_ready(self) -> bool:
        """Return whether a key may deliver what was passed over."""
        return self.table.next_ready() >= 0

    def find_ready(self) -> int:
        """Return the message to deliver next of the key that has been ready for longest.

        0: it has none, and is no longer blocked; or it is searched from now on.
        """
        table = self.table
        key = table.next_ready()
        first = table.get_first(key) if key >= 0 else 0
        if not first:
            return 0
        seq, resume = self._search.find_next(key, first)
        if resume and not seq:
            table.take_ready()
            self._search.add(np.array([key], np.uint32), np.array([resume], np.uint64))
        elif seq != first:
            table.set_first(key, seq)
        return seq

    def is_searching(self) -> bool:
        """Return whether the next messages of keys are being searched."""
        return self._search.is_active()

    def search(self) -> int:
        """Continue the search for the next messages of keys; return what it counts against the budget of a delivery."""
        rows = self._search.search_chunk()
        return rows * _ROW_OVERHEAD + _CHUNK_OVERHEAD + self.take_cost()

    def take_ready(self, most: int) -> tuple[Seqs, Keys, int]:
        """Take messages of ready keys, one of each; `return_ready` must follow.

        Returns them and their keys, ascending, and how many searches that took.
        """
        seqs, keys = self._late_seqs, self._late_keys
        self._late_count = count = self.table.take_ready_run(most, seqs, keys)
        order = seqs[:count].argsort()
        return self._search.find_near(seqs[order], keys[order])

    def return_ready(self, seqs: Seqs, keys: Keys, delivered: int) -> None:
        """Record that the first `delivered` of these messages are pending; the keys of the others are the next ones."""
        if delivered:
            # Lower bounds: the search waits until the key is free.
            self.table.add_late(seqs[:delivered], keys[:delivered], self._keys.get_lasts(keys[:delivered]))
            for seq in seqs[:delivered].tolist():
                heapq.heappush(self._heap, seq)
        if delivered < len(keys):
            taken = self._late_keys[: self._late_count].tolist()  # in the order of the queue
            places = {key: place for place, key in enumerate(taken)}
            order = np.array([places[key] for key in keys[delivered:].tolist()]).argsort()
            self.table.put_back(seqs[delivered:][order], keys[delivered:][order])

    def on_delivered(self, seq: int, *, pending: bool = True) -> None:
        """Take a message that `find_ready` returned out of the passed-over ones."""
        table = self.table
        key = table.next_ready()
        table.take_ready()
        table.passed -= 1
        if pending:
            table.add(seq, key)
            heapq.heappush(self._heap, seq)
        last = int(self._keys.get_lasts(np.array([key], np.uint32))[0])
        table.set_first(
            key, seq + 1 if last > seq else 0
        )  # a lower bound: the search waits until the key is free

    # Acknowledgements and removals

    def release(self, seq: int) -> None:
        """Free the key of a message that is no longer pending."""
        if self.release_key(seq):
            self.on_ready()

    def before_removal(self, seqs: npt.ArrayLike) -> None:
        """Count passed-over messages that are about to leave the stream."""
        self._passed.before_removal(seqs)

    def before_trim(self, seq: int) -> None:
        """Count passed-over messages, those before `seq`, that are about to leave the stream."""
        if self.table.blocked and seq >= self._position.next_seq:
            sometimes("all passed-over messages removed")
            self._search.clear()
            self._changes.clear()
            self.table.clear_firsts()
            self._passed.set_counted()
            self.needs_snapshot = self._position.dirty = True
        else:
            self._passed.before_trim(seq)

    def find_passed(self, seqs: Seqs) -> npt.NDArray[np.bool_]:
        """Return which of these messages, which match the filter, were passed over."""
        return self._passed.find(seqs)

    def is_passed(self, seq: int) -> bool:
        """Return whether a message was passed over."""
        return seq < self._position.next_seq and bool(self.find_passed(np.array([seq], dtype=np.uint64))[0])

    # Ack floor

    def find_lowest(self, pending: Mapping[int, int]) -> int:
        """Return the lowest sequence that is pending or was passed over; 0 if there is none."""
        heap = self._heap
        if len(heap) > 2 * len(pending) + 64:  # cheaper than to remove one by one what was acknowledged
            self._heap = heap = sorted(pending)
        while heap and heap[0] not in pending:
            heapq.heappop(heap)
        lowest, first = heap[0] if heap else 0, self.table.min_first()
        return min(lowest, first) if lowest and first else lowest or first

    # Persistence

    def take_changes(self) -> list[StoredKey]:
        """Return what changed since the last call."""
        table, get_name = self.table, self._keys.get_name
        return sorted((get_name(key), table.get_first(key)) for key in table.take_changed())

    def list_all(self) -> list[StoredKey]:
        """Return all blocked keys."""
        get_name = self._keys.get_name
        return sorted((get_name(key), first) for key, first in self.table.list_firsts())

    def copy_firsts(self) -> tuple[Keys, Seqs]:
        """Return all blocked keys, ascending, and the first passed-over sequence of each."""
        keys = self._list_blocked()
        keys.sort()
        firsts: Seqs = np.empty(len(keys), np.uint64)
        self.table.get_firsts(keys, firsts)
        return keys, firsts

    def encode_pairs(self, keys: Keys, firsts: Seqs) -> bytes:
        """Encode keys with their first passed-over sequences, for the end of an encoded ack state."""
        return self._keys.encode_pairs(keys, firsts)

    def list_some(self, most: int) -> list[StoredKey]:
        """Return up to `most` blocked keys, each with a lower bound of its first passed-over sequence."""
        keys = self._list_blocked()
        return sorted((self._keys.get_name(key), self.table.get_first(key)) for key in keys[:most].tolist())

    def discard_changes(self) -> None:
        """Drop the record of changes."""
        self.table.take_changed()
        self.needs_snapshot = False
