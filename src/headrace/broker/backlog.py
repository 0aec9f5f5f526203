"""How many messages a consumer has still to deliver for the first time: exact, and kept up by what changes it.

Counting starts anew only when messages were removed or the position jumped; otherwise what is new is added and what was
delivered taken off.
"""

from __future__ import annotations

from headrace.broker.progress import Progress
from headrace.store import Filter, Log


class Backlog:
    """The count of one consumer."""

    __slots__ = ("_gone", "_log", "_next", "_progress", "_total", "_upto", "wanted")

    def __init__(self, log: Log, progress: Progress, wanted: Filter | None) -> None:
        self._log = log
        self._progress = progress
        self._gone = -1
        self._next = self._upto = self._total = 0
        self.wanted = wanted

    def refilter(self, wanted: Filter | None) -> None:
        """Other subjects count from now on."""
        self.wanted = wanted
        self._gone = -1

    def total(self) -> int:
        """All that the log holds."""
        progress, log = self._progress, self._log
        if len(progress.initial):
            return self._alive() + self._count(progress.resume + 1)
        last = log.last_seq
        # Appending moves both alike; every removal and every gap shows in the difference.
        gone = last - log.messages
        if gone != self._gone or progress.next_seq != self._next:
            self._total = self._count(progress.next_seq)
            self._gone, self._next = gone, progress.next_seq
        elif last > self._upto:
            self._total += self._count(max(self._upto + 1, self._next))
        self._upto = last
        return self._total

    def durable(self) -> int:
        """Only what may be delivered."""
        total, log = self.total(), self._log
        if total and log.last_seq > log.committed_seq:
            total -= self._count(max(log.committed_seq + 1, self._progress.next_seq))
        return max(total, 0)

    def delivered(self, count: int) -> None:
        """So many went out, and the position was moved behind them."""
        self._total -= count
        self._next = self._progress.next_seq

    def _alive(self) -> int:
        log, initial = self._log, self._progress.initial
        if not log.num_deleted and int(initial[0]) >= log.first_seq:
            return len(initial)
        return sum(log.next(None, seq) == seq for seq in initial.tolist())

    def _count(self, seq: int) -> int:
        log = self._log
        if seq > log.last_seq:
            return 0
        if self.wanted is None and not log.num_deleted:
            return log.last_seq - max(seq, log.first_seq) + 1
        return log.count(self.wanted, seq)
