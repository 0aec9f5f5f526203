"""Runs: records that lie in one buffer, with their columns, as a reader sees them.

Owns the way from a pinned segment (or the records behind the last one) to arrays of rows, and the check that
the bytes are those that were written: each block once, before its first row is handed out. Invariant: a row
comes out right or `Corrupt` is raised. Must not know pins, leases or Arrow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from headrace.errors import Corrupt
from headrace.store.columnfile import Identity, decode_columns, decode_subjects, reader_of
from headrace.store.format import (
    BLOCK_BYTES,
    SEGMENT_HEADER_BYTES,
    aligned,
    identity,
    is_segment,
    open_block,
)
from headrace.store.manifest import Loose
from headrace.store.records import Array, Columns, Subjects
from headrace.store.states import SegmentState


class Rows:
    """The arrays of a run, one entry a record; `subject` holds ids, `blocks` the offset of each block."""

    __slots__ = ("blocks", "offset", "seq", "subject", "time", "ttl")

    def __init__(self, columns: Columns, blocks: Iterable[int]) -> None:
        self.time, self.offset, _size, self.subject, self.ttl, _flags, delta = columns.trimmed()
        steps = np.arange(len(self.time), dtype=np.uint64) if delta is None else delta.astype(np.uint64)
        self.seq: Array = np.uint64(columns.base) + steps
        self.blocks = np.array(blocks, np.int64)


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


def open_rows(cache: Cache, place: Place, state: SegmentState) -> Rows | None:
    """The rows of a segment, or None if the cache is not a whole, good and fitting set of columns."""
    who = Identity(place.store, place.ident, state.number, state.end, cache.generation)
    found = decode_columns(reader_of(cache.columns), len(cache.columns), who)
    if found is None or found.columns.rows != state.rows or found.subjects > len(cache.subjects):
        return None
    return Rows(found.columns, found.blocks)


class Run:
    """Records in one buffer. `live` is None where every row lives; `subjects` is what its ids refer to."""

    def __init__(self, data: memoryview, rows: Rows, live: Array | None, subjects: list[bytes]) -> None:
        self.data = data
        self.rows = rows
        self.live = live
        self.subjects = subjects

    def check(self, offsets: Array) -> None:
        """Raises Corrupt unless the records at `offsets` are as they were written."""


class LooseRun(Run):
    """Records that were in no file yet; the manifest that carries them has its own checksum."""

    def __init__(self, loose: Loose) -> None:
        data = memoryview(loose.records)
        rows, subjects = scan(data, [(0, len(data))], f"the records {loose.first} to {loose.last}")
        super().__init__(data, rows, live_rows(loose.live, len(rows.seq)), subjects)


class SegmentRun(Run):
    """A segment up to its committed end; blocks are verified when first read from."""

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
        self._good = np.zeros(len(rows.blocks), bool)

    def check(self, offsets: Array) -> None:
        blocks = self.rows.blocks
        if len(offsets) == 0:
            return
        touched = np.searchsorted(blocks, offsets, side="right") - 1
        doubtful = touched[np.concatenate(([True], touched[1:] != touched[:-1]))]
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
    if not is_segment(header, place.store, place.ident, state.number):
        raise Corrupt(f"{place.name} is not the segment it should be")
    data = data[: state.end]
    seed = identity(place.store, place.ident, state.number)
    live = live_rows(state.live, state.rows)
    subjects = cache.subjects
    rows = open_rows(cache, place, state)
    if rows is None:
        rows, subjects = _rebuild(data, seed, state, place.name)
    return SegmentRun(data, rows, live, subjects, seed, place.name)


def _rebuild(data: memoryview, seed: int, state: SegmentState, name: str) -> tuple[Rows, list[bytes]]:
    spans, at = [], SEGMENT_HEADER_BYTES
    while at < state.end:
        block = open_block(data, at, seed, at)
        if block is None:
            raise Corrupt(f"{name}: the block at {at} is damaged; `headrace fsck` says what is lost")
        spans.append((at + BLOCK_BYTES, block.length))
        at = aligned(at + BLOCK_BYTES + block.length)
    rows, subjects = scan(data, spans, name)
    if len(rows.seq) != state.rows:
        raise Corrupt(f"{name} holds {len(rows.seq)} records instead of {state.rows}")
    return rows, subjects


def scan(data: memoryview, spans: list[tuple[int, int]], name: str) -> tuple[Rows, list[bytes]]:
    """Rows and subject table of the records within some spans (start, length) of a buffer."""
    subjects, columns = Subjects(), Columns()
    for start, length in spans:
        if columns.scan(subjects, data, start, length, start) < 0:
            raise Corrupt(f"{name} holds something that is no record, near {start}")
    return Rows(columns, [start - BLOCK_BYTES for start, _ in spans]), _names(subjects)


def live_rows(bits: bytes, rows: int) -> Array | None:
    """Live bits as a mask; none at all means that every row lives."""
    if not bits:
        return None
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=rows).astype(bool)


def read_subjects(table: memoryview) -> list[bytes]:
    """The subjects in order of their id, as far as the chunks of a table are good."""
    subjects = Subjects()
    try:
        decode_subjects(table, subjects)
    except ValueError as error:
        raise Corrupt(f"the table of subjects is not one that a store wrote: {error}") from error
    return _names(subjects)


def _names(subjects: Subjects) -> list[bytes]:
    return [subjects.name(number) for number in range(len(subjects))]
