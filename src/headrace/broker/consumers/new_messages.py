"""Finds the messages that a consumer has not looked at yet.

Owns how far to look ahead: farther if few messages match the filter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.storage import Filter, StreamLog
from headrace.storage.sequence_arrays import NO_SEQS, Seqs

if TYPE_CHECKING:
    from headrace.broker.consumers.ack_state import AckState

LOOKAHEAD_MIN, LOOKAHEAD_MAX = 1024, 1 << 20


class NewMessageSearch:
    """Finds new messages of one consumer. `rows` is about how many messages the last search looked at."""

    __slots__ = ("_ack_state", "_log", "_lookahead", "rows")

    def __init__(self, log: StreamLog, ack_state: AckState) -> None:
        self._log = log
        self._ack_state = ack_state
        self._lookahead = LOOKAHEAD_MIN
        self.rows = 0

    def find_next(self, subject_filter: Filter | None, most: int) -> Seqs:
        """Return up to `most` sequences to deliver next, ascending, any number if it is negative; none if there are none."""
        log, ack_state, self.rows = self._log, self._ack_state, 0
        if len(ack_state.last_per_subject_queue):
            if len(seqs := self._take_live(ack_state)):
                return seqs
            ack_state.next_seq = max(ack_state.next_seq, ack_state.resume_seq + 1)
        committed = log.committed_seq
        first = log.find_next(subject_filter, ack_state.next_seq)
        if not first or first > committed:
            return NO_SEQS
        ahead = self._lookahead
        last = min(committed, first + ahead - 1)
        seqs = log.find_seqs(subject_filter, first, last, most)
        if len(seqs) == most:
            last = int(seqs[-1])
            self._lookahead = min(max(last - first + 1, LOOKAHEAD_MIN), LOOKAHEAD_MAX)
        else:
            self._lookahead = LOOKAHEAD_MIN if 4 * len(seqs) > ahead else min(4 * ahead, LOOKAHEAD_MAX)
        self.rows = last - first + 1
        return seqs

    def _take_live(self, ack_state: AckState) -> Seqs:
        """Return the next of the last messages per subject that still exist, and drop those that do not from the queue."""
        queue = ack_state.last_per_subject_queue
        live = NO_SEQS
        while len(queue) and not len(live):
            part = queue[:LOOKAHEAD_MIN]
            live = self._log.filter_live(part)
            dropped = len(part) - len(live)
            if dropped and len(live):
                if not queue.flags.writeable:
                    queue = queue.copy()
                queue[dropped : len(part)] = live
            queue = queue[dropped:]
        ack_state.last_per_subject_queue = queue
        return live
