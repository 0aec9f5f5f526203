"""Reads a pinned snapshot of a stream as Arrow record batches.

Owns which runs a read visits and how rows are split into batches. Invariant: a read returns exactly the rows that were
live and committed at the snapshot's position, in sequence order, the same every time; damaged data raises `CorruptData`
and is never left out silently. Imports pyarrow; the broker never imports this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from headrace.errors import CorruptData, StoreError
from headrace.storage.checkpoint_schema import SegmentState
from headrace.storage.snapshot.arrow import (
    COLUMNS,
    Array,
    ArrowLayout,
    gather_headers,
    make_batch,
    make_subject_dictionary,
)
from headrace.storage.snapshot.manifest import Manifest
from headrace.storage.snapshot.record_runs import (
    ColumnCache,
    PinnedSubjects,
    RecordRun,
    SegmentId,
    TailRun,
    open_segment,
    read_subjects,
)
from headrace.storage.snapshot.selection import Selection

__all__ = ["COLUMNS", "ArrowLayout", "MappableDisk", "Selection", "StreamSnapshot"]

# Offsets of plain `binary` are 32-bit; this also bounds the memory of one batch.
BATCH_BYTES_MAX = 256 << 20


class MappableDisk(Protocol):
    """What a snapshot needs from a disk."""

    def map(self, path: str) -> memoryview: ...


class _LazyRun:
    """A run that is opened on first use; its file is mapped already, so its name may disappear."""

    def __init__(self, first: int, last: int, open_run: Callable[[], RecordRun]) -> None:
        self.first_seq, self.last_seq = first, last
        self._open_run = open_run
        self._opened: tuple[RecordRun, pa.Array] | None = None

    def open(self) -> tuple[RecordRun, pa.Array]:
        """Return the run and its subjects as strings."""
        if self._opened is None:
            run = self._open_run()
            self._opened = run, make_subject_dictionary(run.subjects)
        return self._opened


class StreamSnapshot:
    """The rows of one manifest."""

    def __init__(
        self, disk: MappableDisk, manifest: Manifest, on_close: Callable[[], None] | None = None
    ) -> None:
        self.manifest = manifest
        self._on_close = on_close
        self._closed = False
        self._subjects_file = (
            disk.map(manifest.subjects_path) if manifest.generation >= 0 else memoryview(b"")
        )
        self._subjects: PinnedSubjects | None = None
        lazy_runs = [self._make_segment_run(disk, state) for state in manifest.segments]
        lazy_runs += [
            _LazyRun(tail_records.first_seq, tail_records.last_seq, partial(TailRun, tail_records))
            for tail_records in manifest.loose
        ]
        self._runs = sorted(lazy_runs, key=lambda lazy_run: lazy_run.first_seq)

    def batches(
        self, selection: Selection, layout: ArrowLayout, rows_max: int = 65_536
    ) -> Iterator[pa.RecordBatch]:
        """Yield the selected rows, in sequence order."""
        if self._closed:
            raise StoreError(f"this snapshot of stream {self.manifest.stream} is closed")
        self._raise_if_lost(selection)
        for lazy_run in self._runs:
            if _overlaps(lazy_run.first_seq, lazy_run.last_seq, selection):
                run, dictionary = lazy_run.open()
                yield from self._make_batches(run, dictionary, selection, layout, rows_max)

    def find_last_per_subject(self, selection: Selection) -> Array:
        """Return the sequences of the last selected row of each subject, ascending."""
        last: dict[bytes, int] = {}
        for lazy_run in self._runs:
            if _overlaps(lazy_run.first_seq, lazy_run.last_seq, selection):
                run, _ = lazy_run.open()
                low, high, mask = _select_rows(run, selection, self.manifest.as_of_ns)
                rows = np.arange(low, high) if mask is None else low + np.flatnonzero(mask)
                # Rows ascend, so the last row of a subject overwrites the earlier ones.
                seqs = np.zeros(len(run.subjects), np.uint64)
                seqs[run.rows.subject[rows]] = run.rows.seq[rows]
                found = np.flatnonzero(seqs)
                last.update(zip((run.subjects[each] for each in found), seqs[found].tolist(), strict=True))
        return np.sort(np.fromiter(last.values(), np.uint64, len(last)))

    def close(self) -> None:
        """Release what keeps the snapshot on disk."""
        self._closed = True
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def _make_segment_run(self, disk: MappableDisk, state: SegmentState) -> _LazyRun:
        manifest = self.manifest
        path = manifest.segment_path(state.number)
        name = f"stream {manifest.stream}, segment {state.number:08x} ({state.first_seq} to {state.last_seq})"
        try:
            data = disk.map(path)
        except OSError as error:
            raise CorruptData(f"{name} cannot be read: {error}") from error
        columns = memoryview(b"")
        if state.number in manifest.columns:
            columns = disk.map(manifest.columns_path(state.number))
        segment_id = SegmentId(manifest.store, manifest.ident, name)

        def open_run() -> RecordRun:
            return open_segment(
                data, ColumnCache(columns, manifest.generation, self._get_subjects()), segment_id, state
            )

        return _LazyRun(state.first_seq, state.last_seq, open_run)

    def _get_subjects(self) -> PinnedSubjects:
        if self._subjects is None:
            self._subjects = read_subjects(self._subjects_file)
        return self._subjects

    def _raise_if_lost(self, selection: Selection) -> None:
        for damage in self.manifest.lost:
            if _overlaps(damage.first_seq, damage.last_seq, selection):
                raise CorruptData(
                    f"stream {self.manifest.stream}: {damage.description} ({damage.first_seq} to {damage.last_seq} lost). "
                    "Exclude them from the read, or drop them with `headrace fsck --accept-loss`"
                )

    def _make_batches(
        self, run: RecordRun, dictionary: pa.Array, selection: Selection, layout: ArrowLayout, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        low, high, mask = _select_rows(run, selection, self.manifest.as_of_ns)
        rows = np.arange(low, high) if mask is None else low + np.flatnonzero(mask)
        reader = run.open_reader()
        for at in range(0, len(rows), rows_max):
            selected = rows[at : at + rows_max]
            # A run without gaps is sliced, not gathered.
            index = slice(int(selected[0]), int(selected[-1]) + 1) if mask is None else selected
            offsets = run.rows.offset[index].astype(np.intp)
            data = reader.load(offsets)
            found = gather_headers(data, offsets)
            if not np.array_equal(found["seq"], run.rows.seq[index]):
                raise CorruptData(
                    f"stream {self.manifest.stream}: columns and records of a segment do not match"
                )
            ids = run.rows.subject[index]
            for cut in _split_by_bytes(found["size"]):
                yield make_batch(layout, data, offsets[cut], found[cut], ids[cut], dictionary)


def _select_rows(run: RecordRun, selection: Selection, as_of_ns: int) -> tuple[int, int, Array | None]:
    """Return the span of rows within the bounds, and a mask of those selected (None: all)."""
    rows = run.rows
    low, high = selection.seq_span(rows.seq)
    masks = [] if run.live is None else [run.live[low:high]]
    subject_mask = selection.subject_mask(run.subjects)
    if subject_mask is not None:
        masks.append(subject_mask[rows.subject[low:high]])
    if selection.only_seqs is not None:
        masks.append(np.isin(rows.seq[low:high], selection.only_seqs))
    alive = selection.row_mask(rows.time[low:high], rows.ttl[low:high], as_of_ns)
    if alive is not None:
        masks.append(alive)
    return low, high, np.logical_and.reduce(masks) if masks else None


def _split_by_bytes(sizes: Array) -> Iterator[slice]:
    """Yield slices of rows with at most BATCH_BYTES_MAX bytes each, or one row."""
    ends = np.cumsum(sizes, dtype=np.int64)
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + BATCH_BYTES_MAX, side="right")))
        yield slice(start, stop)
        start = stop


def _overlaps(first: int, last: int, selection: Selection) -> bool:
    below = selection.end_seq is not None and first >= selection.end_seq
    above = selection.first_seq is not None and last < selection.first_seq
    return not below and not above
