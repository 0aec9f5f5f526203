"""Counts the messages that a consumer has not delivered yet: exact, and updated incrementally.

It counts from scratch only when messages were removed or the position jumped; otherwise new messages are added and
delivered ones subtracted.
"""

from __future__ import annotations

from headrace.broker.consumers.ack_state import AckState
from headrace.storage import Filter, StreamLog


class PendingCounter:
    """The count of one consumer."""

    __slots__ = (
        "_ack_state",
        "_counted_from",
        "_counted_to",
        "_log",
        "_removed_count",
        "_total",
        "subject_filter",
    )

    def __init__(self, log: StreamLog, ack_state: AckState, subject_filter: Filter | None) -> None:
        self._log = log
        self._ack_state = ack_state
        self._removed_count = -1
        self._counted_from = self._counted_to = self._total = 0
        self.subject_filter = subject_filter

    def set_filter(self, subject_filter: Filter | None) -> None:
        """Count other subjects from now on."""
        self.subject_filter = subject_filter
        self._removed_count = -1

    def count_all(self) -> int:
        """Count all undelivered messages in the log."""
        key_order = self._ack_state.key_order
        return self._count_after_position() + (key_order.passed if key_order is not None else 0)

    def _count_after_position(self) -> int:
        """Count those that the consumer did not pass over."""
        ack_state, log = self._ack_state, self._log
        if len(ack_state.last_per_subject_queue):
            self._removed_count = -1  # `on_delivered` subtracts from a total that does not count these
            return self._count_live_queue() + self._count_from(ack_state.resume_seq + 1)
        last = log.last_seq
        # An append moves both by one; every removal and every gap changes the difference.
        removed_count = last - log.messages
        if removed_count != self._removed_count or ack_state.next_seq != self._counted_from:
            self._total = self._count_from(ack_state.next_seq)
            self._removed_count, self._counted_from = removed_count, ack_state.next_seq
        elif last > self._counted_to:
            self._total += self._count_from(max(self._counted_to + 1, self._counted_from))
        self._counted_to = last
        return self._total

    def count_committed(self) -> int:
        """Count only messages that are durable, so that they may be delivered."""
        total, log = self.count_all(), self._log
        if total and log.last_seq > log.committed_seq:
            total -= self._count_from(max(log.committed_seq + 1, self._ack_state.next_seq))
        return max(total, 0)

    def on_delivered(self, count: int) -> None:
        """Subtract delivered messages; the position was moved past them."""
        self._total -= count
        self._counted_from = self._ack_state.next_seq

    def _count_live_queue(self) -> int:
        log, queue = self._log, self._ack_state.last_per_subject_queue
        if not log.num_deleted and int(queue[0]) >= log.first_seq:
            return len(queue)
        return len(log.filter_live(queue))

    def _count_from(self, seq: int) -> int:
        log = self._log
        if seq > log.last_seq:
            return 0
        if self.subject_filter is None and not log.num_deleted:
            return log.last_seq - max(seq, log.first_seq) + 1
        return log.count_from(self.subject_filter, seq)
