"""One page of a table for the web page: search, sort and paging happen on the server, in slices.

Owns which rows a page has. Rows that were created or deleted while the page is made may be missing or shown once more.
Must not know what the rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeVar

from headrace.monitor.query import Query
from headrace.monitor.sliced_page import PAUSE, Slices

T = TypeVar("T")

ROWS_DEFAULT, ROWS_MAX = 50, 200
#: Rows beyond this offset cannot be requested: a search finds them.
OFFSET_MAX = 100_000
#: Rows are sorted and the ones that cannot be on the page are dropped when there are that many more than needed.
_EXTRA_ROWS = 1_000


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
    wanted = request.offset + request.limit
    get_key, search = columns[request.sort], request.search
    best: list[tuple[Any, T]] = []
    total = matching = 0
    with Slices() as slices:
        for item in items:
            if item is not PAUSE:
                total += 1
                if not search or search in get_text(item).casefold():  # type: ignore[arg-type]
                    matching += 1
                    best.append((get_key(item), item))  # type: ignore[arg-type]
                    if len(best) > wanted + _EXTRA_ROWS:
                        _keep_best(best, wanted, descending=request.descending)
            if slices.is_over():
                await slices.next_turn()
    _keep_best(best, wanted, descending=request.descending)
    return TablePage([item for _, item in best[request.offset :]], matching, total)


def _keep_best(found: list[tuple[Any, T]], wanted: int, *, descending: bool) -> None:
    """Sort rows by key, those with equal keys in the order in which they came; drop those after the wanted ones."""
    found.sort(key=itemgetter(0), reverse=descending)
    del found[wanted:]
