"""A payload on its way into the store: from bytes, a file or an iterator, hashed and compressed as it passes.

Memory is a few chunks whatever the size. Work on a chunk runs in a thread, so that the event loop goes on and the
store writes one chunk while the next is made.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path

from headrace.claims.compression import compressor
from headrace.claims.stores.base import CHUNK, WHOLE_MAX, Chunk

Payload = bytes | bytearray | memoryview | Path | AsyncIterable[Chunk]

#: Smaller pieces are not worth a thread.
THREAD_MIN = 1024 * 1024


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
            large = len(data) > THREAD_MIN
            out = await asyncio.to_thread(self.step, data) if large else self.step(data)
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


def chunks_of(payload: Payload) -> AsyncIterator[Chunk]:
    """A payload in chunks of useful size."""
    if isinstance(payload, Path):
        return _of_file(payload)
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
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            yield chunk


async def _of_iterator(source: AsyncIterable[Chunk]) -> AsyncIterator[Chunk]:
    held = bytearray()
    async for piece in source:
        if not held and len(piece) >= CHUNK:
            yield piece
            continue
        held += piece
        if len(held) >= CHUNK:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)
