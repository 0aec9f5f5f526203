"""Runs: records that lie in one buffer, with their columns, as a reader sees them.

Owns the way from a pinned segment (or the records behind the last one) to arrays of rows, and the check that
the bytes are those that were written: each block once, before its first row is handed out. Invariant: a row
comes out right or `Corrupt` is raised. Must not know pins, leases or Arrow.
"""

from __future__ import annotations

import struct
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from headrace.errors import Corrupt
from headrace.kernel import twin
from headrace.store.format import (
    BLOCK_BYTES,
    SEGMENT_HEADER_BYTES,
    aligned,
    identity,
    is_segment,
    open_block,
)
from headrace.store.states import SegmentState

Array = npt.NDArray[Any]
_records: Any = twin("records")

COLUMNS_MAGIC = b"HRcol001"
COLUMNS_BYTES = 96
_COLUMNS = struct.Struct("<8sQIIQQIIIIII")
_U32 = struct.Struct("<I")
CHUNK_MAGIC = b"HRsb"
_CHUNK = struct.Struct("<4sIIII")


class Columns:
    """The arrays of a run, one entry a record; `subject` holds ids, `blocks` the offset of each block."""

    __slots__ = ("blocks", "offset", "seq", "subject", "time", "ttl")

    def __init__(
        self, seq: Array, time: Array, offset: Array, subject: Array, ttl: Array, blocks: Array
    ) -> None:
        self.seq, self.time, self.offset = seq, time, offset
        self.subject, self.ttl, self.blocks = subject, ttl, blocks


def open_columns(data: memoryview, store: int, ident: int, state: SegmentState) -> Columns | None:
    """The columns of a segment, or None if these bytes are not a whole, good set of them."""
    if len(data) < COLUMNS_BYTES:
        return None
    head = _COLUMNS.unpack_from(data)
    magic, *identity_read, base, end, rows, blocks, _, _, sparse, arrays_crc = head
    (head_crc,) = _U32.unpack_from(data, _COLUMNS.size)
    if magic != COLUMNS_MAGIC or head_crc != crc32(data[: _COLUMNS.size]):
        return None
    if identity_read != [store, ident, state.number] or (rows, end) != (state.rows, state.end):
        return None
    length = rows * (8 + 4 * (4 + bool(sparse)) + 2) + blocks * 4
    arrays = data[COLUMNS_BYTES : COLUMNS_BYTES + length]
    if len(arrays) != length or crc32(arrays) != arrays_crc:
        return None
    return _split_columns(arrays, base, rows, blocks, bool(sparse))


def _split_columns(arrays: memoryview, base: int, rows: int, blocks: int, sparse: bool) -> Columns:
    at = 0

    def take(kind: str, count: int) -> Array:
        nonlocal at
        found: Array = np.frombuffer(arrays, kind, count, at)
        at += found.nbytes
        return found

    time, offset, _size = take("<u8", rows), take("<u4", rows), take("<u4", rows)
    subject, ttl = take("<u4", rows), take("<u4", rows)
    delta = take("<u4", rows).astype(np.uint64) if sparse else np.arange(rows, dtype=np.uint64)
    return Columns(np.uint64(base) + delta, time, offset, subject, ttl, take("<u4", blocks))


class Run:
    """Records in one buffer. `live` is None where every row lives; `subjects` is what its ids refer to."""

    def __init__(self, data: memoryview, columns: Columns, live: Array | None, subjects: list[bytes]) -> None:
        self.data = data
        self.columns = columns
        self.live = live
        self.subjects = subjects

    def check(self, offsets: Array) -> None:
        """Raises Corrupt unless the records at `offsets` are as they were written."""


class TailRun(Run):
    """Records in no block yet; the manifest that carries them has its own checksum."""

    def __init__(self, records: bytes, live: bytes) -> None:
        columns, subjects = scan(memoryview(records), [(0, len(records))], "the end of the stream")
        super().__init__(memoryview(records), columns, live_rows(live, len(columns.seq)), subjects)


class SegmentRun(Run):
    """A segment up to its committed end; blocks are verified when first read from."""

    def __init__(
        self,
        data: memoryview,
        columns: Columns,
        live: Array | None,
        subjects: list[bytes],
        seed: int,
        name: str,
    ) -> None:
        super().__init__(data, columns, live, subjects)
        self._seed = seed
        self._name = name
        self._good = np.zeros(len(columns.blocks), bool)

    def check(self, offsets: Array) -> None:
        blocks = self.columns.blocks
        if len(offsets) == 0:
            return
        touched = np.searchsorted(blocks, offsets, side="right") - 1
        doubtful = np.unique(touched)
        for number in doubtful[~self._good[doubtful]].tolist():
            at = int(blocks[number])
            if open_block(self.data, at, self._seed, at) is None:
                raise Corrupt(
                    f"{self._name}: the block at {at} is damaged; `headrace fsck` says what is lost"
                )
            self._good[number] = True


def open_segment(
    data: memoryview,
    columns: memoryview | None,
    store: int,
    ident: int,
    state: SegmentState,
    subjects: list[bytes],
    name: str,
) -> SegmentRun:
    """A pinned segment. Columns are a cache: without good ones they are made again from the blocks."""
    if len(data) < state.end or not is_segment(
        bytes(data[:SEGMENT_HEADER_BYTES]), store, ident, state.number
    ):
        raise Corrupt(f"{name} is not the segment it should be, or it is cut short")
    data = data[: state.end]
    seed = identity(store, ident, state.number)
    live = live_rows(state.live, state.rows)
    found = open_columns(columns, store, ident, state) if columns is not None else None
    if found is None:
        found, subjects = _rebuild(data, seed, state, name)
    elif len(found.subject) and int(found.subject.max()) >= len(subjects):
        raise Corrupt(f"{name}: its columns name subjects that the snapshot does not hold")
    return SegmentRun(data, found, live, subjects, seed, name)


def _rebuild(data: memoryview, seed: int, state: SegmentState, name: str) -> tuple[Columns, list[bytes]]:
    spans, at = [], SEGMENT_HEADER_BYTES
    while at < state.end:
        block = open_block(data, at, seed, at)
        if block is None:
            raise Corrupt(f"{name}: the block at {at} is damaged; `headrace fsck` says what is lost")
        spans.append((at + BLOCK_BYTES, block.length))
        at = aligned(at + BLOCK_BYTES + block.length)
    columns, subjects = scan(data, spans, name)
    if len(columns.seq) != state.rows:
        raise Corrupt(f"{name} holds {len(columns.seq)} records instead of {state.rows}")
    columns.blocks = np.array([start - BLOCK_BYTES for start, _ in spans], np.uint32)
    return columns, subjects


def scan(data: memoryview, spans: list[tuple[int, int]], name: str) -> tuple[Columns, list[bytes]]:
    """Columns and subject table of the records within some spans (start, length) of a buffer."""
    subjects, found = _records.Subjects(), _records.Columns()
    for start, length in spans:
        if found.scan(subjects, data, start, length, start) < 0:
            raise Corrupt(f"{name} holds something that is no record, near {start}")
    time, offset, _size, subject, ttl, _flags, delta = found.trimmed()
    steps = np.arange(len(time), dtype=np.uint64) if delta is None else delta.astype(np.uint64)
    columns = Columns(np.uint64(found.base) + steps, time, offset, subject, ttl, np.empty(0, np.uint32))
    return columns, [subjects.name(number) for number in range(len(subjects))]


def live_rows(bits: bytes, rows: int) -> Array | None:
    """Live bits as a mask; none at all means that every row lives."""
    if not bits:
        return None
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=rows).astype(bool)


def read_subjects(tables: list[memoryview]) -> list[bytes]:
    """The subjects in order of their id, from the chunks of one table after another."""
    subjects: list[bytes] = []
    for table in tables:
        at = 0
        while at < len(table):
            at = _read_chunk(table, at, subjects)
    return subjects


def _read_chunk(table: memoryview, at: int, subjects: list[bytes]) -> int:
    head = at + _CHUNK.size
    if head > len(table):
        raise Corrupt("a subject table is cut short")
    magic, first, count, length, crc = _CHUNK.unpack_from(table, at)
    body = bytes(table[head : head + length])
    if magic != CHUNK_MAGIC or first != len(subjects) or len(body) != length:
        raise Corrupt("a subject table is damaged")
    if crc32(body, crc32(table[at : head - 4])) != crc:
        raise Corrupt("a subject table is damaged")
    place = 0
    for _ in range(count):
        size = body[place] | body[place + 1] << 8
        subjects.append(body[place + 2 : place + 2 + size])
        place += 2 + size
    return head + int(length)
