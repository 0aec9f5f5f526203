"""Finds messages that were removed after a range was planned and before they were read.

Owns the comparison of the rows with the stream's first sequence. A sequence that is missing below it counts; one that is
missing above it does not, because a single message was deleted there: it was not live when it was read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
#: First and last sequence.
Gap = tuple[int, int]
#: How many gaps a snapshot lists.
_LISTED_MAX = 100


class GapFinder:
    """Checks the rows of one range, in order."""

    def __init__(self, start: int, find_first_seq: Callable[[], int]) -> None:
        self._next_seq = start
        self._find_first_seq = find_first_seq
        self._found: list[Gap] = []

    def on_rows(self, seqs: Ints) -> None:
        """Check what is missing before the last of these rows."""
        if not len(seqs):
            return
        before = np.concatenate((np.array([self._next_seq - 1]), seqs[:-1]))
        self._next_seq = int(seqs[-1]) + 1
        is_hole = seqs - before > 1
        if is_hole.any():
            self._add(before[is_hole] + 1, seqs[is_hole])

    def on_end(self, end: int) -> None:
        """Check what is missing after the last row."""
        if self._next_seq < end:
            self._add(np.array([self._next_seq]), np.array([end]))
            self._next_seq = end

    def take(self) -> list[Gap]:
        """Return the gaps that were found since the last call."""
        found, self._found = self._found, []
        return found

    def _add(self, firsts: Ints, ends: Ints) -> None:
        """Add the part of these holes that is below the stream's first sequence."""
        ends = np.minimum(ends, self._find_first_seq())
        is_lost = firsts < ends
        self._found += zip(firsts[is_lost].tolist(), (ends[is_lost] - 1).tolist(), strict=True)


def count_sequences(gaps: Sequence[Gap]) -> int:
    """Return how many sequences gaps have."""
    return sum(last - first + 1 for first, last in gaps)


def format_gaps(gaps: Sequence[Gap]) -> str:
    """Return gaps as `3-4,9-12`; of very many, the last one listed covers the rest."""
    listed = list(gaps[:_LISTED_MAX])
    if len(gaps) > _LISTED_MAX:
        listed[-1] = (listed[-1][0], gaps[-1][1])
    return ",".join(f"{first}-{last}" for first, last in listed)
