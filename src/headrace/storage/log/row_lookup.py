"""Looks up rows of ascending sequences, whole arrays at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from headrace.storage.native_records import SegmentIndex
from headrace.storage.sequence_arrays import NO_SEQS, Seqs


def find_rows(columns: SegmentIndex, seqs: Seqs) -> npt.NDArray[np.intp]:
    """Return the row of each sequence, or where it would be."""
    steps = seqs - np.uint64(columns.base)
    if columns.delta is None:
        return steps.astype(np.intp)
    delta = columns.delta[: columns.rows]
    # Of the column's own type: otherwise NumPy would copy the whole column as uint64.
    bounded = np.minimum(steps, np.iinfo(delta.dtype).max).astype(delta.dtype)
    rows: npt.NDArray[np.intp] = np.searchsorted(delta, bounded)
    return rows


def find_live_rows(columns: SegmentIndex, seqs: Seqs) -> tuple[Seqs, npt.NDArray[np.intp]]:
    """Return those of ascending sequences that have a message in these columns, and their rows."""
    if not columns.rows:
        return NO_SEQS, np.empty(0, np.intp)
    last = columns.seq(columns.rows - 1)
    lo, hi = np.searchsorted(seqs, np.array([columns.base, last + 1], np.uint64))
    part = seqs[lo:hi]
    rows = find_rows(columns, part)
    is_live = rows < columns.rows
    rows[~is_live] = 0
    if columns.delta is not None:
        is_live &= columns.delta[rows] == part - np.uint64(columns.base)
    if columns.live is not None:
        is_live &= columns.live[rows] != 0
    return part[is_live], rows[is_live]
