"""Tracks when messages that were not acknowledged are due for redelivery.

Messages delivered in one run share a deadline, so a run costs one entry; a message that gets a deadline of its own
(redelivered, delayed, in progress) leaves its run. Messages that are no longer pending are skipped when their run is
due. Knows no clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

import numpy as np

#: Runs that start within this time of each other share the later one's deadline.
MERGE_WITHIN_NS = 5_000_000
#: A run is searched sequence by sequence if it has at most this many for each pending message.
_SPARSE_FROM = 4
#: The pending messages of a sparse run are found at once, if there are not more pending ones; else in slices.
_AT_ONCE_MAX, _SLICE = 50_000, 16_384
#: Maximum number of sequences, or of deadlines of single messages, that one search looks at.
_LOOKED_AT_MAX = 1_024
#: Outdated deadlines of single messages that are left in the heap, besides one for each that is not.
_OUTDATED_MAX = 64

DeadlineRun = tuple[int, int, int]  # deadline, first and last stream sequence


class _RunSearch:
    """A run whose deadline has come: `found` from index `next_index` on is due, then what `unsearched` has of the run."""

    __slots__ = ("found", "next_index", "run", "unsearched")

    def __init__(self, run: DeadlineRun, pending: dict[int, int]) -> None:
        self.run = run
        _, first, last = run
        self.found: Sequence[int] = ()
        self.unsearched: list[int] = []  # the oldest delivery last
        self.next_index = 0
        if last - first < _SPARSE_FROM * len(pending):
            self.found = range(first, last + 1)
        else:
            self.unsearched = list(reversed(pending.keys()))

    def is_finished(self) -> bool:
        return self.next_index >= len(self.found) and not self.unsearched

    def search(self) -> int:
        """Find the next messages of a sparse run; return how many were looked at."""
        size = _SLICE if len(self.unsearched) > _AT_ONCE_MAX else len(self.unsearched)
        seqs = np.array(self.unsearched[-size:], dtype=np.uint64)
        del self.unsearched[-size:]
        _, first, last = self.run
        self.found = np.sort(seqs[(seqs >= first) & (seqs <= last)]).tolist()
        self.next_index = 0
        return size


class AckDeadlines:
    """The deadlines of one consumer."""

    __slots__ = ("_heap", "_merged_from", "_runs", "_search", "individual")

    def __init__(self) -> None:
        self._runs: deque[DeadlineRun] = deque()
        self._search: _RunSearch | None = None
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
        self._drop_outdated()

    def remove(self, seq: int) -> None:
        """Remove a message that is no longer pending (it stays in its run)."""
        if self.individual.pop(seq, None) is not None:
            self._drop_outdated()

    def _drop_outdated(self) -> None:
        """Remove outdated deadlines from the heap when they are the majority."""
        if len(self._heap) > 2 * len(self.individual) + _OUTDATED_MAX:
            self._heap = [(deadline_ns, seq) for seq, deadline_ns in self.individual.items()]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        self._runs.clear()
        self._search = None
        self._heap.clear()
        self.individual.clear()

    def shift_runs(self, delta_ns: int) -> None:
        """Shift the deadlines of all runs, because the ack wait has changed."""
        self._runs = deque((deadline + delta_ns, first, last) for deadline, first, last in self.list_runs())
        self._search = None
        self._merged_from += delta_ns

    def cap_runs(self, latest_ns: int) -> None:
        """Limit the deadlines of all runs, because the clock was set back since."""
        self._runs = deque((min(deadline, latest_ns), first, last) for deadline, first, last in self._runs)
        self._merged_from = min(self._merged_from, latest_ns)

    def next_deadline(self) -> int:
        """Return the earliest deadline; 0 if there is none."""
        if self._search is not None:
            return self._search.run[0]
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
        return next((deadline for deadline, first, last in self.list_runs() if first <= seq <= last), 0)

    def last_deadline(self) -> int:
        """Return the latest deadline; 0 if there is none."""
        return max([0, *(deadline for deadline, _, _ in self.list_runs()[-1:]), *self.individual.values()])

    def prune(self, lowest: int) -> None:
        """Drop runs below `lowest`, the lowest pending sequence."""
        while self._runs and self._runs[0][2] < lowest:
            self._runs.popleft()

    def expire_all(self, now_ns: int, pending: dict[int, int]) -> None:
        """Make all messages due now."""
        self.clear()
        if pending:
            self._runs.append((now_ns, min(pending), max(pending)))
            self._merged_from = now_ns

    def pop_due(self, now_ns: int, pending: dict[int, int], limit: int) -> list[int]:
        """Remove and return messages that are due and still pending, ascending, at most `limit` of them.

        Fewer may be returned although more are due; then `next_deadline` is not after `now_ns`.
        """
        due: list[int] = []
        looked_at = 0
        while looked_at < _LOOKED_AT_MAX and len(due) < limit:
            if self._search is None:
                if not self._runs or self._runs[0][0] > now_ns:
                    due += self._pop_individual(now_ns, pending, limit - len(due))
                    break
                self._search = _RunSearch(self._runs.popleft(), pending)
            looked_at += self._pop_of_run(self._search, pending, limit - len(due), due)
            if self._search.is_finished():
                self._search = None
        return sorted(due)

    def _pop_of_run(self, search: _RunSearch, pending: dict[int, int], limit: int, due: list[int]) -> int:
        """Append messages of a run to `due`; return how many were looked at."""
        looked_at = 1
        if search.next_index >= len(search.found) and search.unsearched:
            looked_at = search.search()
        found, individual = search.found, self.individual
        start = index = search.next_index
        end, most = min(index + _LOOKED_AT_MAX, len(found)), len(due) + limit
        while index < end and len(due) < most:
            seq = found[index]
            index += 1
            if seq in pending and seq not in individual:
                due.append(seq)
        search.next_index = index
        return looked_at + index - start

    def _pop_individual(self, now_ns: int, pending: dict[int, int], limit: int) -> list[int]:
        heap, individual = self._heap, self.individual
        due: list[int] = []
        looked_at = 0
        while heap and heap[0][0] <= now_ns and looked_at < _LOOKED_AT_MAX and len(due) < limit:
            deadline, seq = heapq.heappop(heap)
            looked_at += 1
            if individual.get(seq) == deadline:
                del individual[seq]
                if seq in pending:
                    due.append(seq)
        return due

    def list_runs(self) -> list[DeadlineRun]:
        """Return all runs, for a snapshot; one that is due with what was already returned of it."""
        return [*([self._search.run] if self._search is not None else ()), *self._runs]


def to_wall_time(runs: list[DeadlineRun], clock_offset_ns: int) -> list[DeadlineRun]:
    """Convert deadlines to wall-clock time, which is what is stored."""
    return [(due_ns - clock_offset_ns, first, last) for due_ns, first, last in runs]


def merge_runs(runs: list[DeadlineRun]) -> list[DeadlineRun]:
    """Merge consecutive runs into one, with the deadline of the last."""
    return [(runs[-1][0], runs[0][1], runs[-1][2])] if runs else []
