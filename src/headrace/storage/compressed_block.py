"""Compressed blocks of a segment: the same block as without compression, as one S2 block behind a header of its own.

Pure functions between a plain block and its compressed form. A compressed block begins where the plain one would begin,
and the next block too, so that offsets, columns and committed ends mean the same with and without compression; the
bytes that it saves are a hole in the file. Invariant: what `open_block` returns has passed the checksum of the stored
bytes and, after decompression, that of the plain block. Must not know disks or logs. See ADR 21.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace._native import crc32, load_native
from headrace.storage.format import BLOCK_HEADER_BYTES, BlockHeader, parse_block

if TYPE_CHECKING:
    from headrace._native import snappy as _snappy
else:
    _snappy = load_native("snappy")

#: The format feature that a store with compressed blocks needs.
FEATURE = "segments/s2"
COMPRESSED_MAGIC = 0x32735248  # "HRs2"
COMPRESSED_HEADER_BYTES = 24
#: A larger block is never compressed: it bounds what one read decompresses, and the memory that a file can ask for.
COMPRESSED_MAX = 1 << 20

_HEADER = struct.Struct("<IIQII")
_U32 = struct.Struct("<I")


class OpenedBlock(NamedTuple):
    """A valid block; its records are `length` bytes of `data` from `start` on."""

    header: BlockHeader
    data: Any
    start: int


def compress_block(seed: int, offset: int, plain: bytes, min_saving: int) -> bytes | None:
    """Return the compressed form of a block, or None if that does not save at least `min_saving` bytes."""
    assert BLOCK_HEADER_BYTES < len(plain) <= COMPRESSED_MAX
    assert min_saving > 0
    stored = _snappy.compress(plain)
    if COMPRESSED_HEADER_BYTES + len(stored) + min_saving > len(plain):
        return None
    head = _HEADER.pack(COMPRESSED_MAGIC, len(stored), offset, len(plain), 0)[:-4]
    return b"".join((head, _U32.pack(crc32(stored, crc32(head, seed))), stored))


def expand_block(data: Any, at: int, seed: int, offset: int) -> bytes | None:
    """Return the plain block whose compressed form is at `at` in `data`; None if there is none, or it is damaged."""
    start = at + COMPRESSED_HEADER_BYTES
    if start > len(data):
        return None
    magic, stored, own_offset, length, crc = _HEADER.unpack_from(data, at)
    if magic != COMPRESSED_MAGIC or own_offset != offset or stored > len(data) - start:
        return None
    if not BLOCK_HEADER_BYTES < length <= COMPRESSED_MAX:
        return None
    view = memoryview(data)
    if crc32(view[start : start + stored], crc32(view[at : start - 4], seed)) != crc:
        return None
    try:
        plain: bytes = _snappy.decompress(view[start : start + stored], length)
    except ValueError:
        return None
    return plain if len(plain) == length else None


def open_block(data: Any, at: int, seed: int, offset: int) -> OpenedBlock | None:
    """Return the block at `at` in `data`, compressed or not; None unless it is complete and belongs at `offset`."""
    if at + 4 > len(data):
        return None
    if _U32.unpack_from(data, at)[0] != COMPRESSED_MAGIC:
        header = parse_block(data, at, seed, offset)
        return None if header is None else OpenedBlock(header, data, at + BLOCK_HEADER_BYTES)
    plain = expand_block(data, at, seed, offset)
    header = None if plain is None else parse_block(plain, 0, seed, offset)
    if plain is None or header is None or BLOCK_HEADER_BYTES + header.length != len(plain):
        return None
    return OpenedBlock(header, plain, BLOCK_HEADER_BYTES)
