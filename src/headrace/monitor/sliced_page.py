"""Makes large pages in slices: with thousands of streams, a page would otherwise keep all clients waiting.

Owns the time that a page may take in one turn of the event loop, and the JSON of pages whose rows are made while they
are written. Between two slices streams and consumers may come and go, so rows must check that what they show exists.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import msgspec

SLICE_S = 0.002
#: Smaller pages are indented, for people.
_INDENTED_BYTES_MAX = 64 * 1024


class PageRows:
    """A list in a page; its rows are made when they are written."""

    __slots__ = ("_make_rows",)

    def __init__(self, make_rows: Callable[[], Iterator[Any]]) -> None:
        self._make_rows = make_rows

    def __iter__(self) -> Iterator[Any]:
        return self._make_rows()


class PageTotal:
    """A number in a page that takes long to count: `count` returns the number so far again and again."""

    __slots__ = ("_count",)

    def __init__(self, count: Callable[[], Iterator[int]]) -> None:
        self._count = count

    def __iter__(self) -> Iterator[int]:
        return self._count()


class Slices:
    """The time of a task that shares the event loop with clients, and with other tasks of this kind.

    Used in a `with` block. All tasks together get one slice per turn.
    """

    __slots__ = ("_end_s",)

    _running = 0

    def __enter__(self) -> Slices:
        Slices._running += 1
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        Slices._running -= 1

    def _start(self) -> None:
        self._end_s = perf_counter() + SLICE_S / Slices._running

    def is_over(self) -> bool:
        """Whether others must be served before the task continues."""
        return perf_counter() >= self._end_s

    async def next_turn(self) -> None:
        """Let others be served."""
        await asyncio.sleep(0)
        self._start()


def encode_rows(value: object) -> object:
    """Convert rows for an encoder that makes everything at once: the `enc_hook` of msgspec."""
    if isinstance(value, PageRows):
        return list(value)
    if isinstance(value, PageTotal):
        return deque(value, maxlen=1).pop()
    raise TypeError(f"a page cannot have a value of type {type(value).__name__}")


async def encode_page(page: dict[str, Any]) -> bytes:
    """Encode a page in slices."""
    pieces = []
    with Slices() as slices:
        for piece in _iter_json(page):
            pieces.append(piece)
            if slices.is_over():
                await slices.next_turn()
    body = b"".join(pieces)
    return msgspec.json.format(body, indent=2) if len(body) <= _INDENTED_BYTES_MAX else body


def _iter_json(value: Any) -> Iterator[bytes]:
    if not _has_rows(value):
        yield msgspec.json.encode(value)
        return
    if isinstance(value, PageTotal):
        totals = [0]
        for totals[0] in value:
            yield b""
        yield msgspec.json.encode(totals[0])
        return
    is_object = isinstance(value, dict)
    yield b"{" if is_object else b"["
    comma = b""
    for each in value:
        yield comma
        comma = b","
        if is_object:
            yield msgspec.json.encode(each) + b":"
        yield from _iter_json(value[each] if is_object else each)
    yield b"}" if is_object else b"]"


def _has_rows(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_rows, value.values()))
    if isinstance(value, list):
        return any(map(_has_rows, value))
    return isinstance(value, PageRows | PageTotal)
