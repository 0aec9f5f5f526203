"""Runs: records in one buffer, with their columns, as a reader sees them.

Owns the conversion of a pinned segment (or of the tail records after the last one) to arrays of rows, and the check
that the bytes are those that were written: each block once, before its first row is returned. Invariant: a row is
returned correctly or `CorruptData` is raised. Must not know pins, leases or Arrow.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from headrace._native import crc32
from headrace.errors import CorruptData
from headrace.storage.checkpoint_schema import SegmentState
from headrace.storage.compressed_block import OpenedBlock, open_block
from headrace.storage.format import (
    BLOCK_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    align_up,
    compute_segment_seed,
    is_segment_header,
)
from headrace.storage.native_records import Array, SegmentIndex, SubjectIndex
from headrace.storage.segments.column_file import (
    ColumnFileId,
    decode_columns,
    decode_subjects,
    reader_of,
)
from headrace.storage.snapshot.manifest import TailRecords


class Rows:
    """The arrays of a run, one entry per record; `subject` has ids, `blocks` the offset of each block."""

    __slots__ = ("blocks", "offset", "seq", "subject", "time", "ttl")

    def __init__(self, columns: SegmentIndex, blocks: Iterable[int]) -> None:
        self.time, self.offset, _size, self.subject, self.ttl, _flags, delta = columns.to_arrays()
        steps = np.arange(len(self.time), dtype=np.uint64) if delta is None else delta.astype(np.uint64)
        self.seq: Array = np.uint64(columns.base) + steps
        self.blocks = np.array(blocks, np.int64)


class PinnedSubjects:
    """The subjects of a pin in the order of their ids, and the checksums of the first ones, as in column files."""

    def __init__(self, names: list[bytes]) -> None:
        self.names = names
        self._crcs = {0: 0}  # number of subjects -> checksum

    def compute_crc(self, count: int) -> int:
        """Return the checksum of the first subjects. Segments need few different ones, and each adds to another."""
        found = self._crcs.get(count)
        if found is None:
            known = max(each for each in list(self._crcs) if each < count)
            index = SubjectIndex()
            for name in self.names[known:count]:
                index.add(name)
            found = self._crcs[count] = crc32(index.dump(0, len(index)), self._crcs[known])
        return found


class ColumnCache(NamedTuple):
    """Content of a segment's column file (empty if there is none), and the subjects that its ids refer to."""

    columns: memoryview
    generation: int
    subjects: PinnedSubjects


class SegmentId(NamedTuple):
    """The store, stream and segment that bytes must belong to, and the name for error messages."""

    store_id: int
    ident: int
    name: str


def load_rows(cache: ColumnCache, segment_id: SegmentId, state: SegmentState) -> Rows | None:
    """Return the rows of a segment, or None unless the cache is complete, intact and matches the segment."""
    file_id = ColumnFileId(segment_id.store_id, segment_id.ident, state.number, state.end, cache.generation)
    found = decode_columns(reader_of(cache.columns), len(cache.columns), file_id)
    if found is None or found.columns.rows != state.rows or found.subject_count > len(cache.subjects.names):
        return None
    if (
        found.subjects_crc is not None
        and cache.subjects.compute_crc(found.subject_count) != found.subjects_crc
    ):
        return None  # the subjects file was written again, with other ids
    return Rows(found.columns, found.blocks)


class RecordRun:
    """Records in one buffer. `live` is None if every row is live; `subjects` is what its ids refer to."""

    def __init__(self, data: memoryview, rows: Rows, live: Array | None, subjects: list[bytes]) -> None:
        self.data = data
        self.rows = rows
        self.live = live
        self.subjects = subjects

    def open_reader(self) -> RecordReader:
        """Return a reader of the records, for one pass over them."""
        return RecordReader(self.data)


class RecordReader:
    """Provides the bytes of records."""

    def __init__(self, data: memoryview) -> None:
        self.data = data

    def load(self, offsets: Array) -> memoryview:
        """Return a buffer that has the records at `offsets`; raise CorruptData unless they are as they were written."""
        return self.data


class TailRun(RecordRun):
    """Records that were in no file yet; the manifest that contains them has its own checksum."""

    def __init__(self, tail_records: TailRecords) -> None:
        data = memoryview(tail_records.records)
        rows, subjects = scan_records(
            data, f"the records {tail_records.first_seq} to {tail_records.last_seq}"
        )
        super().__init__(data, rows, unpack_live_bits(tail_records.live, len(rows.seq)), subjects)


class SegmentRun(RecordRun):
    """A segment up to its committed end; a block is verified when it is first read."""

    def __init__(
        self,
        data: memoryview,
        rows: Rows,
        live: Array | None,
        subjects: list[bytes],
        seed: int,
        name: str,
    ) -> None:
        super().__init__(data, rows, live, subjects)
        self._seed = seed
        self._name = name

    def open_reader(self) -> RecordReader:
        return SegmentReader(self.data, self.rows.blocks, self._seed, self._name)


class SegmentReader(RecordReader):
    """Verifies each block when it is first read.

    Plain blocks are read where they are. From the first compressed block on, the records are copied to memory, each at
    its offset in the segment. Only one pass keeps that memory, so a read of many segments needs that of one.
    """

    def __init__(self, source: memoryview, blocks: Array, seed: int, name: str) -> None:
        super().__init__(source)
        self._source = source
        self._blocks = blocks
        self._seed = seed
        self._name = name
        self._loaded = np.zeros(len(blocks), bool)

    def load(self, offsets: Array) -> memoryview:
        if len(offsets) == 0:
            return self.data
        touched = np.searchsorted(self._blocks, offsets, side="right") - 1
        blocks_read = touched[np.concatenate(([True], touched[1:] != touched[:-1]))]
        for number in blocks_read[~self._loaded[blocks_read]].tolist():
            self._load_block(number)
        return self.data

    def _load_block(self, number: int) -> None:
        block = open_sound_block(self._source, int(self._blocks[number]), self._seed, self._name)
        if block.data is not self._source and self.data is self._source:
            self.data = memoryview(mmap.mmap(-1, max(len(self._source), 1)))
            for earlier in np.flatnonzero(self._loaded).tolist():
                self._copy(open_sound_block(self._source, int(self._blocks[earlier]), self._seed, self._name))
        if self.data is not self._source:
            self._copy(block)
        self._loaded[number] = True

    def _copy(self, block: OpenedBlock) -> None:
        start, length = block.header.offset + BLOCK_HEADER_BYTES, block.header.length
        if start + length > len(self.data):
            raise CorruptData(f"{self._name}: the block at {block.header.offset} is longer than the segment")
        self.data[start : start + length] = block.data[block.start : block.start + length]


def open_sound_block(data: memoryview, offset: int, seed: int, name: str) -> OpenedBlock:
    """Return the block at an offset of a segment; raise CorruptData if it is damaged."""
    block = open_block(data, offset, seed, offset)
    if block is None:
        raise CorruptData(
            f"{name}: the block at {offset} is damaged; run `headrace fsck` to see what is lost"
        )
    return block


def open_segment(
    data: memoryview, cache: ColumnCache, segment_id: SegmentId, state: SegmentState
) -> SegmentRun:
    """Open a pinned segment. Columns are a cache: if they are missing or bad they are rebuilt from the blocks."""
    header = bytes(data[:SEGMENT_HEADER_BYTES])
    if not is_segment_header(header, segment_id.store_id, segment_id.ident, state.number):
        raise CorruptData(f"{segment_id.name}: the file is another segment, or its header is damaged")
    data = data[: state.end]
    seed = compute_segment_seed(segment_id.store_id, segment_id.ident, state.number)
    live = unpack_live_bits(state.live, state.rows)
    subjects = cache.subjects.names
    rows = load_rows(cache, segment_id, state)
    if rows is None:
        rows, subjects = _rebuild_rows(data, seed, state, segment_id.name)
    return SegmentRun(data, rows, live, subjects, seed, segment_id.name)


def _rebuild_rows(data: memoryview, seed: int, state: SegmentState, name: str) -> tuple[Rows, list[bytes]]:
    subjects, columns = SubjectIndex(), SegmentIndex()
    blocks, offset = [], SEGMENT_HEADER_BYTES
    while offset < state.end:
        block = open_sound_block(data, offset, seed, name)
        start = offset + BLOCK_HEADER_BYTES
        if columns.index_block(subjects, block.data, block.start, block.header.length, start) < 0:
            raise CorruptData(f"{name}: invalid records near offset {start}")
        blocks.append(offset)
        offset = align_up(start + block.header.length)
    rows = Rows(columns, blocks)
    if len(rows.seq) != state.rows:
        raise CorruptData(f"{name} has {len(rows.seq)} records instead of {state.rows}")
    return rows, _list_subjects(subjects)


def scan_records(data: memoryview, name: str) -> tuple[Rows, list[bytes]]:
    """Return rows and subject table of the records in a buffer."""
    subjects, columns = SubjectIndex(), SegmentIndex()
    if columns.index_block(subjects, data, 0, len(data), 0) < 0:
        raise CorruptData(f"{name}: invalid records")
    return Rows(columns, [0]), _list_subjects(subjects)


def unpack_live_bits(bits: bytes, rows: int) -> Array | None:
    """Unpack live bits to a mask; None if every row is live."""
    if not bits:
        return None
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=rows).astype(bool)


def read_subjects(table: memoryview) -> PinnedSubjects:
    """Return the subjects, up to the first bad chunk of a table."""
    subjects = SubjectIndex()
    try:
        decode_subjects(table, subjects)
    except ValueError as error:
        raise CorruptData(
            f"the subject table is invalid although its checksum is correct: {error}"
        ) from error
    return PinnedSubjects(_list_subjects(subjects))


def _list_subjects(subjects: SubjectIndex) -> list[bytes]:
    return [subjects.name(number) for number in range(len(subjects))]
