"""What a round publishes, and what a query must have written after it.

Owns the rows, their event times, and the comparison with what was found. Invariant: the rows of a round end with one row
far in the future (the tick), so that Spark's watermark passes all other rows, and the expected rows are an exact set.
Must not know Spark or servers.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

KEYS = 50
#: Event time between rows, rounds, the start of a round and its tick, and the watermark's delay, in milliseconds.
STEP_MS, ROUND_MS, TICK_MS, DELAY_MS = 50, 1_000_000, 500_000, 10_000
WINDOW_MS = 5_000
#: The right side of the join follows the left one after this time. Each seventh row of the left side has no right one.
RIGHT_MS, UNMATCHED = 1_000, 7
_START_MS = 1_700_000_000_000
_IDS_PER_ROUND = 100_000
_MISSING, _TWICE, _FOREIGN = "missing", "more than once", "unexpected"


class Row(NamedTuple):
    """A row of the source stream; `side` is the second token of its subject."""

    id: int
    key: int
    time_ms: int
    value: int
    side: str = "left"

    @property
    def payload(self) -> str:
        return f"{self.id},{self.key},{self.time_ms},{self.value}"

    @property
    def msg_id(self) -> str:
        return f"{self.side}-{self.id}"


#: Subject without the stream's prefix, and payload, of a row that a query writes.
Written = tuple[str, str]


def make_rows(query: str, number: int, count: int, draw: random.Random) -> list[Row]:
    """Return the rows of round `number` of a query, in the order of their times, the tick at the end."""
    first, start_ms = number * _IDS_PER_ROUND, _START_MS + number * ROUND_MS
    ids = [*range(first, first + count), first + _IDS_PER_ROUND - 1]
    times = [*(start_ms + place * STEP_MS for place in range(count)), start_ms + TICK_MS]
    left = [Row(id, id % KEYS, time_ms, draw.randrange(1000)) for id, time_ms in zip(ids, times, strict=True)]
    if query != "join":
        return left
    rows = []
    for row in left:
        rows.append(row)
        if row.id % UNMATCHED or row is left[-1]:
            right = row._replace(side="right", time_ms=row.time_ms + RIGHT_MS, value=draw.randrange(1000))
            rows.append(right)
    return rows


def compute_expected(query: str, rows: Iterable[Row]) -> set[Written]:
    """Return what a query must have written when it has read all these rows."""
    if query == "aggregate":
        return _aggregate(list(rows))
    if query == "join":
        return _join(list(rows))
    if query == "shuffle":
        return {(str(row.key), f"{row.id},{row.value * 2}") for row in rows}
    return {(str(row.key), row.payload) for row in rows}


def _aggregate(rows: list[Row]) -> set[Written]:
    """Return the sums of the windows that the watermark has passed."""
    counts: Counter[tuple[int, int]] = Counter()
    sums: Counter[tuple[int, int]] = Counter()
    for row in rows:
        place = (row.time_ms // WINDOW_MS * WINDOW_MS, row.key)
        counts[place] += 1
        sums[place] += row.value
    watermark_ms = max(row.time_ms for row in rows) - DELAY_MS
    return {
        (str(key), f"{start},{key},{counts[start, key]},{sums[start, key]}")
        for start, key in counts
        if start + WINDOW_MS <= watermark_ms
    }


def _join(rows: list[Row]) -> set[Written]:
    """Return each left row with its right one, or with none."""
    right = {row.id: row.value for row in rows if row.side == "right"}
    return {
        (str(row.key), f"{row.id},{row.value},{right.get(row.id, '-')}") for row in rows if row.side == "left"
    }


class Ledger:
    """The rows of a query over several rounds, and what was found in the target."""

    def __init__(self, query: str, count: int, draw: random.Random, *, at_least_once: bool) -> None:
        self._query, self._count, self._draw = query, count, draw
        self._at_least_once = at_least_once
        self._rows: list[Row] = []
        self._rounds = 0
        self.expected: set[Written] = set()
        self.found: Counter[Written] = Counter()

    def begin_round(self) -> list[Row]:
        """Return the rows to publish in the next round."""
        rows = make_rows(self._query, self._rounds, self._count, self._draw)
        self._rounds += 1
        self._rows += rows
        self.expected = compute_expected(self._query, self._rows)
        return rows

    def add(self, found: Iterable[Written]) -> None:
        """Count what was read from the target."""
        self.found.update(found)

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing. Something else may still be wrong."""
        return self.expected <= self.found.keys()

    @property
    def repeated(self) -> int:
        """How many rows are stored more than once."""
        return sum(count > 1 for count in self.found.values())

    def find_violations(self) -> dict[str, list[Written]]:
        """Return the rows that break the promise of the mode, by kind; {} if there are none."""
        kinds = {
            _MISSING: sorted(self.expected - self.found.keys()),
            _FOREIGN: sorted(self.found.keys() - self.expected),
            _TWICE: sorted(row for row, count in self.found.items() if count > 1),
        }
        if self._at_least_once:
            del kinds[_TWICE]
        return {kind: rows for kind, rows in kinds.items() if rows}
