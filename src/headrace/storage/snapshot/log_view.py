"""Captures a log at one moment as values that outlive it.

Owns the split of a log into what its files contain and what is still in memory. Invariant: segments and tail records
together are all rows of the log, each once, however far the disk queues have got. Must not know pins, the encoding of
manifests, or Arrow.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.storage.checkpoint_schema import SegmentState
from headrace.storage.log.log import StreamLog
from headrace.storage.native_records import BLOCK_HEADER_BYTES
from headrace.storage.segments.segment import Buffer, FileSegment, Segment
from headrace.storage.snapshot.manifest import TailRecords

PinnedSegment = tuple[FileSegment, SegmentState]


class LogView(NamedTuple):
    """Files to pin, with the part to read of each, and the records that are in no file."""

    segments: list[PinnedSegment]
    tail_records: list[TailRecords]


def make_log_view(log: StreamLog) -> LogView:
    """Capture everything that is admitted now."""
    view = LogView([], [])
    for segment in [*log.sealed_segments, log.active_segment]:
        rows = segment.columns.rows
        if rows:
            _add_segment(log, segment, _count_rows_in_file(log, segment), rows, view)
    return view


def _add_segment(log: StreamLog, segment: Segment, in_file: int, rows: int, view: LogView) -> None:
    columns = segment.columns
    if in_file and isinstance(segment, FileSegment):
        # Blocks are contiguous, so the part in the file ends at the latest where the first block that is not written
        # begins.
        end = min(segment.pending, default=segment.end)
        live = columns.live_bits(0, in_file)
        state = SegmentState(segment.number, columns.seq(0), columns.seq(in_file - 1), in_file, end, live)
        view.segments.append((segment, state))
    if in_file < rows:
        records = _copy_records(log, segment, in_file, rows)
        live = columns.live_bits(in_file, rows)
        view.tail_records.append(TailRecords(columns.seq(in_file), columns.seq(rows - 1), records, live))


def _count_rows_in_file(log: StreamLog, segment: Segment) -> int:
    """Count the leading rows whose blocks are in the file."""
    if not isinstance(segment, FileSegment):
        return 0
    if segment.pending:
        return int(segment.columns.lower_bound(segment.pending[min(segment.pending)].first_seq))
    return log.tail_row if segment is log.active_segment else int(segment.columns.rows)


def _copy_records(log: StreamLog, segment: Segment, low: int, high: int) -> bytes:
    """Copy the bytes of the rows from low to high, dead ones included, block by block."""
    columns, parts = segment.columns, []
    while low < high:
        offset = columns.get_offset(low)
        if segment is log.active_segment and offset >= log.block_offset:
            data: Buffer = log.tail
            base_offset, end_row = log.block_offset + BLOCK_HEADER_BYTES, high
        else:
            data, base_offset = segment.read_block_at(offset)
            end_row = columns.find_offset(segment.find_block_end(offset), low, high)
        parts.append(memoryview(data)[offset - base_offset : columns.get_end(end_row - 1) - base_offset])
        low = end_row
    return b"".join(parts)
