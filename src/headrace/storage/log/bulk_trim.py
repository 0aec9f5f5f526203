"""Finds what to remove when a limit is lowered far below what a log has: over whole columns, a slice of rows at a time.

Owns no state: each call looks at the log as it is now, so messages may come and go between two slices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.storage.sequence_arrays import NO_SEQS, Seqs

if TYPE_CHECKING:
    from headrace.storage.log.log_index import LogIndex


def find_over_subject_limit(log: LogIndex, limit: int, first_seq: int, rows_max: int) -> tuple[Seqs, int]:
    """Find the oldest messages of subjects that have more than `limit`, in about `rows_max` rows from `first_seq` on.

    Returns their sequences and where to continue; 0 if nothing is left.
    """
    counts = log.subject_index.counts
    for segment in log.iter_segments_from(max(first_seq, log.first_seq)):
        columns = segment.columns
        lo = columns.lower_bound(first_seq)
        hi = min(lo + rows_max, columns.rows)
        if lo >= hi:
            continue
        over = counts[columns.get_subjects(np.arange(lo, hi))] > limit
        if columns.live is not None:
            over &= columns.live[lo:hi] != 0
        rows = np.flatnonzero(over) + lo
        subjects = columns.get_subjects(rows)
        rows = rows[_rank_within(subjects) < counts[subjects].astype(np.int64) - limit]
        return columns.get_seqs(rows), columns.seq(hi - 1) + 1
    return NO_SEQS, 0


def _rank_within(groups: np.ndarray) -> np.ndarray:
    """Return for each element how many equal ones come before it."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))) if len(ordered) else order
    lengths = np.diff(np.concatenate((starts, [len(ordered)])))
    ranks = np.empty(len(groups), np.int64)
    ranks[order] = np.arange(len(groups)) - np.repeat(starts, lengths)
    return ranks


def find_cut_for_bytes(log: LogIndex, excess_bytes: int, rows_max: int) -> int:
    """Return the sequence below which the oldest messages must go so that at least `excess_bytes` become free.

    Looks at about `rows_max` rows; if these do not suffice, returns the sequence after them.
    """
    for segment in log.iter_segments_from(log.first_seq):
        columns = segment.columns
        lo = columns.lower_bound(log.first_seq)
        hi = min(lo + rows_max, columns.rows)
        if lo >= hi:
            continue
        freed = np.cumsum(columns.get_sizes(lo, hi, log.overhead, log.header_extra))
        row = int(np.searchsorted(freed, excess_bytes))
        return columns.seq(min(lo + row, hi - 1)) + 1
    return log.last_seq + 1
