"""Compression as a stream, and decompression that cannot be made to produce more than was promised.

A decompressor hands out pieces of bounded size and stops the moment the total exceeds what the reference says, so a
crafted object costs neither memory nor disk. It knows nothing of claims but that size.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

from headrace.claims.errors import Corrupt, TooLarge

Piece = bytes | memoryview

_GZIP = 16 + zlib.MAX_WBITS
_PIECE = 1024 * 1024
#: A block of zstd is at least 4 bytes and at most 128 KiB decompressed, so this much input gives at most 16 MiB.
_ZSTD_SLICE = 512
_ZSTD_WINDOW_MAX = 8 * 1024 * 1024
_ZSTD_LEVEL = 3


class Compressor(Protocol):
    def compress(self, data: Piece, /) -> bytes: ...
    def flush(self) -> bytes: ...


def compressor(name: str) -> Compressor | None:
    """The compressor of that name; None compresses nothing."""
    if name == "none":
        return None
    if name == "gzip":
        return zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    import zstandard

    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj()


class Decompressor:
    """Turns stored pieces into original ones; `size_max` is what the reference promised."""

    def __init__(self, name: str, size_max: int) -> None:
        self._left = size_max
        self._name = name
        self._pieces = {"none": lambda: _plain, "gzip": _gzip, "zstd": _zstd}[name]()

    def feed(self, data: Piece) -> Iterator[Piece]:
        """The original pieces that this stored one completes."""
        for piece in self._pieces(data):
            self._left -= len(piece)
            if self._left < 0:
                raise TooLarge(f"{self._name} data holds more than its reference says")
            if piece:
                yield piece


def _plain(data: Piece) -> Iterator[Piece]:
    yield data


def _gzip() -> Callable[[Piece], Iterator[Piece]]:
    machine = zlib.decompressobj(_GZIP)

    def pieces(data: Piece) -> Iterator[Piece]:
        rest: Piece = data
        while rest and not machine.eof:
            try:
                piece = machine.decompress(rest, _PIECE)
            except zlib.error as error:
                raise Corrupt(f"not gzip data: {error}") from error
            rest = machine.unconsumed_tail
            yield piece

    return pieces


def _zstd() -> Callable[[Piece], Iterator[Piece]]:
    import zstandard

    machine = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX).decompressobj()

    def pieces(data: Piece) -> Iterator[Piece]:
        view, gathered, size = memoryview(data), [], 0
        for start in range(0, len(view), _ZSTD_SLICE):
            try:
                piece = machine.decompress(view[start : start + _ZSTD_SLICE])
            except zstandard.ZstdError as error:
                raise Corrupt(f"not zstd data: {error}") from error
            gathered.append(piece)
            size += len(piece)
            if size >= _PIECE:
                yield b"".join(gathered)
                gathered, size = [], 0
        yield b"".join(gathered)

    return pieces
