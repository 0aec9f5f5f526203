"""The first rows of a table, in the order of a column."""

from __future__ import annotations

import asyncio
import random

import pytest

from headrace.monitor import sliced_page
from headrace.monitor.workbench import best_rows
from headrace.monitor.workbench.best_rows import BestRows
from headrace.monitor.workbench.table_page import TableRequest, select_rows


class CountedKey:
    """A key that counts comparisons."""

    compared = 0

    def __init__(self, value: int) -> None:
        self.value = value

    def __lt__(self, other: CountedKey) -> bool:
        CountedKey.compared += 1
        return self.value < other.value


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_rows_are_the_same_as_after_one_sort(
    seed: int, descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(best_rows, "RUN_ROWS", 5)
    rng = random.Random(seed)
    count, wanted = rng.randrange(200), rng.randrange(1, 60)
    rows = [(rng.randrange(30), number) for number in range(count)]
    best: BestRows[int] = BestRows(wanted, descending=descending)
    merges = 0
    for key, number in rows:
        if best.add(key, number):
            merges += 1
            for _ in best.iter_merge():
                pass
    for _ in best.iter_merge():
        pass
    expected = sorted(rows, key=lambda row: row[0], reverse=descending)[:wanted]
    assert best.list_from(0) == [number for _, number in expected]
    assert best.list_from(3) == [number for _, number in expected[3:]]
    assert merges <= count // (wanted + 5)


async def test_a_far_page_is_sorted_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are served between sorts of a few rows, however far the page is."""
    monkeypatch.setattr(sliced_page, "SLICE_S", 0)
    monkeypatch.setattr(best_rows, "RUN_ROWS", 100)
    rng = random.Random(1)
    items = [rng.randrange(10**6) for _ in range(20_000)]
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            before = CountedKey.compared
            await asyncio.sleep(0)
            most = max(most, CountedKey.compared - before)

    watching = asyncio.ensure_future(watch())
    request = TableRequest("", "value", False, 15_000, 10)
    page = await select_rows(items, request, {"value": CountedKey}, str)
    watching.cancel()
    assert page.rows == sorted(items)[15_000:15_010]
    assert CountedKey.compared > 100_000
    assert most < 10_000  # a run, or 256 rows of all runs
