"""Tracks when messages that were not acknowledged are due for redelivery.

Messages delivered in one run share a deadline, so a run costs one entry; a message that gets a deadline of its own
(redelivered, delayed, in progress) leaves its run. Messages that are no longer pending are skipped when their deadline
comes. Knows no clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping

#: Runs that start within this time of each other share the later one's deadline.
MERGE_WITHIN_NS = 5_000_000

DeadlineRun = tuple[int, int, int]  # deadline, first and last stream sequence


class AckDeadlines:
    """The deadlines of one consumer."""

    __slots__ = ("_heap", "_merged_from", "_runs", "individual")

    def __init__(self) -> None:
        self._runs: deque[DeadlineRun] = deque()
        self._merged_from = 0
        self._heap: list[tuple[int, int]] = []
        self.individual: dict[int, int] = {}

    def add_run(self, deadline_ns: int, first: int, last: int) -> None:
        """Add the first delivery of messages `first` to `last`; deadlines never go back."""
        runs = self._runs
        if runs and deadline_ns - self._merged_from < MERGE_WITHIN_NS and runs[-1][1] <= first:
            runs[-1] = (deadline_ns, runs[-1][1], last)
        else:
            runs.append((deadline_ns, first, last))
            self._merged_from = deadline_ns

    def set_individual(self, seq: int, deadline_ns: int) -> None:
        """Give one message a deadline of its own."""
        self.individual[seq] = deadline_ns
        heapq.heappush(self._heap, (deadline_ns, seq))

    def remove(self, seq: int) -> None:
        """Remove a message that is no longer pending (it stays in its run)."""
        self.individual.pop(seq, None)

    def clear(self) -> None:
        self._runs.clear()
        self._heap.clear()
        self.individual.clear()

    def shift_runs(self, delta_ns: int) -> None:
        """Shift the deadlines of all runs, because the ack wait has changed."""
        self._runs = deque((deadline + delta_ns, first, last) for deadline, first, last in self._runs)
        self._merged_from += delta_ns

    def cap_runs(self, latest_ns: int) -> None:
        """Limit the deadlines of all runs, because the clock was set back since."""
        self._runs = deque((min(deadline, latest_ns), first, last) for deadline, first, last in self._runs)
        self._merged_from = min(self._merged_from, latest_ns)

    def next_deadline(self) -> int:
        """Return the earliest deadline; 0 if there is none."""
        heap, individual = self._heap, self.individual
        while heap and individual.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        earliest = heap[0][0] if heap else 0
        if self._runs and (not earliest or self._runs[0][0] < earliest):
            return self._runs[0][0]
        return earliest

    def find_deadline(self, seq: int) -> int:
        """Return the deadline of a pending message; 0 if it has none."""
        if seq in self.individual:
            return self.individual[seq]
        return next((deadline for deadline, first, last in self._runs if first <= seq <= last), 0)

    def last_deadline(self) -> int:
        """Return the latest deadline; 0 if there is none."""
        latest = self._runs[-1][0] if self._runs else 0
        return max([latest, *self.individual.values()])

    def prune(self, lowest: int) -> None:
        """Drop runs below `lowest`, the lowest pending sequence."""
        while self._runs and self._runs[0][2] < lowest:
            self._runs.popleft()

    def pop_due(self, now_ns: int, pending: Mapping[int, int]) -> list[int]:
        """Remove and return the messages that are due and still pending, ascending."""
        found: list[int] = []
        while self._runs and self._runs[0][0] <= now_ns:
            _, first, last = self._runs.popleft()
            found += self._pending_in_run(first, last, pending)
        heap, individual = self._heap, self.individual
        while heap and heap[0][0] <= now_ns:
            deadline, seq = heapq.heappop(heap)
            if individual.get(seq) == deadline:
                del individual[seq]
                if seq in pending:
                    found.append(seq)
        return sorted(found)

    def _pending_in_run(self, first: int, last: int, pending: Mapping[int, int]) -> list[int]:
        individual = self.individual
        if not pending:
            return []
        if last - first < 4 * len(pending):
            return [seq for seq in range(first, last + 1) if seq in pending and seq not in individual]
        return [seq for seq in pending if first <= seq <= last and seq not in individual]

    def list_runs(self) -> list[DeadlineRun]:
        """Return all runs, for a snapshot."""
        return list(self._runs)


def to_wall_time(runs: list[DeadlineRun], clock_offset_ns: int) -> list[DeadlineRun]:
    """Convert deadlines to wall-clock time, which is what is stored."""
    return [(due_ns - clock_offset_ns, first, last) for due_ns, first, last in runs]


def merge_runs(runs: list[DeadlineRun]) -> list[DeadlineRun]:
    """Merge consecutive runs into one, with the deadline of the last."""
    return [(runs[-1][0], runs[0][1], runs[-1][2])] if runs else []
