"""Large pages are made in slices, and show what they would show at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import pytest

from headrace.monitor import sliced_page
from headrace.monitor.sliced_page import PAUSE, PageRows, PageTotal, Slices, encode_page, encode_small


def burn(count: int, slices: int = 2) -> Iterator[dict[str, object]]:
    """Make rows, each of which takes longer than a slice."""
    for number in range(count):
        end_s = perf_counter() + slices * sliced_page.SLICE_S
        while perf_counter() < end_s:
            pass
        yield {"number": number}


async def decode_page(page: dict[str, Any]) -> Any:
    return json.loads(b"".join(await encode_page(page)))


async def test_rows_are_encoded_like_lists() -> None:
    nested = {
        "rows": PageRows(lambda: iter([{"inner": PageRows(lambda: iter([1, 2]))}, {"plain": "\u00e4"}])),
        "x": [1.5, None],
    }
    page = {"empty": PageRows(lambda: iter([])), "list": [nested, {}], "text": "a"}
    expected = {
        "empty": [], "list": [{"rows": [{"inner": [1, 2]}, {"plain": "\u00e4"}], "x": [1.5, None]}, {}], "text": "a",
    }  # fmt: skip
    assert await decode_page(page) == expected
    assert encode_small(page) is None


async def test_a_total_is_its_last_count() -> None:
    page = {"total": PageTotal(lambda: iter([0, 1, 3])), "rows": PageRows(lambda: iter([7]))}
    assert await decode_page(page) == {"total": 3, "rows": [7]}


def test_pages_share_the_time_of_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(sliced_page, "perf_counter", lambda: now_s)
    with Slices():
        for _ in range(3):
            with Slices() as slices:
                assert not slices.is_over()
                now_s += sliced_page.SLICE_S / 2
                assert slices.is_over(), "two pages run, so each gets half of it"
    with Slices() as slices:
        now_s += sliced_page.SLICE_S / 2
        assert not slices.is_over()


async def test_a_small_page_is_indented() -> None:
    assert await encode_page({"a": 1}) == [b'{\n  "a": 1\n}']
    assert encode_small({"a": 1}) == b'{"a":1}'


async def test_others_are_served_while_a_page_is_made() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count_turns())
    page = await decode_page({"rows": PageRows(lambda: burn(5))})
    counting.cancel()
    assert page["rows"] == [{"number": number} for number in range(5)]
    assert turns >= 5


async def test_a_pause_among_rows_is_not_shown() -> None:
    assert await decode_page({"rows": PageRows(lambda: iter([PAUSE, 1, PAUSE, PAUSE, 2, PAUSE]))}) == {
        "rows": [1, 2]
    }


async def test_a_large_page_is_not_joined() -> None:
    text = "x" * 100
    parts = await encode_page(
        {"rows": PageRows(lambda: ({**row, "text": text} for row in burn(3))), "long": text * 1000}
    )
    assert len(parts) > 3
    assert json.loads(b"".join(parts))["long"] == text * 1000


async def test_other_values_are_an_error() -> None:
    with pytest.raises(TypeError, match="object"):
        await encode_page({"a": object()})
