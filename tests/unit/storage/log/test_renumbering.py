"""Subjects get new ids in slices, while messages come and go."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.sim import SimClock, SimDisk
from headrace.storage import Store, StoreOptions, StreamLog, open_store
from headrace.storage.log import renumbering
from headrace.storage.log.renumbering import Renumbering
from headrace.storage.native_records import Array, SegmentIndex
from support.small_store import open_small_store


class Model:
    """A log, and the subjects of the messages that it must have."""

    def __init__(self, store: Store, log: StreamLog, seed: int) -> None:
        self.store, self.log = store, log
        self.rng = random.Random(seed)
        self.subjects: dict[int, bytes] = {}
        self.used: set[bytes] = set()  # subjects that got a message

    def change(self) -> None:
        """Do something that may happen between two slices."""
        log, rng = self.log, self.rng
        action = rng.randrange(12)
        if action < 5:
            for _ in range(rng.randrange(1, 30)):
                self.append(b"s.%d" % rng.randrange(60))
        elif action < 8:
            for seq in rng.sample(sorted(self.subjects), min(len(self.subjects), rng.randrange(40))):
                log.remove(seq)
                del self.subjects[seq]
        elif action == 8:
            self.append(b"new.%d" % log.last_seq)
            log.split_segment()
        elif action == 9 and log.sealed_segments:
            rng.choice(log.sealed_segments).columns.seal()
        elif action == 10 and rng.random() < 0.2:
            log.remove_below(log.last_seq + 1)
            self.subjects.clear()
        elif action == 11:
            self.store.commit()
            self.store.disk.drain()

    def append(self, subject: bytes) -> None:
        self.subjects[self.log.append(subject, b"", b"x", 1)] = subject
        self.used.add(subject)

    def check(self) -> None:
        """Compare everything that depends on ids of subjects."""
        log, index = self.log, self.log.subject_index
        seqs = np.array(sorted(self.subjects), np.uint64)
        live, ids = log.get_subject_ids(seqs)
        assert live.tolist() == seqs.tolist()
        assert [index.name(sid) for sid in ids.tolist()] == [self.subjects[seq] for seq in seqs.tolist()]
        for subject in {*self.subjects.values(), b"s.1", b"none"}:
            expected = [seq for seq in sorted(self.subjects) if self.subjects[seq] == subject]
            assert log.find_seqs(log.get_filter((subject,)), 1, log.last_seq).tolist() == expected
            assert log.get_last_seq(subject) == (expected or [0])[-1]
            assert log.get_first_seq(subject) == (expected or [0])[0]
            sid = index.find(subject)
            assert (int(index.counts[sid]) if sid >= 0 else 0) == len(expected)
        assert log.num_subjects == len(set(self.subjects.values()))


class Listener:
    """Follows the ids of subjects, as a consumer does."""

    def __init__(self, log: StreamLog) -> None:
        self.names = {sid: log.subject_index.name(sid) for sid in range(len(log.subject_index))}

    def on_subjects_remapped(self, new_ids: Array, kept: Array) -> None:
        self.names = {
            int(new_ids[sid]): name for sid, name in self.names.items() if sid < len(kept) and kept[sid]
        }


@pytest.mark.parametrize("memory", [False, True], ids=["file", "memory"])
@pytest.mark.parametrize("seed", range(12))
def test_messages_come_and_go_between_slices(
    tmp_path: Path, seed: int, memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renumbering, "SUBJECTS_PER_SLICE", 7)
    monkeypatch.setattr(renumbering, "SUBJECTS_AT_ONCE", 5)
    store = open_small_store(tmp_path)
    log = store.create("S", memory=memory)
    log.subjects_min = 10**9  # only this test renumbers
    model, subject_filter = Model(store, log, seed), log.get_filter((b"s.*",))
    for _ in range(30):
        model.change()
    model.used.clear()
    listener = Listener(log)
    log.id_listeners.append(listener)
    dead = {log.subject_index.name(sid) for sid in np.flatnonzero(log.subject_index.counts == 0).tolist()}
    for _ in log.iter_drop_dead_subjects():
        assert log.is_renumbering
        model.check()  # nothing has changed yet
        model.change()
    assert not log.is_renumbering
    model.check()
    stored = {seq for seq, subject in model.subjects.items() if subject.startswith(b"s.")}
    assert set(log.find_seqs(subject_filter, 1, log.last_seq).tolist()) == stored
    still_dead = dead - model.used
    known = [log.subject_index.name(sid) for sid in range(len(log.subject_index))]
    assert len(known) == len(set(known))
    assert still_dead.isdisjoint(known[1:])  # the first one must exist, even if nothing is live
    for sid, name in listener.names.items():
        assert known[sid] == name
    for _ in range(10):
        model.change()
    model.check()


def test_a_segment_that_is_sealed_between_slices_has_the_right_subjects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a subject that was dead when the new ids were chosen."""
    monkeypatch.setattr(renumbering, "SUBJECTS_PER_SLICE", 2)
    monkeypatch.setattr(renumbering, "SUBJECTS_AT_ONCE", 2)
    log = open_small_store(tmp_path).create("S")
    for number in range(6):
        log.append(b"k.%d" % number, b"", b"", 1)
    log.remove(1)
    steps = log.iter_drop_dead_subjects()
    next(steps)
    seq = log.append(b"k.0", b"", b"", 1)
    log.split_segment()
    for _ in steps:
        pass
    assert log.get(seq)[1] == b"k.0"
    assert log.get_last_seq(b"k.0") == seq
    _, ids = log.get_subject_ids(np.array([2, seq], np.uint64))
    assert [log.subject_index.name(sid) for sid in ids.tolist()] == [b"k.1", b"k.0"]


def test_each_slice_does_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a slice does not depend on the number of segments or subjects."""
    store = open_store(SimDisk(), SimClock(), StoreOptions(segment_rows=500, block_bytes=2_000))
    log = store.create("S")
    for start in range(0, 20_000, 500):
        log.append_many([(b"k.%d" % number, b"", b"") for number in range(start, start + 500)], 1)
        store.commit()
        store.disk.drain()
    log.remove_many(range(1, 12_001))
    monkeypatch.setattr(renumbering, "SUBJECTS_PER_SLICE", 1_000)
    work: list[tuple[str, int]] = []

    def count(owner: type, name: str, measure: Callable[..., int]) -> None:
        original = getattr(owner, name)

        def wrapped(self: Any, *arguments: Any) -> Any:
            work.append((name, measure(self, *arguments)))
            return original(self, *arguments)

        monkeypatch.setattr(owner, name, wrapped)

    count(Renumbering, "_add", lambda self, old_ids: len(old_ids))
    count(Renumbering, "_map", lambda self, columns: columns.rows)
    count(Renumbering, "_encode", lambda self, columns, subject_ids: columns.rows)
    slices = []
    for _ in log.iter_drop_dead_subjects():
        slices.append(work[:])
        work.clear()
    rows = max(segment.columns.rows for segment in log.sealed_segments)
    for each in slices:
        sizes = [size for _, size in each if size]
        assert len(sizes) <= 1
        assert sum(sizes) <= max(rows, 1_000)
    names = [name for each in slices for name, size in each if size]
    assert names.count("_add") == 8
    assert names.count("_map") == names.count("_encode") == len(log.sealed_segments) > 10
    assert not any(size for _, size in work)  # the last slice only replaces
    assert len(log.subject_index) == 8_000


def test_columns_of_other_rows_are_refused(tmp_path: Path) -> None:
    log = open_small_store(tmp_path).create("S")
    log.append_many([(b"a", b"", b"")] * 3, 1)
    log.split_segment()
    columns = log.sealed_segments[0].columns
    with pytest.raises(ValueError, match="subjects"):
        columns.set_subjects(np.zeros(1, np.uint32))
    other = SegmentIndex()
    other.set_subjects(other.encode_subjects(other.map_subjects(np.zeros(1, np.uint32))))
    assert other.rows == 0
