"""Makes large pages in slices: with thousands of streams, a page would otherwise keep all clients waiting.

Owns the time that a page may take in one turn of the event loop, and the JSON of pages whose rows are made while they
are written. Between two slices streams and consumers may come and go, so rows must check that what they show exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import msgspec

SLICE_S = 0.002
#: Smaller pages are indented, for people.
_INDENTED_BYTES_MAX = 64 * 1024


#: What rows yield in place of a row after work that made none, so that others can be served.
PAUSE = object()


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


class PageText:
    """A long text in a page; its pieces are encoded one at a time."""

    __slots__ = ("_make_pieces",)

    def __init__(self, make_pieces: Callable[[], Iterator[str]]) -> None:
        self._make_pieces = make_pieces

    def __iter__(self) -> Iterator[str]:
        return self._make_pieces()


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


async def encode_page(page: dict[str, Any]) -> list[bytes]:
    """Encode a page in slices; return its parts, which are never joined if it is large."""
    parts = await collect_parts(iter_json(page))
    if sum(map(len, parts)) > _INDENTED_BYTES_MAX:
        return parts
    return [msgspec.json.format(b"".join(parts), indent=2)]


async def collect_parts(pieces: Iterator[bytes]) -> list[bytes]:
    """Collect pieces in slices; return one part for each slice."""
    parts: list[bytes] = []
    part = bytearray()
    with Slices() as slices:
        for piece in pieces:
            part += piece
            if slices.is_over():
                parts.append(bytes(part))
                part.clear()
                await slices.next_turn()
    parts.append(bytes(part))
    return parts


class _HasRowsError(Exception):
    """A value contains rows, so it cannot be encoded at once."""


def _reject_rows(_: object) -> object:
    raise _HasRowsError


_encode_plain = msgspec.json.Encoder(enc_hook=_reject_rows).encode


def encode_small(page: dict[str, Any]) -> bytes | None:
    """Encode a page at once; return None if it has rows, which have to be encoded in slices."""
    try:
        return _encode_plain(page)
    except _HasRowsError:
        return None


def iter_json(value: Any) -> Iterator[bytes]:
    """Iterate over the JSON of a page in pieces; some are empty, so that a caller can stop between rows."""
    try:
        yield _encode_plain(value)
        return
    except _HasRowsError:
        pass
    if isinstance(value, PageTotal):
        totals = [0]
        for totals[0] in value:
            yield b""
        yield msgspec.json.encode(totals[0])
        return
    if isinstance(value, PageText):
        yield b'"'
        for piece in value:
            yield msgspec.json.encode(piece)[1:-1]
        yield b'"'
        return
    is_object = isinstance(value, dict)
    yield b"{" if is_object else b"["
    comma = b""
    for each in value:
        if each is PAUSE:
            yield b""
            continue
        yield comma
        comma = b","
        if is_object:
            yield msgspec.json.encode(each) + b":"
        yield from iter_json(value[each] if is_object else each)
    yield b"}" if is_object else b"]"
