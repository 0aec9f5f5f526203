"""What a consumer's ack state consists of, and how it is stored: as changes since the last time, or as a whole.

Owns the fields and the record of what changed in them since they were last persisted; `AckState` has the operations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING

import numpy as np

from headrace.broker.consumers import ack_state_codec as codec
from headrace.broker.consumers.ack_deadlines import AckDeadlines, merge_runs, to_wall_time
from headrace.broker.consumers.ack_state_codec import AckStateDelta, PackedSet
from headrace.storage.sequence_arrays import NO_SEQS, Seqs

if TYPE_CHECKING:
    from headrace.broker.consumers.key_order import KeyOrder
    from headrace.broker.consumers.message_keys import Keys

#: Blocked keys that one slice encodes.
KEYS_PER_SLICE = 8_192


def _iter_append_keys(
    encoded: bytes, key_order: KeyOrder, keys: Keys, firsts: Seqs
) -> Generator[None, None, bytes]:
    """Append keys to an encoded state, in slices. Until the end, the log must not give subjects new ids."""
    pairs = []
    for start in range(0, len(keys), KEYS_PER_SLICE):
        end = start + KEYS_PER_SLICE
        pairs.append(key_order.encode_pairs(keys[start:end], firsts[start:end]))
        yield
    return codec.append_passed_keys(encoded, len(keys), pairs)


class AckStateRecord:
    """The state of one consumer, as it is stored."""

    __slots__ = (
        "_floor_consumer",
        "_floor_stale",
        "_floor_stream",
        "_redelivery_order",
        "_unsaved_acks",
        "_unsaved_counts",
        "_unsaved_deadlines",
        "_unsaved_deliveries",
        "_unsaved_runs",
        "ack_deadlines",
        "consumer_seq",
        "delivery_counts",
        "dirty",
        "key_order",
        "last_ack_ns",
        "last_delivery_ns",
        "last_per_subject_queue",
        "needs_snapshot",
        "next_seq",
        "packed_queue",
        "passed_keys",
        "pending",
        "redelivery_queue",
        "resume_seq",
        "skipped_seq",
        "stream_seq",
    )

    def __init__(self, next_seq: int) -> None:
        self.ack_deadlines = AckDeadlines()
        self.pending: dict[int, int] = {}
        self.delivery_counts: dict[int, int] = {}
        self.redelivery_queue: set[int] = set()
        self._redelivery_order: deque[int] = deque()
        #: What was passed over, if the consumer keeps order per key; `passed_keys` is the same as it was stored.
        self.key_order: KeyOrder | None = None
        self.passed_keys: dict[bytes, int] = {}
        self.reset_to(next_seq)

    def reset_to(self, next_seq: int) -> None:
        """Clear all state; the next message is the first at or after `next_seq`."""
        self.next_seq = next_seq
        self.consumer_seq = self._floor_consumer = 0
        self.stream_seq = self._floor_stream = self.skipped_seq = next_seq - 1
        self._floor_stale = False
        self.last_delivery_ns = self.last_ack_ns = self.resume_seq = 0
        self.last_per_subject_queue: Seqs = NO_SEQS
        self.packed_queue = PackedSet(NO_SEQS, b"")
        self.pending.clear()
        self.passed_keys.clear()
        if self.key_order is not None:
            self.key_order.clear()
        self.delivery_counts.clear()
        self.redelivery_queue.clear()
        self._redelivery_order.clear()
        self.ack_deadlines.clear()
        self._unsaved_acks: list[int] = []
        self._unsaved_deliveries: list[tuple[Seqs, int]] = []
        self._unsaved_runs: list[tuple[int, int, int]] = []
        self._unsaved_counts: set[int] = set()
        self._unsaved_deadlines: dict[int, int] = {}
        self.needs_snapshot = self.dirty = True

    def get_ack_floor(self) -> tuple[int, int]:
        """Return the consumer and stream sequence below which nothing is pending."""
        raise NotImplementedError

    def compute_passed_seq(self) -> int:
        """Return up to where messages may have been skipped, whatever the filters were."""
        return max(self.next_seq - 1, self.resume_seq if len(self.last_per_subject_queue) else 0)

    # Persistence

    def encode_delta(self, clock_offset_ns: int = 0) -> bytes:
        """Encode what changed since the last call.

        Deadlines are stored as wall-clock times, `clock_offset_ns` lower: only that clock outlives the process.
        """
        added, consumer = self._collect_unsaved_deliveries()
        removed = np.array(sorted(set(self._unsaved_acks)), dtype=np.uint64)
        if len(removed) and len(added):
            # Messages added and removed since the last delta stay in `removed`: a checkpoint may contain them as
            # pending.
            still_pending = ~np.isin(added, removed, assume_unique=True)
            added, consumer = added[still_pending], consumer[still_pending]
        delta = self._make_delta(removed, added, consumer)
        if self.needs_snapshot and self.resume_seq:
            delta.last_per_subject_queue = self.packed_queue.pack(self.last_per_subject_queue)
            delta.resume_seq = self.resume_seq
        delta.delivery_counts = [
            (seq, self.delivery_counts.get(seq, 0)) for seq in sorted(self._unsaved_counts)
        ]
        delta.deadline_runs = to_wall_time(merge_runs(self._unsaved_runs), clock_offset_ns)
        delta.individual_deadlines = [
            (seq, due_ns - clock_offset_ns)
            for seq, due_ns in self._unsaved_deadlines.items()
            if seq in self.pending
        ]
        delta.is_snapshot = self.needs_snapshot
        if self.key_order is not None:
            delta.passed_keys = self.key_order.take_changes()
        self._clear_unsaved()
        return codec.encode_delta(delta)

    def encode_snapshot(self, clock_offset_ns: int = 0) -> bytes:
        """Encode the whole state; `clock_offset_ns` as for `encode_delta`."""
        encoded = self._encode_without_keys(clock_offset_ns)
        if self.key_order is None:
            return encoded
        keys, firsts = self.key_order.copy_firsts()
        return codec.append_passed_keys(encoded, len(keys), [self.key_order.encode_pairs(keys, firsts)])

    def start_snapshot(self, clock_offset_ns: int) -> bytes | Generator[None, None, bytes]:
        """Encode the whole state as it is now; return the slices of the rest if there are many keys."""
        if self.key_order is None or self.key_order.blocked <= KEYS_PER_SLICE:
            return self.encode_snapshot(clock_offset_ns)
        encoded = self._encode_without_keys(clock_offset_ns)
        return _iter_append_keys(encoded, self.key_order, *self.key_order.copy_firsts())

    def _encode_without_keys(self, clock_offset_ns: int) -> bytes:
        """Encode the state without the passed keys of `key_order`."""
        count = len(self.pending)
        stream = np.fromiter(self.pending, dtype=np.uint64, count=count)
        consumer = np.fromiter(self.pending.values(), dtype=np.uint64, count=count)
        delta = self._make_delta(NO_SEQS, stream, consumer)
        delta.last_per_subject_queue = self.packed_queue.pack(self.last_per_subject_queue)
        delta.resume_seq = self.resume_seq
        delta.delivery_counts = sorted(self.delivery_counts.items())
        delta.deadline_runs = to_wall_time(self.ack_deadlines.list_runs(), clock_offset_ns)
        individual = self.ack_deadlines.individual
        delta.individual_deadlines = [
            (seq, due_ns - clock_offset_ns) for seq, due_ns in individual.items() if seq in self.pending
        ]
        delta.is_snapshot = True
        if self.key_order is None:
            delta.passed_keys = sorted(self.passed_keys.items())
        return codec.encode_delta(delta)

    def _make_delta(self, removed: Seqs, added: Seqs, consumer: Seqs) -> AckStateDelta:
        packed, offset, packed_consumer = codec.pack_pairs(added, consumer)
        return AckStateDelta(
            self.consumer_seq,
            self.stream_seq,
            self.next_seq,
            *self.get_ack_floor(),
            removed=codec.pack_set(removed),
            added=packed,
            added_offset=offset,
            added_consumer=packed_consumer,
            skipped_seq=self.skipped_seq,
        )

    def _collect_unsaved_deliveries(self) -> tuple[Seqs, Seqs]:
        if not self._unsaved_deliveries:
            return NO_SEQS, NO_SEQS
        stream = np.concatenate([seqs for seqs, _ in self._unsaved_deliveries])
        spans = [
            np.arange(consumer_seq, consumer_seq + len(seqs), dtype=np.uint64)
            for seqs, consumer_seq in self._unsaved_deliveries
        ]
        return stream, np.concatenate(spans)

    def _clear_unsaved(self) -> None:
        self._unsaved_acks, self._unsaved_deliveries, self._unsaved_runs = [], [], []
        self._unsaved_counts, self._unsaved_deadlines = set(), {}
        self.needs_snapshot = self.dirty = False

    def discard_changes(self) -> None:
        """Drop the record of changes: this consumer lives in memory only."""
        self._clear_unsaved()
        if self.key_order is not None:
            self.key_order.discard_changes()

    # Recovery

    def apply_delta(self, data: bytes) -> None:
        """Apply a stored delta or snapshot during recovery."""
        delta = codec.decode_delta(data)
        if delta.is_snapshot:
            self.reset_to(delta.next_seq)
            self.last_per_subject_queue = codec.unpack_set(delta.last_per_subject_queue)
            self.resume_seq = delta.resume_seq
        for seq in codec.unpack_set(delta.removed).tolist():
            self.pending.pop(seq, None)
            self.ack_deadlines.remove(seq)
        self.pending.update(codec.unpack_pairs(delta.added, delta.added_offset, delta.added_consumer))
        for seq, deliveries in delta.delivery_counts:
            self.delivery_counts[seq] = deliveries
            if not deliveries:
                del self.delivery_counts[seq]
        for run in delta.deadline_runs:
            self.ack_deadlines.add_run(*run)
        for seq, deadline in delta.individual_deadlines:
            self.ack_deadlines.set_individual(seq, deadline)
        for key, first in delta.passed_keys:
            self.passed_keys[key] = first
            if not first:
                del self.passed_keys[key]
        self.consumer_seq, self.stream_seq = delta.consumer_seq, delta.stream_seq
        self.next_seq = delta.next_seq
        self._floor_consumer, self._floor_stream = delta.floor_consumer, delta.floor_stream
        self.skipped_seq = delta.skipped_seq if delta.skipped_seq >= 0 else self.compute_passed_seq()
        self._floor_stale = False
        if len(self.last_per_subject_queue):
            self.last_per_subject_queue = (
                self.last_per_subject_queue[self.last_per_subject_queue > self.stream_seq]
                if self.consumer_seq
                else self.last_per_subject_queue
            )
        self._clear_unsaved()
