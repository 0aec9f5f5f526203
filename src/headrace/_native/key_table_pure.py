"""The keys of a consumer that delivers in order per key, in pure Python, with the names and behaviour of the compiled
`key_table`.

Owns, for each key, how many of its messages are pending and the first that was passed over; for each pending message
its key; and the queue of keys that may deliver again. Keys are numbers. Must not know subjects, logs or clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any


def find_first_rows(keys: Any, live: Any, wanted: Any, starts: Any, out: Any) -> None:
    """Put the first row of each wanted key into `out`, -1 if there is none.

    `keys` has the key of each row, `live` whether it is live (None: all are), `starts` where the rows of each wanted key
    begin.
    """
    if len(starts) < len(wanted) or len(out) < len(wanted) or (live is not None and len(live) < len(keys)):
        raise IndexError(len(wanted))
    places = {int(key): at for at, key in enumerate(wanted)}
    out[: len(wanted)] = [-1] * len(wanted)
    for row, key in enumerate(keys):
        at = places.get(int(key), -1)
        if at >= 0 and row >= starts[at] and (live is None or live[row]):
            out[at] = row
            del places[int(key)]


class KeyTable:
    """At most `limit` pending messages of a key.

    A key is blocked from its first passed-over message until none is left. `passed` counts the passed-over messages;
    the owner corrects it when such a message is delivered or removed. A key with passed-over messages and fewer than
    `limit` pending ones is ready, unless its next message is being searched; ready keys form a queue. Keys and pending
    messages without use take no space.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.clear()

    def clear(self) -> None:
        """Forget everything but the limit."""
        self._counts: dict[int, int] = {}
        self._firsts: dict[int, int] = {}
        self._owners: dict[int, int] = {}
        self._ring: deque[int] = deque()
        self._queued: set[int] = set()
        self._searched: set[int] = set()
        self._changed: set[int] = set()
        self.passed = 0

    @property
    def blocked(self) -> int:
        """Return how many keys have passed-over messages."""
        return len(self._firsts)

    @property
    def changed_count(self) -> int:
        """Return about how many keys `take_changed` will return."""
        return len(self._changed)

    @property
    def nbytes(self) -> int:
        """Return the size of the compiled arrays; 0 here."""
        return 0

    # Deliveries

    def admit(
        self, seqs: Sequence[int] | Any, keys: Sequence[int] | Any, at: int, most: int, out: Any
    ) -> tuple[int, int]:
        """Go through messages from index `at` on until `most` may be delivered; put those into `out`.

        They become pending, all others are passed over. Returns how many may be delivered, and where it stopped.
        """
        end, count = len(seqs), 0
        if at < 0 or len(keys) < end:
            raise IndexError(at)
        most = min(most, len(out))
        while at < end and count < most:
            seq, key = int(seqs[at]), int(keys[at])
            if key not in self._firsts and self._counts.get(key, 0) < self.limit:
                self._counts[key] = self._counts.get(key, 0) + 1
                self._owners[seq] = key
                out[count] = seq
                count += 1
            else:
                self.passed += 1
                if key not in self._firsts:
                    self._put_first(key, seq)
            at += 1
        return count, at

    def undo(self, seqs: Sequence[int] | Any, keys: Sequence[int] | Any, start: int, end: int) -> None:
        """Take back what the last call of `admit` did with the messages from index `start` to `end` (exclusive)."""
        if start < 0 or end > len(seqs) or end > len(keys):
            raise IndexError(end)
        for at in range(end - 1, start - 1, -1):
            seq, key = int(seqs[at]), int(keys[at])
            if self._owners.pop(seq, None) is not None:
                self._count_down(key)
            else:
                self.passed -= 1
                if self._firsts.get(key) == seq:
                    self._put_first(key, 0)

    def add(self, seq: int, key: int) -> None:
        """Add a pending message."""
        if seq and seq not in self._owners:
            self._counts[key] = self._counts.get(key, 0) + 1
            self._owners[seq] = key

    def add_many(self, seqs: Sequence[int] | Any, keys: Sequence[int] | Any) -> None:
        """Add pending messages."""
        if len(keys) < len(seqs):
            raise IndexError(len(seqs))
        for seq, key in zip(seqs, keys, strict=False):
            self.add(int(seq), int(key))

    def release(self, seq: int) -> bool:
        """Remove a message that is no longer pending; return whether its key became ready."""
        key = self._owners.pop(seq, None)
        if key is None:
            return False
        self._count_down(key)
        return self._queue_if_ready(key)

    def _count_down(self, key: int) -> None:
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
            self._drop_if_unused(key)

    def _drop_if_unused(self, key: int) -> None:
        """Remove a key with neither pending nor passed-over messages."""
        if key not in self._counts and key not in self._firsts:
            self._queued.discard(key)
            self._searched.discard(key)

    def _put_first(self, key: int, seq: int) -> None:
        if self._firsts.get(key, 0) != seq:
            self._changed.add(key)
            self._firsts[key] = seq
            if not seq:
                del self._firsts[key]
                self._drop_if_unused(key)

    def _queue_if_ready(self, key: int) -> bool:
        if not self._is_ready(key) or key in self._queued:
            return False
        self._ring.append(key)
        self._queued.add(key)
        return True

    def _is_ready(self, key: int) -> bool:
        """Return whether a key may deliver what was passed over, as far as that is known."""
        is_blocked = key in self._firsts and key not in self._searched
        return is_blocked and self._counts.get(key, 0) < self.limit

    # Keys

    def next_ready(self) -> int:
        """Return the key that has been ready for longest; -1 if none is."""
        while self._ring:
            key = self._ring[0]
            if key in self._queued and self._is_ready(key):
                return key
            self.take_ready()
        return -1

    def take_ready(self) -> None:
        """Remove the first key from the queue."""
        if self._ring:
            self._queued.discard(self._ring.popleft())

    def take_ready_run(self, most: int, seqs: Any, keys: Any) -> int:
        """Remove up to `most` keys from the queue; put them and their first passed-over sequences into the arrays.

        Returns how many.
        """
        count, most = 0, min(most, len(seqs), len(keys))
        while count < most and (key := self.next_ready()) >= 0:
            self.take_ready()
            seqs[count], keys[count] = self._firsts[key], key
            count += 1
        return count

    def put_back(self, seqs: Sequence[int] | Any, keys: Sequence[int] | Any) -> None:
        """Put keys that were taken to the front of the queue, in this order, with their first passed-over sequences."""
        if len(seqs) < len(keys):
            raise IndexError(len(keys))
        for at in range(len(keys) - 1, -1, -1):
            key = int(keys[at])
            self._put_first(key, int(seqs[at]))
            if self._is_ready(key) and key not in self._queued:
                self._ring.appendleft(key)
                self._queued.add(key)

    def start_search(self, keys: Sequence[int] | Any) -> None:
        """Let blocked keys wait until `end_search` is called for them; they must not be in the queue."""
        self._searched.update(int(key) for key in keys if int(key) in self._firsts)

    def end_search(self, keys: Sequence[int] | Any, seqs: Sequence[int] | Any) -> None:
        """Set the first passed-over sequences of keys that were searched; 0: none is left."""
        if len(seqs) < len(keys):
            raise IndexError(len(keys))
        for each, seq in zip(keys, seqs, strict=False):
            key = int(each)
            if key in self._searched:
                self._searched.discard(key)
                self.set_first(key, int(seq))

    def add_late(
        self, seqs: Sequence[int] | Any, keys: Sequence[int] | Any, lasts: Sequence[int] | Any
    ) -> None:
        """Make passed-over messages pending, the first ones of their keys; none of a key is after its `lasts`."""
        if len(keys) < len(seqs) or len(lasts) < len(seqs):
            raise IndexError(len(seqs))
        for each, number, last in zip(seqs, keys, lasts, strict=False):
            seq, key = int(each), int(number)
            self.add(seq, key)
            self.set_first(key, seq + 1 if last > seq else 0)
            self.passed -= 1

    def get_first(self, key: int) -> int:
        """Return the sequence from which on messages of a key were passed over; 0 if none were."""
        return self._firsts.get(key, 0)

    def get_count(self, key: int) -> int:
        """Return how many messages of a key are pending."""
        return self._counts.get(key, 0)

    def set_first(self, key: int, seq: int) -> None:
        """Set from which sequence on messages of a key were passed over; 0: none is left."""
        self._put_first(key, seq)
        self._queue_if_ready(key)

    def min_first(self) -> int:
        """Return the lowest of these sequences; 0 if no key is blocked."""
        return min(self._firsts.values(), default=0)

    def get_firsts(self, keys: Sequence[int] | Any, out: Any) -> None:
        """Put the first passed-over sequence of each key into `out`."""
        if len(out) < len(keys):
            raise IndexError(len(keys))
        for at, key in enumerate(keys):
            out[at] = self._firsts.get(int(key), 0)

    def list_firsts(self) -> list[tuple[int, int]]:
        """Return all blocked keys, each with its first passed-over sequence."""
        return list(self._firsts.items())

    def copy_blocked(self, out: Any) -> None:
        """Write all blocked keys to an array of exactly this size."""
        if len(out) != self.blocked:
            raise ValueError(f"an array of {len(out)} for {self.blocked} keys")
        out[:] = list(self._firsts)

    def take_changed(self) -> set[int]:
        """Return the keys whose first passed-over sequence changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def queue_ready(self, keys: Sequence[int] | Any) -> None:
        """Queue those of these keys that may deliver now, in this order: the limit has changed."""
        for key in keys:
            self._queue_if_ready(int(key))

    def clear_firsts(self) -> None:
        """Forget all passed-over messages, without a record of these changes."""
        self._firsts.clear()
        self._ring.clear()
        for keys in (self._queued, self._searched, self._changed):
            keys.clear()
        self.passed = 0

    def remap(self, new_keys: Sequence[int] | Any, kept: Sequence[int] | Any) -> None:
        """Give keys new numbers, and drop those that are not `kept`."""
        owners, firsts, order, passed = self._owners, self._firsts, list(self._ring), self.passed
        self.clear()
        self.passed = passed
        for seq, key in owners.items():
            if key < len(new_keys) and kept[key]:
                self.add(seq, int(new_keys[key]))
        for key in (*order, *firsts):  # keeps the order of the queue
            if key in firsts and key < len(new_keys) and kept[key]:
                self.set_first(int(new_keys[key]), firsts[key])
