"""A log as it is at this moment, as values that outlive it.

Owns the division of a log into what its files hold and what is still in memory. Invariant: segments and loose
records together are all rows of the log, each once, whatever the lanes of the disk have got to. Must not know
pins, manifests' bytes or Arrow.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.store.log import Log
from headrace.store.manifest import Loose
from headrace.store.records import BLOCK_BYTES
from headrace.store.segments import Buffer, FileSegment, Segment
from headrace.store.states import SegmentState

Held = tuple[FileSegment, SegmentState]


class Captured(NamedTuple):
    """Files to hold on to, with what is to be read of each, and the records that are in none."""

    segments: list[Held]
    loose: list[Loose]


def capture(log: Log) -> Captured:
    """Everything that is admitted now."""
    found = Captured([], [])
    for segment in [*log.sealed, log.active]:
        rows = segment.columns.rows
        if rows:
            _divide(log, segment, _rows_in_file(log, segment), rows, found)
    return found


def _divide(log: Log, segment: Segment, in_file: int, rows: int, found: Captured) -> None:
    columns = segment.columns
    if in_file and isinstance(segment, FileSegment):
        # Blocks follow each other, so what is in the file ends at the latest where the first other one
        # begins.
        end = min(segment.pending, default=segment.end)
        live = columns.live_bits(0, in_file)
        state = SegmentState(segment.number, columns.seq(0), columns.seq(in_file - 1), in_file, end, live)
        found.segments.append((segment, state))
    if in_file < rows:
        records = _records(log, segment, in_file, rows)
        live = columns.live_bits(in_file, rows)
        found.loose.append(Loose(columns.seq(in_file), columns.seq(rows - 1), records, live))


def _rows_in_file(log: Log, segment: Segment) -> int:
    """How many of the first rows are in blocks that the file has."""
    if not isinstance(segment, FileSegment):
        return 0
    if segment.pending:
        return int(segment.columns.lower(segment.pending[min(segment.pending)].first_seq))
    return log.tail_row if segment is log.active else int(segment.columns.rows)


def _records(log: Log, segment: Segment, low: int, high: int) -> bytes:
    """The bytes of the rows from low to high, dead ones too, block after block."""
    offsets, sizes = segment.columns.offset, segment.columns.size
    parts = []
    while low < high:
        offset = int(offsets[low])
        if segment is log.active and offset >= log.block_at:
            data: Buffer = log.tail
            place, beyond = log.block_at + BLOCK_BYTES, high
        else:
            data, place = segment.find(offset)
            beyond = low + int(np.searchsorted(offsets[low:high], segment.after(offset)))
        parts.append(memoryview(data)[offset - place : int(offsets[beyond - 1] + sizes[beyond - 1]) - place])
        low = beyond
    return b"".join(parts)
