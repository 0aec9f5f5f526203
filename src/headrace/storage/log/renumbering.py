"""Gives the subjects of a log new ids, without those that have no live message, in slices.

Owns the new subject index and the new columns while they are made. Invariant: the log does not change before `finish`,
which replaces everything in one turn. A subject that has a new id keeps it. A subject without one had no live message
when the columns made so far were read, so in them it has dead rows only. Must not know files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from headrace.storage.native_records import Array, SegmentIndex, SubjectIndex

#: Maximum number of subjects that one slice copies.
SUBJECTS_PER_SLICE = 16_384
#: Maximum number of subjects that are copied in the same slice as a column is read.
SUBJECTS_AT_ONCE = 1_024


class Renumbering:
    """New ids for the live subjects of one log."""

    def __init__(self, subjects: SubjectIndex) -> None:
        self._subjects = subjects
        self._fresh = SubjectIndex()
        self._old_ids: list[Array] = []
        self._columns: dict[SegmentIndex, tuple[list[bytes] | None, Array | bytes]] = {}
        self.new_ids: Array = np.empty(0, np.uint32)
        self.kept: Array = np.empty(0, bool)  # which subjects have a new id

    def iter_prepare(self, list_sealed: Callable[[], Sequence[SegmentIndex]]) -> Iterator[None]:
        """Prepare new subjects, and new columns of sealed segments, until nothing is missing; a slice at a time."""
        while True:
            missing = self._find_missing()
            if len(missing) > SUBJECTS_AT_ONCE:
                for start in range(0, len(missing), SUBJECTS_PER_SLICE):
                    self._add(missing[start : start + SUBJECTS_PER_SLICE])
                    yield
                continue  # meanwhile, others may have got messages, and those segments may be sealed
            self._add(missing)
            columns = self._find_outdated(list_sealed())
            if columns is None:
                return
            subject_ids = self._map(columns)
            yield
            self._encode(columns, subject_ids)
            yield

    def finish(self, sealed: Sequence[SegmentIndex], growing: SegmentIndex) -> None:
        """Replace subjects and columns, in the turn in which `iter_prepare` has ended."""
        if not len(self._fresh) and len(self._subjects):
            self._add(np.zeros(1, np.int64))  # dead rows have id 0, which must exist
        for columns in sealed:
            columns.set_subjects(self._columns[columns][1])
        growing.set_subjects(growing.encode_subjects(growing.map_subjects(self.new_ids)))
        self._subjects.replace(self._fresh, np.concatenate([np.empty(0, np.int64), *self._old_ids]))

    def _find_missing(self) -> Array:
        """Return the ids of subjects that have live messages and no new id."""
        total, known = len(self._subjects), len(self.new_ids)
        if total > known:
            self.new_ids = np.concatenate([self.new_ids, np.zeros(total - known, np.uint32)])
            self.kept = np.concatenate([self.kept, np.zeros(total - known, bool)])
        return np.flatnonzero((self._subjects.counts != 0) & ~self.kept)

    def _add(self, old_ids: Array) -> None:
        """Give subjects the next new ids."""
        first = len(self._fresh)
        self._fresh.copy_subjects(self._subjects, old_ids)
        self.new_ids[old_ids] = np.arange(first, first + len(old_ids), dtype=np.uint32)
        self.kept[old_ids] = True
        self._old_ids.append(old_ids)

    def _map(self, columns: SegmentIndex) -> Array:
        return columns.map_subjects(self.new_ids)

    def _encode(self, columns: SegmentIndex, subject_ids: Array) -> None:
        self._columns[columns] = columns.packed, columns.encode_subjects(subject_ids)

    def _find_outdated(self, sealed: Sequence[SegmentIndex]) -> SegmentIndex | None:
        """Return columns that are not prepared, or were packed since."""
        for columns in sealed:
            prepared = self._columns.get(columns)
            if prepared is None or prepared[0] is not columns.packed:
                return columns
        return None
