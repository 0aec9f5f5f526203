"""Runs: records that lie in one buffer, with their columns, as a reader sees them.

Owns the way from a pinned segment (or the records behind the last one) to arrays of rows, and the check that
the bytes are those that were written: each block once, before its first row is handed out. Invariant: a row
comes out right or `Corrupt` is raised. Must not know pins, leases or Arrow.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple
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
from headrace.store.manifest import Loose
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


class Cache(NamedTuple):
    """What a segment's file of columns holds (nothing: there is none), and the subjects its ids refer to."""

    columns: memoryview
    generation: int
    subjects: list[bytes]


class Place(NamedTuple):
    """Which segment of which stream of which store some bytes must belong to, and how to call it."""

    store: int
    ident: int
    name: str


def open_columns(cache: Cache, place: Place, state: SegmentState) -> Columns | None:
    """The columns of a segment, or None if the cache is not a whole, good and fitting set of them."""
    data = cache.columns
    if len(data) < COLUMNS_BYTES:
        return None
    magic, store, ident, number, base, end, rows, blocks, generation, subjects, sparse, arrays_crc = (
        _COLUMNS.unpack_from(data)
    )
    (head_crc,) = _U32.unpack_from(data, _COLUMNS.size)
    if magic != COLUMNS_MAGIC or head_crc != crc32(data[: _COLUMNS.size]):
        return None
    if (store, ident, number, rows, end) != (place.store, place.ident, state.number, state.rows, state.end):
        return None
    if generation != cache.generation or subjects > len(cache.subjects):
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


class LooseRun(Run):
    """Records that were in no file yet; the manifest that carries them has its own checksum."""

    def __init__(self, loose: Loose) -> None:
        data = memoryview(loose.records)
        columns, subjects = scan(data, [(0, len(data))], f"the records {loose.first} to {loose.last}")
        super().__init__(data, columns, live_rows(loose.live, len(columns.seq)), subjects)


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


def open_segment(data: memoryview, cache: Cache, place: Place, state: SegmentState) -> SegmentRun:
    """A pinned segment. Columns are a cache: without good ones they are made again from the blocks."""
    header = bytes(data[:SEGMENT_HEADER_BYTES])
    if len(data) < state.end or not is_segment(header, place.store, place.ident, state.number):
        raise Corrupt(f"{place.name} is not the segment it should be, or it is cut short")
    data = data[: state.end]
    seed = identity(place.store, place.ident, state.number)
    live = live_rows(state.live, state.rows)
    subjects = cache.subjects
    columns = open_columns(cache, place, state)
    if columns is None:
        columns, subjects = _rebuild(data, seed, state, place.name)
    return SegmentRun(data, columns, live, subjects, seed, place.name)


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


def read_subjects(table: memoryview) -> list[bytes]:
    """The subjects in order of their id, as far as the chunks of a table are good."""
    subjects: list[bytes] = []
    at = 0
    while at + _CHUNK.size <= len(table):
        head = at + _CHUNK.size
        magic, first, count, length, crc = _CHUNK.unpack_from(table, at)
        body = bytes(table[head : head + length])
        if magic != CHUNK_MAGIC or first != len(subjects) or crc32(body, crc32(table[at : head - 4])) != crc:
            break
        _add_subjects(subjects, body, count)
        at = head + length
    return subjects


def _add_subjects(subjects: list[bytes], body: bytes, count: int) -> None:
    at = 0
    for _ in range(count):
        size = body[at] | body[at + 1] << 8
        subjects.append(body[at + 2 : at + 2 + size])
        at += 2 + size
