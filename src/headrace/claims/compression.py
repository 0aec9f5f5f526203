"""Streaming compression, and decompression that never produces more than the announced size.

A decompressor returns pieces of bounded size and stops as soon as the total exceeds the size in the reference, so a
crafted object costs neither memory nor disk. It knows nothing of claims except that size.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

from headrace.claims.errors import Corrupt, TooLarge
from headrace.claims.zstd_blocks import ZstdSplitter
from headrace.extras import require_extra

Chunk = bytes | memoryview

_GZIP = 16 + zlib.MAX_WBITS
_CHUNK_BYTES = 1024 * 1024
_GZIP_SLICE = 64 * 1024
_ZSTD_WINDOW_MAX = 8 * 1024 * 1024
_ZSTD_LEVEL = 3


class Compressor(Protocol):
    def compress(self, data: Chunk, /) -> bytes: ...
    def flush(self) -> bytes: ...


def make_compressor(name: str) -> Compressor | None:
    """Return the compressor of that name; None if the name means no compression."""
    if name == "none":
        return None
    if name == "gzip":
        return zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    require_extra("claims", "zstandard")
    import zstandard

    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj()


class Decompressor:
    """Decompresses stored pieces; `size_max` is the size in the reference."""

    def __init__(self, name: str, size_max: int) -> None:
        self._remaining = size_max
        self._name = name
        self._decode = {
            "none": lambda: _pass_through,
            "gzip": _make_gzip_decoder,
            "zstd": _make_zstd_decoder,
        }[name]()

    def feed(self, data: Chunk) -> Iterator[Chunk]:
        """Yield the original pieces that this stored one completes."""
        for chunk in self._decode(data):
            self._remaining -= len(chunk)
            if self._remaining < 0:
                raise TooLarge(f"{self._name} data is larger than its reference states")
            if chunk:
                yield chunk


def _pass_through(data: Chunk) -> Iterator[Chunk]:
    yield data


def _make_gzip_decoder() -> Callable[[Chunk], Iterator[Chunk]]:
    decoder = zlib.decompressobj(_GZIP)

    def decode(data: Chunk) -> Iterator[Chunk]:
        view, buffered, size = memoryview(data), [], 0
        # zlib copies the input that it has not consumed, so it gets little at once.
        for start in range(0, len(view), _GZIP_SLICE):
            rest: Chunk = view[start : start + _GZIP_SLICE]
            while rest and not decoder.eof:
                try:
                    buffered.append(decoder.decompress(rest, _CHUNK_BYTES))
                except zlib.error as error:
                    raise Corrupt(f"not gzip data: {error}") from error
                rest = decoder.unconsumed_tail
                size += len(buffered[-1])
                if size >= _CHUNK_BYTES:
                    yield b"".join(buffered)
                    buffered, size = [], 0
        yield b"".join(buffered)

    return decode


def _make_zstd_decoder() -> Callable[[Chunk], Iterator[Chunk]]:
    require_extra("claims", "zstandard")
    import zstandard

    decoder = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX).decompressobj()
    splitter = ZstdSplitter()

    def decode(data: Chunk) -> Iterator[Chunk]:
        buffered, size = [], 0
        for piece in splitter.split(memoryview(data)):
            try:
                chunk = decoder.decompress(piece)
            except zstandard.ZstdError as error:
                raise Corrupt(f"not zstd data: {error}") from error
            buffered.append(chunk)
            size += len(chunk)
            if size >= _CHUNK_BYTES:
                yield b"".join(buffered)
                buffered, size = [], 0
        yield b"".join(buffered)

    return decode
