"""The first rows of a table in the order of a column, found without a long sort.

Owns sorted runs of rows. Invariant: the wanted rows are in the runs or among the latest ones; rows with equal keys keep
the order in which they came. Must not know what the rows are, or when others are served.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: Maximum number of rows that are sorted at a time.
RUN_ROWS = 2_048
#: Rows that are merged at a time.
_MERGE_ROWS = 256
#: Rows that are freed at a time.
_FREED_ROWS = 2_048


class BestRows(Generic[T]):
    """The first `wanted` rows of those that were added; with large keys first if `descending`."""

    def __init__(self, wanted: int, *, descending: bool) -> None:
        self._wanted = wanted
        self._descending = descending
        self._runs: list[list[tuple[Any, T]]] = []
        self._latest: list[tuple[Any, T]] = []
        self._count = 0  # rows of all runs

    def add(self, key: Any, row: T) -> bool:
        """Add a row; return whether `iter_merge` must follow, because there are many more than wanted."""
        self._latest.append((key, row))
        if len(self._latest) == RUN_ROWS:
            self._end_run()
        return self._count >= 2 * (self._wanted + RUN_ROWS)

    def iter_merge(self) -> Iterator[None]:
        """Merge all runs to one, in slices, and drop the rows that are not wanted."""
        self._end_run()
        merged: list[tuple[Any, T]] = []
        rest = heapq.merge(*self._runs, key=itemgetter(0), reverse=self._descending)
        while some := list(islice(rest, min(_MERGE_ROWS, self._wanted - len(merged)))):
            merged += some
            yield
        del rest
        yield from self.iter_clear()
        self._runs, self._count = [merged], len(merged)

    def iter_clear(self) -> Iterator[None]:
        """Drop all runs, in slices: to free a hundred thousand rows takes long."""
        for run in self._runs:
            while run:
                del run[-_FREED_ROWS:]
                yield
        self._runs, self._count = [], 0

    def list_from(self, offset: int) -> list[T]:
        """Return the wanted rows from an offset on; `iter_merge` must come before."""
        return [row for _, row in self._runs[0][offset:]]

    def _end_run(self) -> None:
        self._latest.sort(key=itemgetter(0), reverse=self._descending)
        del self._latest[self._wanted :]
        self._runs.append(self._latest)
        self._count += len(self._latest)
        self._latest = []
