"""Cache files: the columns of a sealed segment, and a stream's subjects in order of their id.

Pure functions between bytes and columns. Invariant: bytes that are not exactly what was written for this segment decode
to None, and the caller reads the segment instead. Must not know disks or logs. See ADRs 11, 16 and 23.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from headrace._native import crc32, load_native
from headrace.storage.format import ALIGN, SEGMENT_HEADER_BYTES
from headrace.storage.native_records import RECORD_HEADER_BYTES, Array, SegmentIndex, SubjectIndex

if TYPE_CHECKING:
    from headrace._native import column_packing
else:
    column_packing = load_native("column_packing")

#: Function that reads part of a file: offset, length.
Read = Callable[[int, int], bytes]

COLUMNS_MAGIC = b"HRcol002"
UNPACKED_MAGIC = b"HRcol001"  # written until version 0.1.0
HEADER_BYTES = 100
UNPACKED_HEADER_BYTES = 96
CHUNK_MAGIC = 0x62735248  # "HRsb"

_HEADER = struct.Struct("<8sQIIQQIIII8IIII")
_UNPACKED_HEADER = struct.Struct("<8sQIIQQIIIIIII")
_CHUNK = struct.Struct("<IIIII")
_U32 = struct.Struct("<I")


class ColumnFileId(NamedTuple):
    """Identity of a column file: valid for this segment, up to this end, with ids of this generation."""

    store_id: int
    ident: int
    segment: int
    end: int
    generation: int


class SubjectChecksum:
    """Checksum of the first subjects of a table, in the order of their ids; cheap while their number grows.

    A column file has it, because another version may have written the subjects file again, with other ids.
    """

    def __init__(self, dump: Callable[[int, int], bytes]) -> None:
        """`dump` is that of a `SubjectIndex`."""
        self._dump = dump
        self._count = self._crc = 0

    def compute(self, count: int) -> int:
        if count < self._count:
            self._count = self._crc = 0
        self._crc = crc32(self._dump(self._count, count), self._crc)
        self._count = count
        return self._crc


class SubjectTable(NamedTuple):
    """The subjects that a column file refers to: their number and checksum."""

    size: int
    crc: int


class ColumnFile:
    """The columns of a sealed segment on their way to a file.

    Captured on the event loop; packed and encoded on the thread that writes the file.
    """

    def __init__(
        self, file_id: ColumnFileId, columns: SegmentIndex, blocks: array[int], subjects: SubjectTable
    ) -> None:
        self._file_id = file_id
        self._base, self._rows = columns.base, columns.rows
        self._arrays = columns.to_arrays() if columns.packed is None else None
        self._blocks = np.array(blocks, np.uint64)
        self._subjects = subjects
        #: The packed columns, once they are known.
        self.packed = columns.packed or []

    def encode(self) -> list[bytes]:
        """Return the file's content in parts."""
        if self._arrays is not None:
            self.packed, self._arrays = column_packing.pack_columns(self._arrays), None
        return encode_columns(
            self._file_id, self._base, self._rows, self.packed, self._blocks, self._subjects
        )


def encode_columns(
    file_id: ColumnFileId, base: int, rows: int, packed: list[bytes], blocks: Array, subjects: SubjectTable
) -> list[bytes]:
    """Return the content of a column file in parts."""
    assert _are_blocks(blocks, rows, file_id.end)
    parts = [*packed, column_packing.pack_column(blocks)]
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    head = _HEADER.pack(
        COLUMNS_MAGIC,
        file_id.store_id,
        file_id.ident,
        file_id.segment,
        base,
        file_id.end,
        rows,
        len(blocks),
        file_id.generation,
        subjects.size,
        *(len(part) for part in parts),
        subjects.crc,
        crc,
        0,
    )[:-4]
    return [head + _U32.pack(crc32(head)), *(part for part in parts if part)]


class DecodedColumns(NamedTuple):
    """Columns in their own memory, block offsets, and how many subject ids they need.

    `subjects_crc` is None in a file of an earlier version.
    """

    columns: SegmentIndex
    blocks: array[int]
    subject_count: int
    subjects_crc: int | None = None


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
    if header[:8] == UNPACKED_MAGIC:
        return decode_unpacked_columns(read, length, header, file_id)
    magic, store, ident, segment, base, end, rows, blocks, generation, subjects, *rest = _HEADER.unpack_from(
        header
    )
    *sizes, names_crc, crc, header_crc = rest
    if magic != COLUMNS_MAGIC or crc32(header[:-4]) != header_crc:
        return None
    if ColumnFileId(store, ident, segment, end, generation) != file_id or length != HEADER_BYTES + sum(sizes):
        return None
    if rows > end // RECORD_HEADER_BYTES or blocks > end // ALIGN:
        return None  # before memory is reserved for them
    parts = _read_parts(read, HEADER_BYTES, sizes, crc)
    if parts is None:
        return None
    try:
        columns = SegmentIndex.from_packed(base, rows, parts[:-1])
        table = column_packing.unpack_column(parts[-1], blocks)
    except ValueError:
        return None
    if not columns.is_sound(subjects, end) or not _are_blocks(table, rows, end):
        return None
    return DecodedColumns(columns, array("Q", table.tobytes()), subjects, names_crc)


def _read_parts(read: Read, offset: int, sizes: list[int], crc: int) -> list[bytes] | None:
    """Read each column separately; None if their checksum is wrong."""
    found: list[bytes] = []
    sum_ = 0
    for size in sizes:
        data = read(offset, size)
        if len(data) != size:
            return None
        sum_ = crc32(data, sum_)
        found.append(data)
        offset += size
    return found if sum_ == crc else None


def decode_unpacked_columns(
    read: Read, length: int, header: bytes, file_id: ColumnFileId
) -> DecodedColumns | None:
    """Read a column file of an earlier version, whose columns are plain arrays."""
    _, store, ident, segment, base, end, rows, blocks, generation, subjects, sparse, crc, header_crc = (
        _UNPACKED_HEADER.unpack_from(header)
    )
    if crc32(header[: _UNPACKED_HEADER.size - 4]) != header_crc:
        return None
    if ColumnFileId(store, ident, segment, end, generation) != file_id:
        return None
    kinds = _list_kinds(rows, blocks, bool(sparse))
    sizes = [count * int(kind[2]) for _, kind, count in kinds]
    is_whole = length == UNPACKED_HEADER_BYTES + sum(sizes)
    parts = _read_parts(read, UNPACKED_HEADER_BYTES, sizes, crc) if is_whole else None
    if parts is None:
        return None
    arrays = {name: np.frombuffer(part, kind) for part, (name, kind, _) in zip(parts, kinds, strict=True)}
    table = arrays.pop("blocks").astype(np.uint64)
    columns = SegmentIndex.from_arrays(base, **arrays)
    if not columns.is_sound(subjects, end) or not _are_blocks(table, rows, end):
        return None
    columns.seal()
    return DecodedColumns(columns, array("Q", table.tobytes()), subjects)


def _list_kinds(rows: int, blocks: int, sparse: bool) -> list[tuple[str, str, int]]:
    """Return name, type and length of the arrays of an unpacked file, in file order."""
    found = [("time", "<u8", rows), *((name, "<u4", rows) for name in ("offset", "size", "subject", "ttl"))]
    found += [("delta", "<u4", rows)] if sparse else []
    return [*found, ("blocks", "<u4", blocks), ("flags", "<u2", rows)]


def reader_of(data: memoryview) -> Read:
    """Read from mapped bytes; the result is a copy."""
    return lambda offset, length: bytes(data[offset : offset + length])


def _are_blocks(table: Array, rows: int, end: int) -> bool:
    """Return whether block offsets ascend from the segment's header on, each where a block may begin."""
    if not rows:
        return not len(table)
    if (table >= end).any():  # before the conversion, which wraps around
        return False
    offsets = table.astype(np.int64)
    return bool(
        len(offsets)
        and offsets[0] == SEGMENT_HEADER_BYTES
        and (np.diff(offsets) > 0).all()
        and not (offsets % ALIGN).any()
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
