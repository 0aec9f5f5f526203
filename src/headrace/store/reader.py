"""A pinned snapshot of a stream, read as Arrow record batches.

Owns which runs a read visits and how rows are cut into batches. Invariant: all rows and only the rows that
were live and committed at the snapshot's position, in sequence order, the same every time; what is damaged
raises `Corrupt` and is never left out in silence. Imports pyarrow; the broker never imports this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from headrace.errors import Corrupt, StoreError
from headrace.store.arrow import COLUMNS, Array, Shape, batch, heads, subject_dictionary
from headrace.store.manifest import Manifest
from headrace.store.runs import Cache, LooseRun, Place, Run, open_segment, read_subjects
from headrace.store.selection import Selection
from headrace.store.states import SegmentState

__all__ = ["COLUMNS", "Mapped", "Selection", "Shape", "Snapshot"]

# Offsets of plain `binary` are 32-bit; this also bounds what one batch holds in memory.
BATCH_BYTES_MAX = 256 << 20


class Mapped(Protocol):
    """What a snapshot needs of a disk."""

    def map(self, path: str) -> memoryview: ...


class _Part:
    """A run that is opened when first needed; its file is mapped already, so its name may vanish."""

    def __init__(self, first: int, last: int, opener: Callable[[], Run]) -> None:
        self.first, self.last = first, last
        self._opener = opener
        self._opened: tuple[Run, pa.Array] | None = None

    def open(self) -> tuple[Run, pa.Array]:
        """The run and its subjects as strings."""
        if self._opened is None:
            run = self._opener()
            self._opened = run, subject_dictionary(run.subjects)
        return self._opened


class Snapshot:
    """The rows of one manifest."""

    def __init__(self, disk: Mapped, manifest: Manifest, release: Callable[[], None] = lambda: None) -> None:
        self.manifest = manifest
        self._release: Callable[[], None] | None = release
        self._chunks = disk.map(manifest.subjects) if manifest.generation >= 0 else memoryview(b"")
        self._subjects: list[bytes] | None = None
        parts = [self._segment_part(disk, state) for state in manifest.segments]
        parts += [_Part(loose.first, loose.last, partial(LooseRun, loose)) for loose in manifest.loose]
        self._parts = sorted(parts, key=lambda part: part.first)

    def batches(self, selection: Selection, shape: Shape, rows_max: int = 65_536) -> Iterator[pa.RecordBatch]:
        """The chosen rows, in sequence order."""
        if self._release is None:
            raise StoreError(f"this reading of {self.manifest.stream} is closed")
        self._refuse_lost(selection)
        for part in self._parts:
            if _overlaps(part.first, part.last, selection):
                run, dictionary = part.open()
                yield from self._run_batches(run, dictionary, selection, shape, rows_max)

    def newest(self, selection: Selection) -> Array:
        """The sequences of the last chosen row of each subject, ascending."""
        last: dict[bytes, int] = {}
        for part in self._parts:
            if _overlaps(part.first, part.last, selection):
                run, _ = part.open()
                low, high, mask = _choose(run, selection, self.manifest.as_of_ns)
                chosen = np.arange(low, high) if mask is None else low + np.flatnonzero(mask)
                # Of several rows of a subject the last one stays, and rows ascend.
                seqs = np.zeros(len(run.subjects), np.uint64)
                seqs[run.rows.subject[chosen]] = run.rows.seq[chosen]
                found = np.flatnonzero(seqs)
                last.update(zip((run.subjects[each] for each in found), seqs[found].tolist(), strict=True))
        return np.sort(np.fromiter(last.values(), np.uint64, len(last)))

    def close(self) -> None:
        """Release what keeps the snapshot on disk."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def _segment_part(self, disk: Mapped, state: SegmentState) -> _Part:
        manifest = self.manifest
        path = manifest.segment(state.number)
        name = f"stream {manifest.stream}, segment {state.number:08x} ({state.base} to {state.last})"
        try:
            data = disk.map(path)
        except OSError as error:
            raise Corrupt(f"{name} cannot be read: {error}") from error
        columns = memoryview(b"")
        if state.number in manifest.columns:
            columns = disk.map(manifest.column_file(state.number))
        place = Place(manifest.store, manifest.ident, name)

        def opener() -> Run:
            return open_segment(data, Cache(columns, manifest.generation, self._table()), place, state)

        return _Part(state.base, state.last, opener)

    def _table(self) -> list[bytes]:
        if self._subjects is None:
            self._subjects = read_subjects(self._chunks)
        return self._subjects

    def _refuse_lost(self, selection: Selection) -> None:
        for damage in self.manifest.lost:
            if _overlaps(damage.first, damage.last, selection):
                raise Corrupt(
                    f"stream {self.manifest.stream}: {damage.what} ({damage.first} to {damage.last} lost). "
                    "Read around them, or let `headrace fsck --accept-loss` drop them"
                )

    def _run_batches(
        self, run: Run, dictionary: pa.Array, selection: Selection, shape: Shape, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        low, high, mask = _choose(run, selection, self.manifest.as_of_ns)
        chosen = np.arange(low, high) if mask is None else low + np.flatnonzero(mask)
        for at in range(0, len(chosen), rows_max):
            some = chosen[at : at + rows_max]
            # A run without gaps is sliced, not gathered.
            where = slice(int(some[0]), int(some[-1]) + 1) if mask is None else some
            offsets = run.rows.offset[where].astype(np.intp)
            run.check(offsets)
            found = heads(run.data, offsets)
            if not np.array_equal(found["seq"], run.rows.seq[where]):
                raise Corrupt(f"stream {self.manifest.stream}: columns and records of a segment disagree")
            ids = run.rows.subject[where]
            for cut in _cuts(found["size"]):
                yield batch(shape, run.data, offsets[cut], found[cut], ids[cut], dictionary)


def _choose(run: Run, selection: Selection, as_of_ns: int) -> tuple[int, int, Array | None]:
    """The span of rows within the bounds, and which of them are wanted (None: all)."""
    rows = run.rows
    low, high = selection.seq_span(rows.seq)
    masks = [] if run.live is None else [run.live[low:high]]
    wanted = selection.subject_mask(run.subjects)
    if wanted is not None:
        masks.append(wanted[rows.subject[low:high]])
    if selection.only is not None:
        masks.append(np.isin(rows.seq[low:high], selection.only))
    alive = selection.row_mask(rows.time[low:high], rows.ttl[low:high], as_of_ns)
    if alive is not None:
        masks.append(alive)
    return low, high, np.logical_and.reduce(masks) if masks else None


def _cuts(sizes: Array) -> Iterator[slice]:
    """Slices of rows that hold at most BATCH_BYTES_MAX each, or one row."""
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
