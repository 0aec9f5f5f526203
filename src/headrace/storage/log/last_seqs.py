"""Finds the last messages of many subjects, in slices: some subjects of the index, or one segment, per step.

Owns no state: for subjects of which the index has only an upper bound, results go to the index.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import numpy as np

from headrace.storage.native_records import BOUND_ONLY_BIT, Array

if TYPE_CHECKING:
    from headrace.storage.log.filters import Filter
    from headrace.storage.log.log_index import LogIndex

#: Number of subjects of the index that one slice looks at.
SUBJECTS_PER_SLICE = 65_536
_NO_SEQS: Array = np.empty(0, np.uint64)


def iter_last_seqs(log: LogIndex, subject_filter: Filter | None) -> Generator[None, None, Array]:
    """Return the last live message of each subject, in no order.

    Messages may be added and removed between two slices; each result was the last of its subject at some time.
    """
    yield from iter_resolve_last_seqs(log, (yield from _iter_stale_subjects(log, subject_filter)))
    parts: list[Array] = []
    at, epoch = 0, log.subject_epoch
    while at < len(log.subject_index):
        parts.append(log.get_last_seqs(subject_filter, at, at + SUBJECTS_PER_SLICE))
        at += SUBJECTS_PER_SLICE
        yield
        if log.subject_epoch != epoch:  # subjects have new ids
            parts, at, epoch = [], 0, log.subject_epoch
    return np.concatenate(parts) if parts else _NO_SEQS


def _iter_stale_subjects(log: LogIndex, subject_filter: Filter | None) -> Generator[None, None, Array]:
    """Return the ids of subjects whose last message is not in the index; none if they changed meanwhile."""
    epoch, parts = log.subject_epoch, [np.empty(0, np.intp)]
    for at in range(0, len(log.subject_index), SUBJECTS_PER_SLICE):
        sids = log.find_subject_ids(subject_filter, at, at + SUBJECTS_PER_SLICE)
        parts.append(sids[log.subject_index.lasts[sids] >= np.uint64(BOUND_ONLY_BIT)])
        yield
        if log.subject_epoch != epoch:
            return parts[0]
    return np.concatenate(parts)


def iter_resolve_last_seqs(log: LogIndex, sids: Array) -> Iterator[None]:
    """Find the last messages of some subjects. Messages may be added and removed between two steps."""
    if not len(sids):
        return
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
        found = columns.get_subjects(columns.find_rows(seqs))
        # Otherwise messages were added meanwhile, and perhaps removed.
        is_stale = lasts[found] >= np.uint64(BOUND_ONLY_BIT)
        is_stale &= lasts[found] ^ np.uint64(BOUND_ONLY_BIT) <= np.uint64(last_seq)
        lasts[found[is_stale]] = seqs[is_stale]
        if seen.all():
            return
        yield
