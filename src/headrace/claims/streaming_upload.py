"""Streams a payload into the store from bytes, a file or an iterator, hashing and compressing on the way.

It needs memory for a few chunks, whatever the size. Work on a chunk runs in a thread, so that the event loop is not
blocked and the store writes one chunk while the next is prepared. See ADR 33.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

from headrace.claims.compression import make_compressor
from headrace.claims.stores.object_store import CHUNK_BYTES, READ_BYTES, SINGLE_PUT_MAX_BYTES, Chunk

Payload = bytes | bytearray | memoryview | Path | AsyncIterable[Chunk]

#: Smaller pieces are hashed without a thread: this much takes less than a millisecond, and a thread costs as much.
NO_THREAD_MAX_BYTES = 1024 * 1024
#: The same for compression, which is slower by far.
_COMPRESS_NO_THREAD_MAX_BYTES = 64 * 1024
#: Pieces of at least this size are passed on as they are; smaller ones are joined.
_JOIN_BELOW_BYTES = 1024 * 1024
_D = TypeVar("_D")
_T = TypeVar("_T")


async def run_in_thread_if_large(size: int, work: Callable[[_D], _T], data: _D) -> _T:
    """Process data of that size: here if it is small, otherwise in a thread, so that the event loop is not blocked."""
    if size <= NO_THREAD_MAX_BYTES:
        return work(data)
    return await asyncio.get_running_loop().run_in_executor(None, work, data)


class PayloadEncoder:
    """Counts, hashes and compresses the payload; sizes and checksums before and after compression are known at the end."""

    def __init__(self, compression: str) -> None:
        self.compression = compression
        self.original_size = self.stored_size = 0
        self.is_finished = False
        self._compressor = make_compressor(compression)
        self._original_hash = hashlib.sha256()
        self._stored_hash = hashlib.sha256() if self._compressor else self._original_hash

    @property
    def checksum(self) -> str:
        return self._original_hash.hexdigest()

    @property
    def stored_checksum(self) -> str:
        return self._stored_hash.hexdigest()

    def encode_chunk(self, data: Chunk) -> Chunk:
        self._original_hash.update(data)
        return self._compress(data)

    def _compress(self, data: Chunk) -> Chunk:
        self.original_size += len(data)
        return self._count_output(self._compressor.compress(data) if self._compressor else data)

    def finish(self) -> Chunk:
        self.is_finished = True
        return self._count_output(self._compressor.flush()) if self._compressor else b""

    def _count_output(self, data: Chunk) -> Chunk:
        self.stored_size += len(data)
        if self._stored_hash is not self._original_hash:
            self._stored_hash.update(data)
        return data

    async def encode(self, source: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
        """Yield the payload as it is stored, hashed and compressed; large chunks are processed in a thread."""
        async for data in source:
            if self._compressor and len(data) > _COMPRESS_NO_THREAD_MAX_BYTES:
                out = await self._compress_in_threads(data)
            else:
                out = await run_in_thread_if_large(len(data), self.encode_chunk, data)
            if len(out):
                yield out
        out = await asyncio.to_thread(self.finish) if self._compressor else self.finish()
        if len(out):
            yield out

    async def _compress_in_threads(self, data: Chunk) -> Chunk:
        """Compress in one thread and hash the original in another, so that hashing takes no additional time."""
        loop = asyncio.get_running_loop()
        hashing = loop.run_in_executor(None, self._original_hash.update, data)
        try:
            return await loop.run_in_executor(None, self._compress, data)
        finally:
            await hashing


def get_payload_size(payload: Payload) -> int | None:
    """Return the length of a payload, if it is known beforehand."""
    if isinstance(payload, Path):
        return payload.stat().st_size
    return len(payload) if isinstance(payload, bytes | bytearray | memoryview) else None


async def compute_checksum(payload: Payload) -> str | None:
    """Return the checksum of a payload; None if it can be read only once."""
    if get_payload_size(payload) is None:
        return None
    digest = hashlib.sha256()
    async for chunk in iter_chunks(payload):
        await run_in_thread_if_large(len(chunk), digest.update, chunk)
    return digest.hexdigest()


def iter_chunks(payload: Payload) -> AsyncIterator[Chunk]:
    """Yield a payload in chunks of useful size."""
    if isinstance(payload, Path):
        return prefetch(_iter_file(payload))
    if isinstance(payload, bytes | bytearray | memoryview):
        return _iter_bytes(memoryview(payload))
    return _iter_joined(payload)


async def buffer_small(
    chunks: AsyncIterator[Chunk], limit: int = SINGLE_PUT_MAX_BYTES
) -> Chunk | AsyncIterator[Chunk]:
    """Return all of it if it is at most `limit` bytes, otherwise a stream that starts with what was read already."""
    buffered: list[Chunk] = []
    size = 0
    async for chunk in chunks:
        buffered.append(chunk)
        size += len(chunk)
        if size > limit:
            return _chain(buffered, chunks)
    return buffered[0] if len(buffered) == 1 else b"".join(buffered)


async def prefetch(chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
    """Yield the same chunks, fetching the next one while one is in use."""

    async def read_next() -> Chunk | None:
        return await anext(chunks, None)

    next_chunk = asyncio.ensure_future(read_next())
    try:
        while (chunk := await next_chunk) is not None:
            next_chunk = asyncio.ensure_future(read_next())
            yield chunk
    finally:
        if not next_chunk.done():
            next_chunk.cancel()
        await asyncio.gather(next_chunk, return_exceptions=True)


async def _chain(buffered: list[Chunk], chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
    while buffered:
        yield buffered.pop(0)
    async for chunk in chunks:
        yield chunk


async def _iter_bytes(view: memoryview) -> AsyncIterator[Chunk]:
    for start in range(0, len(view), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


async def _iter_file(path: Path) -> AsyncIterator[Chunk]:
    with path.open("rb", buffering=0) as file:
        while chunk := await asyncio.to_thread(file.read, READ_BYTES):
            yield chunk


async def _iter_joined(source: AsyncIterable[Chunk]) -> AsyncIterator[Chunk]:
    buffered: list[Chunk] = []
    size = 0
    async for piece in source:
        immutable = _to_immutable(piece)
        if not buffered and len(immutable) >= _JOIN_BELOW_BYTES:
            yield immutable
            continue
        buffered.append(immutable)
        size += len(piece)
        if size >= CHUNK_BYTES:
            yield b"".join(buffered)
            buffered, size = [], 0
    if buffered:
        yield buffered[0] if len(buffered) == 1 else b"".join(buffered)


def _to_immutable(piece: Chunk) -> Chunk:
    """Return a piece that cannot change: bytes as they are (a copy costs as much as writing them), others copied."""
    is_fixed = isinstance(piece, bytes) or (isinstance(piece, memoryview) and piece.readonly)
    return piece if is_fixed else bytes(piece)
