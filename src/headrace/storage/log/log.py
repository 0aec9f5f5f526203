"""One stream's log: appends, removals and reads of single messages.

Owns the changes. Invariant: `messages`, `bytes`, the first and last sequence and the counts per subject always agree
with the live rows, and every change is recorded for the open frame. Must not know files: `FileLog` and `MemoryLog`
decide where blocks go.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass

import numpy as np

from headrace.errors import CorruptData, StoreError
from headrace.storage.log.filters import Filter
from headrace.storage.log.log_index import LogIndex
from headrace.storage.log.renumbering import Renumbering
from headrace.storage.native_records import (
    BLOCK_HEADER_BYTES,
    Array,
    OpenFrame,
    RecordBlock,
    SegmentIndex,
    decode_record,
)
from headrace.storage.segments.segment import Buffer, Segment
from headrace.storage.sequence_arrays import sort_unique

ROWS_PER_DEAD_SUBJECT = 64  # rows scanned for each dead subject that is dropped, at most
SHORT_RUN_MAX = 64  # shorter removals are replayed one by one, in the compiled core


#: Upper end of all sequences, chosen so that arithmetic on them never overflows.
SEQ_MAX = 1 << 62
#: No sequence that a store writes is above this; the compiled core has the same limit.
SEQ_END = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """How large the parts of a log grow."""

    block_bytes: int  # at most, header included
    segment_bytes: int  # a segment is sealed when it would grow beyond
    segment_rows: int  # ... or holds this many records
    large_bytes: int  # records of this size or more get a block of their own
    subjects_min: int  # dead subjects before they are dropped


class StreamLog(LogIndex):
    """The interface that file and memory logs share; `LogWriter` has `append`, `LogIndex` the queries."""

    def __init__(
        self,
        open_frame: OpenFrame,
        ident: int,
        name: str,
        limits: LogLimits,
        *,
        journaled: bool,
        first_seq: int,
    ) -> None:
        self.name = name
        self.segment_bytes = limits.segment_bytes
        self.segment_rows = limits.segment_rows
        self.subjects_min = limits.subjects_min
        self.is_renumbering = False  # whether subjects are about to get new ids
        #: Ranges (inclusive) that were acknowledged and cannot be read.
        self.lost_ranges: list[tuple[int, int]] = []
        super().__init__(open_frame, ident, limits.block_bytes, limits.large_bytes, journaled, first_seq)

    def set_compression(self, enabled: bool) -> None:
        """Compress new blocks of a log on disk, or stop that; existing blocks stay as they are."""

    # Hooks of subclasses

    def on_block_added(self, segment: Segment, block: RecordBlock) -> None:
        """Called when a block is finished."""

    def on_segment_sealed(self, segment: Segment) -> None:
        """Called when a segment is sealed."""

    def on_segment_dropped(self, segment: Segment) -> None:
        """Called when a segment has no live row left and is no longer part of the log."""

    def on_rows_removed(self, segment: Segment) -> None:
        """Called when some rows of a sealed segment died."""

    def on_corrupt(self, segment: Segment, error: CorruptData) -> None:
        """Called when a block could not be read."""

    def on_subjects_renumbered(self) -> None:
        """Called when subjects have got new ids."""

    # Growing

    def on_block_finished(self, block: RecordBlock) -> None:
        self.blocks.clear()
        segment = self.active_segment
        segment.add_block(block)
        self.on_block_added(segment, block)
        if self.block_offset >= self.segment_bytes or self.columns.rows >= self.segment_rows:
            self.roll_segment()

    def roll_segment(self) -> None:
        """Seal the active segment, if it has rows, and start another; the tail must be empty."""
        segment = self.active_segment
        if not segment.columns.rows:
            return
        self.start_segment()
        self.active_segment = self.make_active_segment()
        if segment.columns.alive:
            self.sealed_segments.append(segment)
            self._first_seqs.append(segment.columns.base)
            self.on_segment_sealed(segment)
        else:
            self.on_segment_dropped(segment)

    def split_segment(self) -> None:
        self.finish_block()
        self.roll_segment()

    def advance(self, seq: int) -> None:
        """Make `seq` + 1 the next sequence; skipped sequences count as deleted."""
        if seq <= self.last_seq:
            return
        if seq > SEQ_MAX:
            raise StoreError(f"sequence {seq} is above the maximum ({SEQ_MAX})")
        self.last_seq = seq
        if not self.messages:
            self.first_seq = seq + 1
        self.record_advance(seq)
        self.mark_dirty()

    # Removing

    def remove(self, seq: int) -> bool:
        segment = self._segment_for(seq)
        if segment is None:
            return False
        row = segment.columns.find_live_row(seq)
        if row < 0:
            return False
        self.subtract_rows(segment.columns, row, row + 1)
        self.record_removals(seq, seq)
        self._after_removal(segment)
        self.mark_dirty()
        return True

    def remove_many(self, seqs: Iterable[int] | Array) -> int:
        remaining = seqs if isinstance(seqs, np.ndarray) else np.fromiter(seqs, np.uint64)
        remaining = remaining.astype(np.uint64, copy=False)
        if np.any(remaining[1:] <= remaining[:-1]):
            remaining = sort_unique(remaining)
        remaining = remaining[np.searchsorted(remaining, np.uint64(self.first_seq)) :]
        removed = 0
        while len(remaining):
            segment, end = self._locate(int(remaining[0]))
            end_index = int(np.searchsorted(remaining, np.uint64(end))) if end else len(remaining)
            if segment is not None:
                dead_count = self.subtract_seqs(segment.columns, np.ascontiguousarray(remaining[:end_index]))
                removed += dead_count
                if dead_count:
                    self._after_removal(segment)
            remaining = remaining[end_index:]
        if removed:
            self.mark_dirty()
        return removed

    def replay_removals(self, runs: Array) -> None:
        """Replay removals, given as pairs of first and last sequence."""
        lengths = runs[:, 1] - runs[:, 0]
        short = runs[lengths < SHORT_RUN_MAX]
        steps = (short[:, 1] - short[:, 0] + np.uint64(1)).astype(np.int64)
        starts = np.repeat(short[:, 0], steps)
        run_offsets = np.arange(len(starts)) - np.repeat(np.cumsum(steps) - steps, steps)
        self.remove_many(starts + run_offsets.astype(np.uint64))
        for first, last in runs[lengths >= SHORT_RUN_MAX].tolist():
            for segment in list(self.iter_segments_from(first)):
                columns = segment.columns
                if columns.base > last:
                    break
                self.subtract_rows(columns, columns.lower_bound(first), columns.lower_bound(last + 1))
                self._after_removal(segment)

    def remove_below(self, seq: int) -> int:
        """Remove everything below `seq`; an empty log continues at `seq` if that is higher."""
        if seq <= self.first_seq:
            return 0
        before = self.messages
        if seq > self.last_seq:
            self._remove_all(seq)
        else:
            self._remove_before(seq)
        self.record_trim(seq)
        self.mark_dirty()
        return before - self.messages

    def _remove_all(self, seq: int) -> None:
        self.subject_index.clear()
        self.messages = self.bytes = 0
        for segment in self.sealed_segments:
            self._filters.drop_segment(segment.number)
            self.on_segment_dropped(segment)
        self.sealed_segments, self._first_seqs = [], []
        if self.columns.rows:
            self.columns.tombstone_all()
        self.last_seq = max(self.last_seq, seq - 1)
        self.first_seq = self.last_seq + 1

    def _remove_before(self, seq: int) -> None:
        for segment in list(self.iter_segments_from(self.first_seq)):
            columns = segment.columns
            if columns.base >= seq:
                break
            self.subtract_rows(columns, columns.lower_bound(self.first_seq), columns.lower_bound(seq))
            self._after_removal(segment)
        if self.messages and self.first_seq < seq:
            self.first_seq = self._find_first_live(seq)

    def _after_removal(self, segment: Segment) -> None:
        """Update the first sequence and drop empty segments after rows of a segment died."""
        if not self.messages:
            self.first_seq = self.last_seq + 1
        elif self._find_live_segment(self.first_seq) is None:
            self.first_seq = self._find_first_live(self.first_seq + 1)
        if segment is self.active_segment:
            return
        if segment.columns.alive:
            self.on_rows_removed(segment)
        else:
            self.replace_segments([segment], [])
            self.on_segment_dropped(segment)

    @property
    def has_many_dead_subjects(self) -> bool:
        """Whether most known subjects have no live message, and enough of them to be worth a scan of every row."""
        dead_count = len(self.subject_index) - self.num_subjects
        if dead_count < self.subjects_min or dead_count <= self.num_subjects:
            return False
        rows = sum(segment.columns.rows for segment in (*self.sealed_segments, self.active_segment))
        return dead_count * ROWS_PER_DEAD_SUBJECT >= rows

    def drop_dead_subjects(self) -> None:
        """Drop subjects without a live message; the others get new ids."""
        for _ in self.iter_drop_dead_subjects():
            pass

    def iter_drop_dead_subjects(self) -> Generator[None, None, None]:
        """Drop subjects without a live message, in slices; the others get new ids, all in the last slice.

        Must not continue while a message is being appended. Until the end, no rows may be copied to other segments.
        """
        self.is_renumbering = True
        try:
            renumbering = Renumbering(self.subject_index)
            yield from renumbering.iter_prepare(self._list_sealed_columns)
            self._renumber(renumbering)
        finally:
            self.is_renumbering = False

    def _list_sealed_columns(self) -> list[SegmentIndex]:
        return [segment.columns for segment in self.sealed_segments]

    def _renumber(self, renumbering: Renumbering) -> None:
        self._filters.refresh()
        renumbering.finish(self._list_sealed_columns(), self.columns)
        self._filters.on_subjects_remapped()
        for listener in self.id_listeners:
            listener.on_subjects_remapped(renumbering.new_ids, renumbering.kept)
        self.on_subjects_renumbered()

    def replace_segments(self, old: list[Segment], new: list[Segment]) -> None:
        """Replace adjacent sealed segments by others with the same sequences."""
        at = self.sealed_segments.index(old[0])
        self.sealed_segments[at : at + len(old)] = new
        self._first_seqs[at : at + len(old)] = [segment.columns.base for segment in new]
        for segment in old:
            self._filters.drop_segment(segment.number)

    # One message

    def get(self, seq: int) -> tuple[int, bytes, bytes, bytes, int] | None:
        """Return (time_ns, subject, header, payload, ttl_s).

        Returns None if it is absent; raises `CorruptData` if it is present but unreadable.
        """
        found = self.locate_record(seq)
        if found is None:
            return None
        try:
            return decode_record(*found)
        except ValueError:
            raise CorruptData(
                f"sequence {seq} of stream {self.name} is not at its offset in the segment; run headrace fsck"
            ) from None

    def locate_record(self, seq: int) -> tuple[Buffer, int] | None:
        """Return the buffer with a record and its offset there; None if it is absent."""
        segment = self._segment_for(seq)
        row = segment.columns.find_live_row(seq) if segment is not None else -1
        if segment is None or row < 0:
            self._raise_if_lost(seq)
            return None
        offset = segment.columns.get_offset(row)
        data, start = self._read_block_at(segment, offset)
        return data, offset - start

    def match_subjects(self, subject_filter: Filter | None, subject_ids: Array) -> Array:
        """Return which of these subjects a filter matches."""
        mask = self._get_mask(subject_filter)
        if mask is None:
            return np.ones(len(subject_ids), bool)
        matches: Array = mask[self.subject_index.classes[subject_ids]] != 0
        return matches

    def read_view(self, seq: int, max_bytes: int) -> tuple[memoryview, int]:
        """Return raw contiguous records from `seq` on, dead ones included, and their number.

        At least one record whatever its size; empty if `seq` has no live record.
        """
        segment = self._find_live_segment(seq)
        if segment is None:
            self._raise_if_lost(seq)
            return memoryview(b""), 0
        columns = segment.columns
        row = columns.find_row(seq)
        offset = columns.get_offset(row)
        data, base_offset = self._read_block_at(segment, offset)
        rows = columns.rows
        in_tail = segment is self.active_segment and offset >= self.block_offset
        # Not `len(data)`: a buffer that was finished early is larger than its records.
        end_row = rows if in_tail else columns.find_offset(segment.find_block_end(offset), row, rows)
        last_row = row + _count_fitting(columns, row, end_row, offset + max_bytes) - 1
        end = columns.get_end(last_row)
        return memoryview(data)[offset - base_offset : end - base_offset], last_row + 1 - row

    def read_active_block(self, offset: int) -> tuple[Buffer, int]:
        """Return the block of the active segment that contains an offset, and the position of its first byte."""
        return self._read_block_at(self.active_segment, offset)

    def _read_block_at(self, segment: Segment, offset: int) -> tuple[Buffer, int]:
        if segment is self.active_segment and offset >= self.block_offset:
            return self.tail, self.block_offset + BLOCK_HEADER_BYTES
        try:
            return segment.read_block_at(offset)
        except CorruptData as error:
            self.on_corrupt(segment, error)
            raise

    def _raise_if_lost(self, seq: int) -> None:
        for first, last in self.lost_ranges:
            if first <= seq <= last:
                raise CorruptData(
                    f"sequence {seq} of stream {self.name} was lost; run headrace fsck for details"
                )


def _count_fitting(columns: SegmentIndex, row: int, end_row: int, end_max: int) -> int:
    """Return how many contiguous records from `row` on end at `end_max` or before, at least one."""
    started = columns.find_offset(end_max + 1, row, end_row) - row
    is_cut = started and columns.get_end(row + started - 1) > end_max
    return max(started - 1 if is_cut else started, 1)
