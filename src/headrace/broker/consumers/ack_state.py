"""A consumer's ack state: what was delivered, what is pending, how often it was delivered, and the ack floor.

Owns the operations on this state; `AckStateRecord` has its fields and stores them. Invariant: `pending` is in the order of
first deliveries, and unless the consumer keeps order per key also in ascending order of stream sequence, because first
deliveries only go forward and a redelivery keeps its place. An acknowledgement is a dictionary lookup; the floor is
computed on demand. Knows no clock, no log, no receivers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.broker.consumers.ack_state_record import AckStateRecord
from headrace.storage.sequence_arrays import Seqs

if TYPE_CHECKING:
    from headrace.broker.consumers.key_order import KeyOrder


class AckState(AckStateRecord):
    """The state of one consumer. `next_seq` is where the search for new messages starts.

    Messages after `skipped_seq` that are neither pending nor still to come were acknowledged; earlier ones perhaps not.
    """

    __slots__ = ()

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
        delivered = seqs.tolist()
        self.pending.update(zip(delivered, range(consumer_seq, consumer_seq + count), strict=True))
        self._unsaved_deliveries.append((seqs, consumer_seq))
        if self.key_order is not None:
            self.key_order.record(delivered)
        if wait_ns:
            self.ack_deadlines.add_run(now_ns + wait_ns, first, last)
            self._unsaved_runs.append((now_ns + wait_ns, first, last))

    def record_late_deliveries(self, seqs: Seqs, now_ns: int, wait_ns: int) -> None:
        """Record the first deliveries of messages that were passed over before."""
        consumer_seq = self.consumer_seq + 1
        self.consumer_seq += len(seqs)
        self.stream_seq = max(self.stream_seq, int(seqs[-1]))
        self.last_delivery_ns = now_ns
        self.dirty = True
        late = seqs.tolist()
        self.pending.update(zip(late, range(consumer_seq, consumer_seq + len(late)), strict=True))
        self._unsaved_deliveries.append((seqs, consumer_seq))
        for seq in late if wait_ns else ():  # of their own: their sequences lie within earlier runs
            self.set_deadline(seq, now_ns + wait_ns)

    def move_past(self, seq: int) -> None:
        """Move the position past a message that was passed over."""
        self.next_seq = max(self.next_seq, seq + 1)
        self.dirty = True

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

    def pop_due(self, now_ns: int, limit: int) -> list[int]:
        """Return up to `limit` pending messages that were not acknowledged in time, and drop their deadlines."""
        return self.ack_deadlines.pop_due(now_ns, self.pending, limit)

    def expire_all(self, now_ns: int) -> None:
        """Make all pending messages due now."""
        self.ack_deadlines.expire_all(now_ns, self.pending)
        self._unsaved_deadlines.clear()
        self.needs_snapshot = self.dirty = True

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
        if self.ack_deadlines.individual:
            self.ack_deadlines.remove(seq)
        if self.pending.pop(seq, 0):
            self._unsaved_acks.append(seq)
            self._floor_stale = self.dirty = True
            key_order = self.key_order
            if key_order is not None and key_order.release_key(seq):
                key_order.on_ready()
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
        if self.key_order is not None:
            return sorted(each for each in pending if each <= seq)
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
        if self.key_order is not None:
            self._floor_stale = True
            self.key_order.release(seq)
        self.redelivery_queue.discard(seq)
        self.ack_deadlines.remove(seq)
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
        if self.key_order is not None:
            return self._compute_keyed_floor(self.key_order)
        for seq, consumer_seq in self.pending.items():
            self.ack_deadlines.prune(seq)
            if consumer_seq > self._floor_consumer + 1:
                return consumer_seq - 1, seq - 1
            return self._floor_consumer, self._floor_stream
        return self.consumer_seq, max(self.stream_seq, self._floor_stream)

    def _compute_keyed_floor(self, key_order: KeyOrder) -> tuple[int, int]:
        """Compute the floor below pending and passed-over messages; the oldest delivery comes first in `pending`."""
        lowest = key_order.find_lowest(self.pending)
        consumer_seq = next(iter(self.pending.values()), self.consumer_seq + 1) - 1
        stream_seq = lowest - 1 if lowest else self.stream_seq
        if lowest:
            self.ack_deadlines.prune(lowest)
        return max(consumer_seq, self._floor_consumer), max(stream_seq, self._floor_stream)

    def drop_key_order(self) -> None:
        """Stop keeping order per key when nothing that was passed over is left.

        Plain delivery needs both sequences of pending messages in ascending order. So a message gets the lowest consumer
        sequence of itself and those after it: the ack floor stays below all of them.
        """
        self.key_order = None
        lowest = self.consumer_seq
        ordered = sorted(self.pending.items(), reverse=True)
        self.pending.clear()
        self.pending.update(reversed([(seq, lowest := min(lowest, number)) for seq, number in ordered]))
        self.needs_snapshot = self.dirty = self._floor_stale = True
