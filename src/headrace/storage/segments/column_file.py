"""Cache files: the columns of a sealed segment, and a stream's subjects in order of their id.

Pure functions between bytes and columns. Invariant: bytes that are not exactly what was written for this segment decode
to None, and the caller reads the segment instead. Must not know disks or logs. See ADRs 11 and 16.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from headrace._native import crc32
from headrace.storage.format import ALIGN, SEGMENT_HEADER_BYTES
from headrace.storage.native_records import Array, SegmentIndex, SubjectIndex

#: Function that reads part of a file: offset, length.
Read = Callable[[int, int], bytes]

COLUMNS_MAGIC = b"HRcol001"
HEADER_BYTES = 96
CHUNK_MAGIC = 0x62735248  # "HRsb"

_HEADER = struct.Struct("<8sQIIQQIIIIIII")
_CHUNK = struct.Struct("<IIIII")
_U32 = struct.Struct("<I")


class ColumnFileId(NamedTuple):
    """Identity of a column file: valid for this segment, up to this end, with ids of this generation."""

    store_id: int
    ident: int
    segment: int
    end: int
    generation: int


def encode_columns(
    file_id: ColumnFileId, columns: SegmentIndex, blocks: array[int], subject_count: int
) -> list[Any]:
    """Return the file's content in parts."""
    time, offset, size, subject, ttl, flags, delta = columns.to_arrays()
    table = np.frombuffer(blocks, np.uint64).astype("<u4") if len(blocks) else np.empty(0, "<u4")
    arrays = [time, offset, size, subject, ttl, *([] if delta is None else [delta]), table, flags]
    parts: list[Any] = [np.ascontiguousarray(each) for each in arrays]
    assert _are_blocks(table, columns.rows, file_id.end)
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    head = _HEADER.pack(
        COLUMNS_MAGIC,
        file_id.store_id,
        file_id.ident,
        file_id.segment,
        columns.base,
        file_id.end,
        columns.rows,
        len(table),
        file_id.generation,
        subject_count,
        delta is not None,
        crc,
        0,
    )[:-4]
    header = (head + _U32.pack(crc32(head))).ljust(HEADER_BYTES, b"\0")
    return [header, *(memoryview(part).cast("B") for part in parts if len(part))]


class DecodedColumns(NamedTuple):
    """Columns in their own memory, block offsets, and how many subject ids they need."""

    columns: SegmentIndex
    blocks: array[int]
    subject_count: int


def decode_columns(read: Read, length: int, file_id: ColumnFileId) -> DecodedColumns | None:
    """Read the columns from a file of `length` bytes; None unless it is complete and belongs to that segment.

    The bytes are read once, into memory, and verified there: the disk may return others the next time. Even with a
    correct checksum every row is checked, because rows become addresses.
    """
    if length < HEADER_BYTES:
        return None
    header = read(0, HEADER_BYTES)
    if len(header) != HEADER_BYTES:
        return None
    head = _HEADER.unpack_from(header)
    magic, store, ident, segment, base, end, rows, blocks, generation, subjects, sparse, crc, header_crc = (
        head
    )
    if magic != COLUMNS_MAGIC or crc32(header[: _HEADER.size - 4]) != header_crc:
        return None
    if ColumnFileId(store, ident, segment, end, generation) != file_id:
        return None
    if length != HEADER_BYTES + 26 * rows + (4 * rows if sparse else 0) + 4 * blocks:
        return None
    arrays = _read_arrays(read, _kinds(rows, blocks, bool(sparse)), crc)
    if arrays is None:
        return None
    table = arrays.pop("blocks")
    columns = SegmentIndex.from_arrays(base, **arrays)
    if not columns.is_sound(subjects, end) or not _are_blocks(table, rows, end):
        return None
    columns.seal()
    return DecodedColumns(columns, array("Q", table.astype(np.uint64).tobytes()), subjects)


def reader_of(data: memoryview) -> Read:
    """Read from mapped bytes; the result is a copy."""
    return lambda offset, length: bytes(data[offset : offset + length])


def _kinds(rows: int, blocks: int, sparse: bool) -> list[tuple[str, str, int]]:
    """Return name, type and length of the arrays, in file order."""
    found = [("time", "<u8", rows), *((name, "<u4", rows) for name in ("offset", "size", "subject", "ttl"))]
    found += [("delta", "<u4", rows)] if sparse else []
    return [*found, ("blocks", "<u4", blocks), ("flags", "<u2", rows)]


def _read_arrays(read: Read, kinds: list[tuple[str, str, int]], crc: int) -> dict[str, Array] | None:
    """Read each array separately; None if their checksum is wrong."""
    found: dict[str, Array] = {}
    offset, sum_ = HEADER_BYTES, 0
    for name, kind, count in kinds:
        size = count * int(kind[2])
        data = read(offset, size)
        if len(data) != size:
            return None
        sum_ = crc32(data, sum_)
        found[name] = np.frombuffer(data, kind)
        offset += size
    return found if sum_ == crc else None


def _are_blocks(table: Array, rows: int, end: int) -> bool:
    """Return whether block offsets ascend from the segment's header on, each where a block may begin."""
    if not rows:
        return not len(table)
    offsets = table.astype(np.int64)
    return bool(
        len(offsets)
        and offsets[0] == SEGMENT_HEADER_BYTES
        and (np.diff(offsets) > 0).all()
        and not (offsets % ALIGN).any()
        and offsets[-1] < end
    )


def encode_subjects(subjects: SubjectIndex, lo: int, hi: int) -> bytes:
    """Encode a chunk with the subjects lo..hi."""
    assert 0 <= lo < hi <= len(subjects)
    body = subjects.dump(lo, hi)
    head = _CHUNK.pack(CHUNK_MAGIC, lo, hi - lo, len(body), 0)[:-4]
    return head + _U32.pack(crc32(body, crc32(head))) + body


def decode_subjects(data: Any, subjects: SubjectIndex) -> int:
    """Add the subjects of all valid chunks; return the offset of the first bad one, or of the end.

    Raises ValueError if a subject is there twice: no store writes that, and all later ids would be wrong.
    """
    view, offset = memoryview(data), 0
    while offset + _CHUNK.size <= len(view):
        magic, first, count, length, crc = _CHUNK.unpack_from(view, offset)
        body = view[offset + _CHUNK.size : offset + _CHUNK.size + length]
        if magic != CHUNK_MAGIC or first != len(subjects) or len(body) != length:
            break
        if crc32(body, crc32(view[offset : offset + _CHUNK.size - 4])) != crc:
            break
        if not subjects.load(body, count):
            break
        if len(subjects) != first + count:
            raise ValueError("a subject is in the table twice")
        offset += _CHUNK.size + length
    return offset
