"""The files that are caches: columns of a sealed segment, and a stream's subjects in order of their id.

Pure functions between bytes and columns. Invariant: bytes that are not exactly what was written for
this segment give None, and the caller reads the segment instead. Must not know disks or logs.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from headrace.store.records import Array, Columns, Subjects

MAGIC = b"HRcol001"
HEADER_BYTES = 96
CHUNK_MAGIC = 0x62735248  # "HRsb"

_HEADER = struct.Struct("<8sQIIQQIIIIIII")
_CHUNK = struct.Struct("<IIIII")
_U32 = struct.Struct("<I")


class Identity(NamedTuple):
    """Whose columns: they are valid for this segment, up to this end, with ids of this generation."""

    store: int
    ident: int
    segment: int
    end: int
    generation: int


def encode_columns(who: Identity, columns: Columns, blocks: array[int], subjects: int) -> list[Any]:
    """The file's content in parts."""
    time, offset, size, subject, ttl, flags, delta = columns.trimmed()
    table = np.frombuffer(blocks, np.uint64).astype("<u4") if len(blocks) else np.empty(0, "<u4")
    arrays = [time, offset, size, subject, ttl, *([] if delta is None else [delta]), table, flags]
    parts: list[Any] = [np.ascontiguousarray(each) for each in arrays]
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    head = _HEADER.pack(
        MAGIC,
        who.store,
        who.ident,
        who.segment,
        columns.base,
        who.end,
        columns.rows,
        len(table),
        who.generation,
        subjects,
        delta is not None,
        crc,
        0,
    )[:-4]
    header = (head + _U32.pack(crc32(head))).ljust(HEADER_BYTES, b"\0")
    return [header, *(memoryview(part).cast("B") for part in parts if len(part))]


class Decoded(NamedTuple):
    """Columns over the file's bytes, block offsets, and how many subject ids they need."""

    columns: Columns
    blocks: array[int]
    subjects: int


def decode_columns(data: memoryview, who: Identity, verify: bool = True) -> Decoded | None:
    """The columns in a file, if it is whole and of that segment; `verify`: unless it was just written,
    look at it.
    """
    if len(data) < HEADER_BYTES:
        return None
    head = _HEADER.unpack_from(data)
    magic, store, ident, segment, base, end, rows, blocks, generation, subjects, sparse, crc, own = head
    if magic != MAGIC or crc32(data[: _HEADER.size - 4]) != own:
        return None
    if Identity(store, ident, segment, end, generation) != who:
        return None
    length = 26 * rows + (4 * rows if sparse else 0) + 4 * blocks
    if len(data) != HEADER_BYTES + length or (verify and crc32(data[HEADER_BYTES:]) != crc):
        return None
    arrays = _arrays(data, rows, blocks, bool(sparse))
    time, offset, size, subject, ttl, delta, table, flags = arrays
    assert time is not None
    columns = Columns.of(base, time, offset, size, subject, ttl, flags, delta)  # type: ignore[arg-type]
    return Decoded(columns, array("Q", np.asarray(table, np.uint64).tobytes()), subjects)


def _arrays(data: memoryview, rows: int, blocks: int, sparse: bool) -> list[Array | None]:
    found: list[Array | None] = []
    at = HEADER_BYTES
    kinds = [("<u8", rows), ("<u4", rows), ("<u4", rows), ("<u4", rows), ("<u4", rows)]
    kinds += [("<u4", rows if sparse else -1), ("<u4", blocks), ("<u2", rows)]
    for kind, count in kinds:
        if count < 0:
            found.append(None)
            continue
        found.append(np.frombuffer(data, kind, count, at))
        at += count * int(kind[2])
    return found


def encode_subjects(subjects: Subjects, lo: int, hi: int) -> bytes:
    """A chunk with the subjects lo..hi."""
    body = subjects.dump(lo, hi)
    head = _CHUNK.pack(CHUNK_MAGIC, lo, hi - lo, len(body), 0)[:-4]
    return head + _U32.pack(crc32(body, crc32(head))) + body


def decode_subjects(data: Any, subjects: Subjects) -> int:
    """Adds the subjects of all good chunks; returns where the first bad one, or the end, is."""
    view, at = memoryview(data), 0
    while at + _CHUNK.size <= len(view):
        magic, first, count, length, crc = _CHUNK.unpack_from(view, at)
        body = view[at + _CHUNK.size : at + _CHUNK.size + length]
        if magic != CHUNK_MAGIC or first != len(subjects) or len(body) != length:
            break
        if crc32(body, crc32(view[at : at + _CHUNK.size - 4])) != crc:
            break
        subjects.load(body)
        assert len(subjects) == first + count, "a chunk whose checksum holds has what it says"
        at += _CHUNK.size + length
    return at
