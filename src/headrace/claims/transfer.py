"""A payload on its way into the store: from bytes, a file or an iterator, hashed and compressed as it passes.

Memory is a few chunks whatever the size. Work on a chunk runs in a thread, so that the event loop goes on and the
store writes one chunk while the next is made.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

from headrace.claims.compression import compressor
from headrace.claims.stores.base import CHUNK, READ, WHOLE_MAX, Chunk

Payload = bytes | bytearray | memoryview | Path | AsyncIterable[Chunk]

#: Smaller pieces are not worth a thread.
INLINE_MAX = 256 * 1024
#: Pieces of a source that are at least this long pass as they are; smaller ones are joined.
_JOIN_BELOW = 1024 * 1024
_T = TypeVar("_T")


async def worked(size: int, work: Callable[[Chunk], _T], data: Chunk) -> _T:
    """Work on a piece of that size: here if it is small, else in a thread, while the event loop goes on."""
    if size <= INLINE_MAX:
        return work(data)
    return await asyncio.get_running_loop().run_in_executor(None, work, data)


class Encoder:
    """Counts, hashes and compresses what passes; both sides of the compression are known at the end."""

    def __init__(self, compression: str) -> None:
        self.compression = compression
        self.original_size = self.stored_size = 0
        self.is_finished = False
        self._compressor = compressor(compression)
        self._original = hashlib.sha256()
        self._stored = hashlib.sha256() if self._compressor else self._original

    @property
    def checksum(self) -> str:
        return self._original.hexdigest()

    @property
    def stored_checksum(self) -> str:
        return self._stored.hexdigest()

    def step(self, data: Chunk) -> Chunk:
        self._original.update(data)
        self.original_size += len(data)
        return self._out(self._compressor.compress(data) if self._compressor else data)

    def end(self) -> Chunk:
        self.is_finished = True
        return self._out(self._compressor.flush()) if self._compressor else b""

    def _out(self, data: Chunk) -> Chunk:
        self.stored_size += len(data)
        if self._stored is not self._original:
            self._stored.update(data)
        return data

    async def encode(self, source: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
        async for data in source:
            out = await worked(len(data), self.step, data)
            if len(out):
                yield out
        out = await asyncio.to_thread(self.end) if self._compressor else self.end()
        if len(out):
            yield out


def size_of(payload: Payload) -> int | None:
    """How long a payload is, when that can be known beforehand."""
    if isinstance(payload, Path):
        return payload.stat().st_size
    return len(payload) if isinstance(payload, bytes | bytearray | memoryview) else None


async def checksum_of(payload: Payload) -> str | None:
    """What a payload's checksum will be; None when it can be read only once."""
    if size_of(payload) is None:
        return None
    passing = hashlib.sha256()
    async for chunk in chunks_of(payload):
        await worked(len(chunk), passing.update, chunk)
    return passing.hexdigest()


def chunks_of(payload: Payload) -> AsyncIterator[Chunk]:
    """A payload in chunks of useful size."""
    if isinstance(payload, Path):
        return ahead(_of_file(payload))
    if isinstance(payload, bytes | bytearray | memoryview):
        return _of_bytes(memoryview(payload))
    return _of_iterator(payload)


async def whole_or_stream(
    chunks: AsyncIterator[Chunk], limit: int = WHOLE_MAX
) -> Chunk | AsyncIterator[Chunk]:
    """All of it if it is at most `limit` bytes, else a stream that starts with what was read already."""
    held: list[Chunk] = []
    size = 0
    async for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size > limit:
            return _chain(held, chunks)
    return held[0] if len(held) == 1 else b"".join(held)


async def ahead(chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
    """The same chunks, with the next one on its way while one is in use."""

    async def following() -> Chunk | None:
        return await anext(chunks, None)

    coming = asyncio.ensure_future(following())
    try:
        while (chunk := await coming) is not None:
            coming = asyncio.ensure_future(following())
            yield chunk
    finally:
        if not coming.done():
            coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


async def _chain(held: list[Chunk], chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
    while held:
        yield held.pop(0)
    async for chunk in chunks:
        yield chunk


async def _of_bytes(view: memoryview) -> AsyncIterator[Chunk]:
    for start in range(0, len(view), CHUNK):
        yield view[start : start + CHUNK]


async def _of_file(path: Path) -> AsyncIterator[Chunk]:
    with path.open("rb", buffering=0) as file:
        while chunk := await asyncio.to_thread(file.read, READ):
            yield chunk


async def _of_iterator(source: AsyncIterable[Chunk]) -> AsyncIterator[Chunk]:
    held: list[Chunk] = []
    size = 0
    async for piece in source:
        kept = _lasting(piece)
        if not held and len(kept) >= _JOIN_BELOW:
            yield kept
            continue
        held.append(kept)
        size += len(piece)
        if size >= CHUNK:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield held[0] if len(held) == 1 else b"".join(held)


def _lasting(piece: Chunk) -> Chunk:
    """A piece that stays what it is: bytes as they are (a copy costs as much as writing them), the rest copied."""
    is_fixed = isinstance(piece, bytes) or (isinstance(piece, memoryview) and piece.readonly)
    return piece if is_fixed else bytes(piece)
