"""Byte formats of frames, blocks, segments and checkpoint trailers, as `docs/store.md` has them.

Pure functions between values and bytes. Invariant: what `seal_*` made, `open_*` accepts at the same place of
the same file and nowhere else. Must not know disks, logs or time.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.kernel import crc32

ALIGN = 512
FRAME_MAGIC = 0x72665248  # "HRfr"
BLOCK_MAGIC = 0x6B625248  # "HRbk"
SEGMENT_MAGIC = b"HRseg001"
TRAILER_MAGIC = b"HRckpt01"

TICK, IDLE, SHUTDOWN = 1, 2, 3

CREATE, RECORDS, LARGE, REMOVALS, TRIM, ADVANCE = 1, 2, 3, 4, 5, 6
PUT, NOTE, FORGET, DELETE, CHECKPOINT, WATERMARKS = 7, 8, 9, 10, 11, 12

FRAME_KINDS = frozenset({TICK, IDLE, SHUTDOWN})
ENTRY_KINDS = frozenset(range(CREATE, WATERMARKS + 1))

FRAME_BYTES = 48
ENTRY_BYTES = 16
BLOCK_BYTES = 32
SEGMENT_HEADER_BYTES = 512
TRAILER_BYTES = 48

_FRAME = struct.Struct("<IHHQQQIIII")
_ENTRY = struct.Struct("<HHIQ")
_BLOCK = struct.Struct("<IIQQII")
_SEGMENT = struct.Struct("<8sQII")
_IDENTITY = struct.Struct("<QII")
_TRAILER = struct.Struct("<8sQQQQII")
_LARGE = struct.Struct("<IIQQQ")
_U64 = struct.Struct("<Q")
_U32 = struct.Struct("<I")


def aligned(length: int) -> int:
    """The next multiple of ALIGN."""
    return (length + ALIGN - 1) & ~(ALIGN - 1)


class Frame(NamedTuple):
    """The head of a frame that was found good; its body lies at `offset` + FRAME_BYTES."""

    offset: int
    kind: int
    store: int
    file: int
    number: int
    length: int
    prev: int
    crc: int


def frame_head(
    kind: int, store: int, file: int, number: int, body: Sequence[Any], prev: int
) -> tuple[bytes, int]:
    """The 48 bytes before a body, which comes in pieces, and the frame's checksum."""
    length = sum(len(piece) for piece in body)
    head = _FRAME.pack(FRAME_MAGIC, kind, 0, store, file, number, length, prev, 0, 0)[:-4]
    crc = crc32(head)
    for piece in body:
        crc = crc32(piece, crc)
    return head + _U32.pack(crc), crc


def peek_frame(data: memoryview, offset: int) -> Frame | None:
    """What the head of a frame at an offset says, true or not."""
    if offset + FRAME_BYTES > len(data):
        return None
    magic, kind, _, store, file, number, length, prev, _, crc = _FRAME.unpack_from(data, offset)
    return Frame(offset, kind, store, file, number, length, prev, crc) if magic == FRAME_MAGIC else None


def open_frame(data: memoryview, offset: int) -> Frame | None:
    """The frame at an offset if it is whole, whatever file it says it belongs to."""
    frame = peek_frame(data, offset)
    if frame is None:
        return None
    start = offset + FRAME_BYTES
    if start + frame.length > len(data):
        return None
    crc = crc32(data[start : start + frame.length], crc32(data[offset : start - 4]))
    return frame if crc == frame.crc else None


def entry(kind: int, ident: int, body: bytes) -> bytes:
    """One entry of a frame."""
    return _ENTRY.pack(kind, 0, ident, len(body)) + body


def keyed(kind: int, key: bytes, value: bytes) -> bytes:
    """An entry about a fact: put or note."""
    return _ENTRY.pack(kind, 0, 0, 4 + len(key) + len(value)) + _U32.pack(len(key)) + key + value


def split_keyed(body: memoryview) -> tuple[bytes, bytes]:
    """Key and value of a put or a note."""
    (length,) = _U32.unpack_from(body)
    return bytes(body[4 : 4 + length]), bytes(body[4 + length :])


def entries(body: memoryview) -> list[tuple[int, int, memoryview]]:
    """(kind, ident, bytes) of each entry of a frame's body; ValueError where they are not exactly the whole of it."""
    found, at = [], 0
    while at < len(body):
        if len(body) - at < ENTRY_BYTES:
            raise ValueError("an entry of a frame is cut short")
        kind, _, ident, length = _ENTRY.unpack_from(body, at)
        at += ENTRY_BYTES
        if length > len(body) - at:
            raise ValueError("an entry of a frame is longer than the frame")
        found.append((kind, ident, body[at : at + length]))
        at += length
    return found


def unknown_kind(data: memoryview, frame: Frame) -> str:
    """Name what this version does not know about a frame; empty if it knows everything."""
    _, _, reserved, _, _, _, _, _, also, _ = _FRAME.unpack_from(data, frame.offset)
    if frame.kind not in FRAME_KINDS or reserved or also:
        return f"a frame of kind {frame.kind} ({reserved}, {also})"
    at, end = frame.offset + FRAME_BYTES, frame.offset + FRAME_BYTES + frame.length
    while at < end:
        kind, reserved, _, length = _ENTRY.unpack_from(data, at)
        if kind not in ENTRY_KINDS or reserved:
            return f"an entry of kind {kind} ({reserved})"
        at += ENTRY_BYTES + length
    return ""


def number(value: int) -> bytes:
    """A u64, as trim, advance and checkpoint entries carry it."""
    return _U64.pack(value)


def read_number(body: memoryview) -> int:
    value: int = _U64.unpack_from(body)[0]
    return value


def large_entry(ident: int, segment: int, offset: int, length: int, seq: int) -> bytes:
    """Refers to a one-record block that was synced before this frame."""
    return entry(LARGE, ident, _LARGE.pack(segment, 0, offset, length, seq))


def read_large(body: memoryview) -> tuple[int, int, int, int]:
    """(segment, offset, length, seq) of a large entry."""
    segment, _, offset, length, seq = _LARGE.unpack_from(body)
    return segment, offset, length, seq


def identity(store: int, ident: int, segment: int) -> int:
    """Where the checksums of a segment's blocks start from."""
    return crc32(_IDENTITY.pack(store, ident, segment))


class Block(NamedTuple):
    """The head of a good block; its records lie at `offset` + BLOCK_BYTES."""

    offset: int
    length: int
    first_seq: int
    records: int


def block_head(seed: int, offset: int, first_seq: int, records: int, data: Any) -> bytes:
    """The 32 bytes before the records of a block; `seed` is the segment's `identity`."""
    head = _BLOCK.pack(BLOCK_MAGIC, len(data), offset, first_seq, records, 0)[:-4]
    return head + _U32.pack(crc32(data, crc32(head, seed)))


def open_block(data: Any, at: int, seed: int, offset: int) -> Block | None:
    """The block at `at` of some bytes, if it is the whole block that belongs at `offset` of that segment."""
    if at + BLOCK_BYTES > len(data):
        return None
    magic, length, place, first_seq, records, crc = _BLOCK.unpack_from(data, at)
    start = at + BLOCK_BYTES
    if magic != BLOCK_MAGIC or place != offset or start + length > len(data):
        return None
    view = memoryview(data)
    if crc32(view[start : start + length], crc32(view[at : start - 4], seed)) != crc:
        return None
    return Block(offset, length, first_seq, records)


def segment_header(store: int, ident: int, segment: int) -> bytes:
    """The first 512 bytes of a segment file."""
    head = _SEGMENT.pack(SEGMENT_MAGIC, store, ident, segment)
    return (head + _U32.pack(crc32(head))).ljust(SEGMENT_HEADER_BYTES, b"\0")


def is_segment(data: bytes, store: int, ident: int, segment: int) -> bool:
    """Whether a file that begins so is that segment."""
    return data[:SEGMENT_HEADER_BYTES] == segment_header(store, ident, segment)


def trailer(store: int, checkpoint: int, root_offset: int, root: bytes) -> bytes:
    """The last 48 bytes of a checkpoint file."""
    crc = section_crc(store, root)
    head = _TRAILER.pack(TRAILER_MAGIC, store, checkpoint, root_offset, len(root), crc, 0)[:-4]
    return head + _U32.pack(crc32(head))


def open_trailer(data: bytes) -> tuple[int, int, int, int, int] | None:
    """(store, checkpoint, root offset, root length, root crc), or None if the bytes are no good trailer."""
    if len(data) != TRAILER_BYTES:
        return None
    magic, store, checkpoint, offset, length, root_crc, crc = _TRAILER.unpack(data)
    if magic != TRAILER_MAGIC or crc32(data[:-4]) != crc:
        return None
    return store, checkpoint, offset, length, root_crc


def section_crc(store: int, data: Any) -> int:
    """The checksum in a reference to a section; it knows the store, so that no other store's file passes."""
    return crc32(data, crc32(_U64.pack(store)))


def journal_path(file: int) -> str:
    return f"journal/{file:016x}.jnl"


def checkpoint_path(checkpoint: int, copy: str) -> str:
    return f"checkpoints/{checkpoint:016x}.{copy}"


def stream_folder(ident: int) -> str:
    return f"streams/{ident:08x}"


def segment_path(ident: int, segment: int) -> str:
    return f"streams/{ident:08x}/{segment:08x}.seg"


def columns_path(ident: int, segment: int, generation: int) -> str:
    """Columns of another generation have another name: ids mean something else there."""
    return f"streams/{ident:08x}/{segment:08x}.{generation}.col"


def subjects_path(ident: int, generation: int) -> str:
    return f"streams/{ident:08x}/subjects.{generation}"
