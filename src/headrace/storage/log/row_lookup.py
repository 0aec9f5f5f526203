"""Looks up rows of ascending sequences, whole arrays at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.storage.native_records import SegmentIndex
from headrace.storage.sequence_arrays import NO_SEQS, Seqs


def find_live_rows(columns: SegmentIndex, seqs: Seqs) -> tuple[Seqs, npt.NDArray[np.intp]]:
    """Return those of ascending sequences that have a message in these columns, and their rows."""
    if not columns.rows:
        return NO_SEQS, np.empty(0, np.intp)
    count = len(seqs)
    is_run = count > 0 and int(seqs[-1]) - int(seqs[0]) == count - 1
    if is_run and columns.live is None and (seqs[1:] > seqs[:-1]).all():
        row = columns.lower_bound(int(seqs[0]))
        end = row + count
        if end <= columns.rows and columns.seq(row) == seqs[0] and columns.seq(end - 1) == seqs[-1]:
            return seqs, np.arange(row, end)  # without a gap: rows follow each other like the sequences
    last = columns.seq(columns.rows - 1)
    lo, hi = np.searchsorted(seqs, np.array([columns.base, last + 1], np.uint64))
    part = seqs[lo:hi]
    rows = columns.find_rows(part)
    is_live = rows < columns.rows
    rows[~is_live] = 0
    is_live &= columns.get_seqs(rows) == part
    if columns.live is not None:
        is_live &= columns.live[rows] != 0
    return part[is_live], rows[is_live]
