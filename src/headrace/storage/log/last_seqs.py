"""Finds the last messages of many subjects in the columns, one segment per step.

Owns no state: results go to the subject index, for subjects of which the index has only an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from headrace.storage.log.row_lookup import find_rows
from headrace.storage.native_records import BOUND_ONLY_BIT, Array

if TYPE_CHECKING:
    from headrace.storage.log.log_index import LogIndex


def iter_resolve_last_seqs(log: LogIndex, sids: Array) -> Iterator[None]:
    """Find the last messages of some subjects. Messages may be added and removed between two steps."""
    subject_index = log.subject_index
    seen = np.ones(len(subject_index), np.uint8)
    seen[sids] = 0
    last_seq, epoch = log.last_seq, log.subject_epoch
    for segment in list(log.iter_segments_back(last_seq)):
        is_current = segment is log.active_segment or segment in log.sealed_segments
        if log.subject_epoch != epoch or not is_current:
            return  # subjects have new ids, or the rows of the segment are somewhere else
        added = len(subject_index) - len(seen)
        if added:
            seen = np.concatenate((seen, np.ones(added, np.uint8)))
        columns, lasts = segment.columns, subject_index.lasts
        seqs = columns.last_per_subject(subject_index, None, seen, columns.rows)
        found = columns.subject[find_rows(columns, seqs)]
        # Otherwise messages were added meanwhile, and perhaps removed.
        is_stale = lasts[found] >= np.uint64(BOUND_ONLY_BIT)
        is_stale &= lasts[found] ^ np.uint64(BOUND_ONLY_BIT) <= np.uint64(last_seq)
        lasts[found[is_stale]] = seqs[is_stale]
        if seen.all():
            return
        yield
