"""One page of a table for the web page: search, sort and paging happen on the server, in slices.

Owns which rows a page has. Rows that were created or deleted while the page is made may be missing or shown once more.
Must not know what the rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from headrace.monitor.query import Query
from headrace.monitor.sliced_page import PAUSE, Slices
from headrace.monitor.workbench.best_rows import BestRows

T = TypeVar("T")

ROWS_DEFAULT, ROWS_MAX = 50, 200
#: Rows beyond this offset cannot be requested: a search finds them.
OFFSET_MAX = 100_000


@dataclass(frozen=True, slots=True)
class TableRequest:
    """What a viewer wants to see."""

    search: str
    sort: str
    descending: bool
    offset: int
    limit: int


@dataclass(frozen=True, slots=True)
class TablePage(Generic[T]):
    """The rows of a page, how many rows match, and how many there are."""

    rows: list[T]
    matching: int
    total: int


def parse_table_request(query: Query, columns: Mapping[str, object], default_sort: str) -> TableRequest:
    """Parse the query of a table; raise ValueError if it is not valid. `-` before a column: in descending order."""
    sort = query.get("sort", "") or default_sort
    name = sort.removeprefix("-")
    if name not in columns:
        raise ValueError(f"cannot sort by {name!r}; use one of {', '.join(sorted(columns))}")
    offset, limit = int(query.get("offset", 0)), int(query.get("limit", ROWS_DEFAULT))
    if not 0 <= offset <= OFFSET_MAX:
        raise ValueError(f"offset must be 0 to {OFFSET_MAX}")
    if not 1 <= limit <= ROWS_MAX:
        raise ValueError(f"limit must be 1 to {ROWS_MAX}")
    return TableRequest(query.get("search", "").casefold(), name, sort.startswith("-"), offset, limit)


async def select_rows(
    items: Iterable[T | object],
    request: TableRequest,
    columns: Mapping[str, Callable[[T], Any]],
    get_text: Callable[[T], str],
) -> TablePage[T]:
    """Select the rows of a page. `get_text` returns what the search looks at; `items` may yield PAUSE."""
    best: BestRows[T] = BestRows(request.offset + request.limit, descending=request.descending)
    get_key, search = columns[request.sort], request.search
    total = matching = 0
    with Slices() as slices:
        for item in items:
            if item is not PAUSE:
                total += 1
                if not search or search in get_text(item).casefold():  # type: ignore[arg-type]
                    matching += 1
                    if best.add(get_key(item), item):  # type: ignore[arg-type]
                        await _run(best.iter_merge(), slices)
            if slices.is_over():
                await slices.next_turn()
        await _run(best.iter_merge(), slices)
        rows = best.list_from(request.offset)
        await _run(best.iter_clear(), slices)
    return TablePage(rows, matching, total)


async def _run(steps: Iterator[None], slices: Slices) -> None:
    """Take steps, with others served in between."""
    for _ in steps:
        if slices.is_over():
            await slices.next_turn()
