"""Subjects of a pin, and their checksums."""

from __future__ import annotations

import pytest

from headrace.storage.native_records import SubjectIndex
from headrace.storage.segments.column_file import SubjectChecksum
from headrace.storage.snapshot import record_runs
from headrace.storage.snapshot.record_runs import PinnedSubjects


class CountedIndex:
    """A subject index that counts additions."""

    added = 0

    def __init__(self) -> None:
        self._index = SubjectIndex()

    def __len__(self) -> int:
        return len(self._index)

    def add(self, subject: bytes) -> None:
        CountedIndex.added += 1
        self._index.add(subject)

    def dump(self, lo: int, hi: int) -> bytes:
        return self._index.dump(lo, hi)


def test_checksums_of_many_segments_encode_each_subject_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_runs, "SubjectIndex", CountedIndex)
    monkeypatch.setattr(CountedIndex, "added", 0)
    names, index = [b"k.%d" % number for number in range(1_000)], SubjectIndex()
    for name in names:
        index.add(name)
    subjects = PinnedSubjects(names)
    for count in (100, 100, 250, 1_000, 250, 0, 1_000):
        assert subjects.compute_crc(count) == SubjectChecksum(index.dump).compute(count)
    assert CountedIndex.added == len(names)
    assert subjects.compute_crc(700) == SubjectChecksum(index.dump).compute(700)
