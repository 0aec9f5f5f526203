"""A consumer's ack state: what was delivered, what is pending, how often it was delivered, and the ack floor.

Owns this state and the record of what changed in it since it was last persisted. Invariant: `pending` is in ascending
order of stream sequence, because first deliveries only go forward and a redelivery keeps its place. An acknowledgement
is a dictionary lookup; the floor is computed on demand. Knows no clock, no log, no receivers.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from headrace.broker.consumers import ack_state_codec as codec
from headrace.broker.consumers.ack_deadlines import AckDeadlines, merge_runs, to_wall_time
from headrace.broker.consumers.ack_state_codec import AckStateDelta
from headrace.storage.sequence_arrays import NO_SEQS, Seqs


class AckState:
    """The state of one consumer. `next_seq` is where the search for new messages starts.

    Messages after `skipped_seq` that are neither pending nor still to come were acknowledged; earlier ones perhaps not.
    """

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
        "last_ack_ns",
        "last_delivery_ns",
        "last_per_subject_queue",
        "needs_snapshot",
        "next_seq",
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
        self.reset_to(next_seq)

    def reset_to(self, next_seq: int) -> None:
        """Clear all state; the next message is the first at or after `next_seq`."""
        self.next_seq = next_seq
        self.consumer_seq = self._floor_consumer = 0
        self.stream_seq = self._floor_stream = self.skipped_seq = next_seq - 1
        self._floor_stale = False
        self.last_delivery_ns = self.last_ack_ns = 0
        self.last_per_subject_queue: Seqs = NO_SEQS
        self.resume_seq = 0
        self.pending.clear()
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

    # Deliveries

    def record_deliveries(self, seqs: Seqs, now_ns: int, wait_ns: int, *, acked: bool) -> None:
        """Record first deliveries, in this order."""
        count = len(seqs)
        first, last = int(seqs[0]), int(seqs[-1])
        consumer_seq = self.consumer_seq + 1
        self.consumer_seq += count
        self.stream_seq = last
        self.last_delivery_ns = now_ns
        self.dirty = True
        if len(self.last_per_subject_queue):
            self._advance_last_per_subject(count)
        else:
            self.next_seq = last + 1
        if acked:
            self._floor_consumer, self._floor_stream = self.consumer_seq, last
            return
        self.pending.update(zip(seqs.tolist(), range(consumer_seq, consumer_seq + count), strict=True))
        self._unsaved_deliveries.append((seqs, consumer_seq))
        if wait_ns:
            self.ack_deadlines.add_run(now_ns + wait_ns, first, last)
            self._unsaved_runs.append((now_ns + wait_ns, first, last))

    def _advance_last_per_subject(self, count: int) -> None:
        self.last_per_subject_queue = self.last_per_subject_queue[count:]
        self.next_seq = self.stream_seq + 1 if len(self.last_per_subject_queue) else self.resume_seq + 1

    def skip(self, seq: int) -> None:
        """Skip the next message, which cannot be delivered at all."""
        following = seq + 1
        if len(self.last_per_subject_queue):
            self.last_per_subject_queue = self.last_per_subject_queue[self.last_per_subject_queue > seq]
            following = seq + 1 if len(self.last_per_subject_queue) else self.resume_seq + 1
        self.next_seq = max(self.next_seq, following)
        self.mark_skipped(seq)

    def mark_skipped(self, seq: int) -> None:
        """Record that a message is not pending although nobody acknowledged it."""
        self.skipped_seq = max(self.skipped_seq, seq)
        self.dirty = True

    def compute_passed_seq(self) -> int:
        """Return up to where messages may have been skipped, whatever the filters were."""
        return max(self.next_seq - 1, self.resume_seq if len(self.last_per_subject_queue) else 0)

    def record_redelivery(self, seq: int, now_ns: int, wait_ns: int) -> None:
        """Record that a pending message was delivered again; its count has already been raised."""
        self.consumer_seq += 1
        self.last_delivery_ns = now_ns
        self.dirty = True
        if wait_ns:
            self.set_deadline(seq, now_ns + wait_ns)

    def set_deadline(self, seq: int, deadline_ns: int) -> None:
        """Give a pending message a deadline of its own."""
        self.ack_deadlines.set_individual(seq, deadline_ns)
        self._unsaved_deadlines[seq] = deadline_ns
        self.dirty = True

    def shift_deadlines(self, delta_ns: int, *, include_individual: bool) -> None:
        """Shift deadlines after a change of the ack wait; `include_individual`: also those of single messages."""
        self.ack_deadlines.shift_runs(delta_ns)
        self.needs_snapshot = self.dirty = True  # a delta has only new runs, so a snapshot is needed
        if include_individual:
            individual = self.ack_deadlines.individual
            for seq, deadline_ns in list(individual.items()):
                self.set_deadline(seq, deadline_ns + delta_ns)

    def next_deadline(self) -> int:
        """Return the earliest deadline of a pending message; 0 if there is none."""
        return self.ack_deadlines.next_deadline() if self.pending else 0

    def last_deadline(self) -> int:
        """Return the latest deadline of a pending message; 0 if there is none."""
        return self.ack_deadlines.last_deadline() if self.pending else 0

    def pop_due(self, now_ns: int) -> list[int]:
        """Return pending messages that were not acknowledged in time, and forget their deadlines."""
        return self.ack_deadlines.pop_due(now_ns, self.pending)

    def get_delivery_count(self, seq: int) -> int:
        """Return how often a message was delivered, at least once."""
        return self.delivery_counts.get(seq, 1)

    def set_delivery_count(self, seq: int, deliveries: int) -> None:
        self.delivery_counts[seq] = deliveries
        self._unsaved_counts.add(seq)
        self.dirty = True

    def find_without_deadline(self) -> list[int]:
        """Find pending messages without a deadline: they were queued for redelivery when the server stopped."""
        seqs = np.fromiter(self.pending, dtype=np.uint64, count=len(self.pending))
        has_deadline = np.zeros(len(seqs), dtype=bool)
        for _, first, last in self.ack_deadlines.list_runs():
            has_deadline |= (seqs >= first) & (seqs <= last)
        return [seq for seq in seqs[~has_deadline].tolist() if seq not in self.ack_deadlines.individual]

    def get_delivered_ns(self, seq: int, wait_ns: int) -> int:
        """Return when a pending message was last delivered, computed from its deadline."""
        return self.ack_deadlines.find_deadline(seq) - wait_ns

    # Redelivery

    def enqueue(self, seq: int) -> None:
        """Queue a pending message for redelivery, after those already in the queue."""
        if seq not in self.redelivery_queue:
            self.redelivery_queue.add(seq)
            self._redelivery_order.append(seq)

    def dequeue(self) -> int:
        """Take the next message to redeliver; 0 if there is none."""
        queue, redelivery_queue = self._redelivery_order, self.redelivery_queue
        while queue:
            seq = queue.popleft()
            if seq in redelivery_queue:
                redelivery_queue.discard(seq)
                return seq
        return 0

    def requeue(self, seq: int) -> None:
        """Put a message that could not be delivered back to the front of the queue."""
        self.redelivery_queue.add(seq)
        self._redelivery_order.appendleft(seq)

    # Acknowledgements

    def ack(self, seq: int) -> bool:
        """Mark one message as acknowledged; return whether it was pending."""
        if self.delivery_counts and self.delivery_counts.pop(seq, 0):
            self._unsaved_counts.add(seq)
            self.dirty = True
        if self.redelivery_queue:
            self.redelivery_queue.discard(seq)
        if self.pending.pop(seq, 0):
            self._unsaved_acks.append(seq)
            self._floor_stale = self.dirty = True
            return True
        return False

    def ack_through(self, seq: int, consumer_seq: int) -> list[int]:
        """Acknowledge everything up to a sequence; return what was pending of it."""
        removed = self._pending_through(seq)
        for each in removed:
            self.ack(each)
        self._floor_consumer, self._floor_stream = consumer_seq, seq
        self._floor_stale = not self.pending
        self.dirty = True
        return removed

    def _pending_through(self, seq: int) -> list[int]:
        pending, floor = self.pending, self._floor_stream
        if seq - floor < len(pending):
            return [each for each in range(floor + 1, seq + 1) if each in pending]
        removed = []
        for each in pending:
            if each > seq:
                break
            removed.append(each)
        return removed

    def stop_redelivery(self, seq: int, deliveries: int) -> None:
        """Give up a message: it is no longer pending, but its count is kept until it leaves the stream."""
        if self.pending.pop(seq, 0):
            self._unsaved_acks.append(seq)
        self.redelivery_queue.discard(seq)
        self.set_delivery_count(seq, deliveries)

    def remove(self, seq: int) -> bool:
        """Drop a message that left the stream; return whether it was pending."""
        return self.ack(seq)

    def advance_to(self, first_seq: int) -> None:
        """Drop everything below `first_seq` after a purge."""
        for seq in self._pending_through(first_seq - 1):
            self.ack(seq)
        for seq in [seq for seq in self.delivery_counts if seq < first_seq]:
            del self.delivery_counts[seq]
            self._unsaved_counts.add(seq)
        if self.next_seq < first_seq:
            self.next_seq = first_seq
            self.stream_seq = max(self.stream_seq, first_seq - 1)
        self.last_per_subject_queue = self.last_per_subject_queue[self.last_per_subject_queue >= first_seq]
        if not self.pending or self._floor_stream < first_seq - 1:
            self._floor_stream = max(self._floor_stream, first_seq - 1)
        self._floor_stale = self.dirty = True

    # Ack floor

    def get_ack_floor(self) -> tuple[int, int]:
        """Return the consumer and stream sequence below which nothing is pending, as far as acknowledgements moved them."""
        if self._floor_stale:
            self._floor_stale = False
            self._floor_consumer, self._floor_stream = self.compute_ack_floor()
        return self._floor_consumer, self._floor_stream

    def compute_ack_floor(self) -> tuple[int, int]:
        """Compute the ack floor from what is pending; messages that were given up count as done."""
        for seq, consumer_seq in self.pending.items():
            self.ack_deadlines.prune(seq)
            if consumer_seq > self._floor_consumer + 1:
                return consumer_seq - 1, seq - 1
            return self._floor_consumer, self._floor_stream
        return self.consumer_seq, max(self.stream_seq, self._floor_stream)

    # Persistence

    def encode_delta(self, clock_offset_ns: int = 0) -> bytes:
        """Encode what changed since the last call.

        Deadlines are stored as wall-clock times, which are `clock_offset_ns` lower: only the wall clock outlives the
        process.
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
            delta.last_per_subject_queue = codec.pack_set(self.last_per_subject_queue)
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
        self._clear_unsaved()
        return codec.encode_delta(delta)

    def encode_snapshot(self, clock_offset_ns: int = 0) -> bytes:
        """Encode the whole state; `clock_offset_ns` as for `encode_delta`."""
        count = len(self.pending)
        stream = np.fromiter(self.pending, dtype=np.uint64, count=count)
        consumer = np.fromiter(self.pending.values(), dtype=np.uint64, count=count)
        delta = self._make_delta(NO_SEQS, stream, consumer)
        delta.last_per_subject_queue = codec.pack_set(self.last_per_subject_queue)
        delta.resume_seq = self.resume_seq
        delta.delivery_counts = sorted(self.delivery_counts.items())
        individual = self.ack_deadlines.individual
        delta.deadline_runs = to_wall_time(self.ack_deadlines.list_runs(), clock_offset_ns)
        delta.individual_deadlines = [
            (seq, due_ns - clock_offset_ns) for seq, due_ns in individual.items() if seq in self.pending
        ]
        delta.is_snapshot = True
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
