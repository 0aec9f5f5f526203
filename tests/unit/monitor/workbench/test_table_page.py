"""Which rows a page of a table has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.monitor.sliced_page import PAUSE
from headrace.monitor.workbench.table_page import OFFSET_MAX, TablePage, parse_table_request, select_rows

COLUMNS: dict[str, Callable[[int], Any]] = {"value": lambda n: n, "half": lambda n: n // 2}


async def select(count: int, **query: str) -> TablePage[int]:
    request = parse_table_request(query, COLUMNS, "value")
    items = [each for n in range(count) for each in (n, PAUSE)]
    return await select_rows(items, request, COLUMNS, lambda n: f"Row {n}")


async def test_a_page_is_sorted_and_cut() -> None:
    assert (await select(10, limit="3")).rows == [0, 1, 2]
    assert (await select(10, limit="3", offset="8")).rows == [8, 9]
    page = await select(10_000, limit="3", offset="4", sort="-value")
    assert page.rows == [9_995, 9_994, 9_993]
    assert (page.matching, page.total) == (10_000, 10_000)


async def test_rows_with_equal_keys_keep_their_order_across_pages() -> None:
    pages = [await select(9_000, sort="-half", limit="3", offset=str(n)) for n in (0, 3)]
    assert [row for page in pages for row in page.rows] == [8_998, 8_999, 8_996, 8_997, 8_994, 8_995]


async def test_a_search_ignores_case_and_counts_what_matches() -> None:
    page = await select(100, search="ROW 9")
    assert page.rows == [9, *range(90, 100)]
    assert (page.matching, page.total) == (11, 100)
    assert (await select(100, search="nothing")).rows == []


@pytest.mark.parametrize(
    "query",
    [
        {"sort": "color"},
        {"limit": "0"},
        {"limit": "x"},
        {"limit": "1000"},
        {"offset": "-1"},
        {"offset": str(OFFSET_MAX + 1)},
    ],
)
def test_a_query_that_is_not_valid_is_refused(query: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"sort|limit|offset|invalid"):
        parse_table_request(query, COLUMNS, "value")
