"""Byte formats of frames, blocks, segments and checkpoint trailers, as described in `docs/explanation/storage-format.md`.

Pure functions between values and bytes. Invariant: checksums cover the identity of what they protect: a block is
accepted only at its own offset of its own segment, a section only in its own store. A frame, a segment header and a
trailer name the file that they belong to, so that callers can compare. Must not know disks, logs or time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from headrace._native import crc32
from headrace._native import encode_entry as encode_entry
from headrace._native import encode_frame_header as encode_frame_header
from headrace._native.frame_encoding_pure import ENTRY_STRUCT as _ENTRY
from headrace._native.frame_encoding_pure import FRAME_MAGIC as FRAME_MAGIC
from headrace._native.frame_encoding_pure import FRAME_STRUCT as _FRAME

ALIGN = 512
BLOCK_MAGIC = 0x6B625248  # "HRbk"
SEGMENT_MAGIC = b"HRseg001"
TRAILER_MAGIC = b"HRckpt01"

COMMIT, IDLE, SHUTDOWN = 1, 2, 3

CREATE_STREAM, RECORDS, LARGE, REMOVALS, TRIM, ADVANCE = 1, 2, 3, 4, 5, 6
PUT, MERGE, DELETE_KEY, DELETE_STREAM, CHECKPOINT, WATERMARKS = 7, 8, 9, 10, 11, 12

FRAME_KINDS = frozenset({COMMIT, IDLE, SHUTDOWN})
ENTRY_KINDS = frozenset(range(CREATE_STREAM, WATERMARKS + 1))

FRAME_HEADER_BYTES = 48
ENTRY_HEADER_BYTES = 16
BLOCK_HEADER_BYTES = 32
SEGMENT_HEADER_BYTES = 512
TRAILER_BYTES = 48

#: No store creates so many segments or generations in one stream; higher numbers leave no room for those that follow.
NUMBER_MAX = 1 << 31

_BLOCK = struct.Struct("<IIQQII")
_SEGMENT = struct.Struct("<8sQII")
_IDENTITY = struct.Struct("<QII")
_TRAILER = struct.Struct("<8sQQQQII")
_LARGE = struct.Struct("<IIQQQ")
_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")
_WATERMARK = struct.Struct("<IQ")


def align_up(length: int) -> int:
    """Round up to a multiple of ALIGN."""
    return (length + ALIGN - 1) & ~(ALIGN - 1)


class FrameHeader(NamedTuple):
    """Header of a frame; its body starts at `offset` + FRAME_HEADER_BYTES."""

    offset: int
    kind: int
    store_id: int
    file_number: int
    number: int
    length: int
    prev_crc: int
    crc: int


def parse_frame_header(data: memoryview, offset: int) -> FrameHeader | None:
    """Return the header at an offset without verifying it; None if the magic number is missing."""
    if offset + FRAME_HEADER_BYTES > len(data):
        return None
    magic, kind, _, store_id, file_number, number, length, prev_crc, _, crc = _FRAME.unpack_from(data, offset)
    return (
        FrameHeader(offset, kind, store_id, file_number, number, length, prev_crc, crc)
        if magic == FRAME_MAGIC
        else None
    )


def parse_frame(data: memoryview, offset: int) -> FrameHeader | None:
    """Return the frame at an offset if it is complete, even if it belongs to another file."""
    frame = parse_frame_header(data, offset)
    if frame is None:
        return None
    start = offset + FRAME_HEADER_BYTES
    if start + frame.length > len(data):
        return None
    crc = crc32(data[start : start + frame.length], crc32(data[offset : start - 4]))
    return frame if crc == frame.crc else None


def encode_keyed_entry(kind: int, key: bytes, value: bytes) -> bytes:
    """Encode a metadata entry: a put or a merge."""
    return _ENTRY.pack(kind, 0, 0, 4 + len(key) + len(value)) + _U32.pack(len(key)) + key + value


def decode_keyed(body: memoryview) -> tuple[bytes, bytes]:
    """Decode key and value of a put or a merge."""
    (length,) = _U32.unpack_from(body)
    return bytes(body[4 : 4 + length]), bytes(body[4 + length :])


def decode_entries(body: memoryview) -> list[tuple[int, int, memoryview]]:
    """Decode (kind, ident, bytes) of each entry in a frame's body; raise ValueError if they do not fill it exactly."""
    found, at = [], 0
    while at < len(body):
        if len(body) - at < ENTRY_HEADER_BYTES:
            raise ValueError("an entry of a frame is truncated")
        kind, _, ident, length = _ENTRY.unpack_from(body, at)
        at += ENTRY_HEADER_BYTES
        if length > len(body) - at:
            raise ValueError("an entry of a frame is longer than the frame")
        found.append((kind, ident, body[at : at + length]))
        at += length
    return found


def find_entries(body: memoryview, wanted: int) -> list[tuple[int, memoryview]]:
    """Find (ident, bytes) of the entries of one kind; it creates nothing for the others. Errors as `decode_entries`."""
    found, at, end = [], 0, len(body)
    while at <= end - ENTRY_HEADER_BYTES:
        kind, _, ident, length = _ENTRY.unpack_from(body, at)
        at += ENTRY_HEADER_BYTES + length
        if kind == wanted:
            found.append((ident, body[at - length : at]))
    if at != end:
        raise ValueError("an entry of a frame is truncated, or longer than the frame")
    return found


def unknown_kind(data: memoryview, frame: FrameHeader) -> str:
    """Describe what this version does not know in a frame; empty if it knows everything."""
    _, _, reserved, _, _, _, _, _, also, _ = _FRAME.unpack_from(data, frame.offset)
    if frame.kind not in FRAME_KINDS or reserved or also:
        return f"a frame of kind {frame.kind} ({reserved}, {also})"
    at, end = frame.offset + FRAME_HEADER_BYTES, frame.offset + FRAME_HEADER_BYTES + frame.length
    while at < end:
        kind, reserved, _, length = _ENTRY.unpack_from(data, at)
        if kind not in ENTRY_KINDS or reserved:
            return f"an entry of kind {kind} ({reserved})"
        at += ENTRY_HEADER_BYTES + length
    return ""


def decode_watermarks(body: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Iterate over ident and last sequence of the streams that a frame has changed."""
    return _WATERMARK.iter_unpack(body)


def encode_u64(value: int) -> bytes:
    """Encode a u64 as in trim, advance and checkpoint entries."""
    return _U64.pack(value)


def decode_u64(body: memoryview) -> int:
    value: int = _U64.unpack_from(body)[0]
    return value


def encode_large_entry(ident: int, segment: int, offset: int, length: int, seq: int) -> bytes:
    """Encode a reference to a one-record block that was synced before this frame."""
    return encode_entry(LARGE, ident, _LARGE.pack(segment, 0, offset, length, seq))


def decode_large_entry(body: memoryview) -> tuple[int, int, int, int]:
    """Decode (segment, offset, length, seq) of a large entry."""
    segment, _, offset, length, seq = _LARGE.unpack_from(body)
    return segment, offset, length, seq


def compute_segment_seed(store_id: int, ident: int, segment: int) -> int:
    """Return the initial value for the checksums of a segment's blocks."""
    return crc32(_IDENTITY.pack(store_id, ident, segment))


class BlockHeader(NamedTuple):
    """Header of a valid block; its records start at `offset` + BLOCK_HEADER_BYTES."""

    offset: int
    length: int
    first_seq: int
    records: int


def encode_block_header(seed: int, offset: int, first_seq: int, records: int, data: Any) -> bytes:
    """Return the 32 bytes before the records of a block; `seed` is from `compute_segment_seed`."""
    head = _BLOCK.pack(BLOCK_MAGIC, len(data), offset, first_seq, records, 0)[:-4]
    return head + _U32.pack(crc32(data, crc32(head, seed)))


def parse_block(data: Any, at: int, seed: int, offset: int) -> BlockHeader | None:
    """Return the block at `at` in `data` if it is complete and belongs at `offset` of the segment with this seed."""
    if at + BLOCK_HEADER_BYTES > len(data):
        return None
    magic, length, stored_offset, first_seq, records, crc = _BLOCK.unpack_from(data, at)
    start = at + BLOCK_HEADER_BYTES
    if magic != BLOCK_MAGIC or stored_offset != offset or start + length > len(data):
        return None
    view = memoryview(data)
    if crc32(view[start : start + length], crc32(view[at : start - 4], seed)) != crc:
        return None
    return BlockHeader(offset, length, first_seq, records)


def is_large_block(block: bytes, seed: int, offset: int, seq: int) -> bool:
    """Return whether these bytes are the block of one large message with this sequence."""
    header = parse_block(block, 0, seed, offset)
    return header is not None and header.first_seq == seq and header.records == 1


def encode_segment_header(store_id: int, ident: int, segment: int) -> bytes:
    """Return the first 512 bytes of a segment file."""
    head = _SEGMENT.pack(SEGMENT_MAGIC, store_id, ident, segment)
    header = (head + _U32.pack(crc32(head))).ljust(SEGMENT_HEADER_BYTES, b"\0")
    assert len(header) == SEGMENT_HEADER_BYTES
    return header


def is_segment_header(data: bytes, store_id: int, ident: int, segment: int) -> bool:
    """Return whether a file that begins with these bytes is that segment."""
    return data[:SEGMENT_HEADER_BYTES] == encode_segment_header(store_id, ident, segment)


def encode_trailer(store_id: int, checkpoint: int, root_offset: int, root: bytes) -> bytes:
    """Return the last 48 bytes of a checkpoint file."""
    crc = compute_section_crc(store_id, root)
    head = _TRAILER.pack(TRAILER_MAGIC, store_id, checkpoint, root_offset, len(root), crc, 0)[:-4]
    return head + _U32.pack(crc32(head))


def parse_trailer(data: bytes) -> tuple[int, int, int, int, int] | None:
    """Return (store, checkpoint, root offset, root length, root crc), or None if the bytes are no valid trailer."""
    if len(data) != TRAILER_BYTES:
        return None
    magic, store_id, checkpoint, offset, length, root_crc, crc = _TRAILER.unpack(data)
    if magic != TRAILER_MAGIC or crc32(data[:-4]) != crc:
        return None
    return store_id, checkpoint, offset, length, root_crc


def compute_section_crc(store_id: int, data: Any) -> int:
    """Return the checksum in a reference to a section; it covers the store id, so that no other store's file passes."""
    return crc32(data, crc32(_U64.pack(store_id)))


@lru_cache(maxsize=64)
def journal_path(file_number: int) -> str:
    return f"journal/{file_number:016x}.jnl"


def checkpoint_path(checkpoint: int, copy: str) -> str:
    return f"checkpoints/{checkpoint:016x}.{copy}"


def stream_folder(ident: int) -> str:
    return f"streams/{ident:08x}"


def segment_path(ident: int, segment: int) -> str:
    return f"streams/{ident:08x}/{segment:08x}.seg"


def columns_path(ident: int, segment: int, generation: int) -> str:
    """Path of a column file. The generation is part of the name, because subject ids differ between generations."""
    return f"streams/{ident:08x}/{segment:08x}.{generation}.col"


def subjects_path(ident: int, generation: int) -> str:
    return f"streams/{ident:08x}/subjects.{generation}"
