"""Searches over whole columns find the same as a check of every message."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

from headrace.sim import SimClock, SimDisk
from headrace.storage import Store, StoreOptions, StreamLog, open_store
from headrace.storage.log import bulk_trim, last_seqs
from headrace.storage.sequence_arrays import Seqs
from support.small_store import open_small_store


@pytest.fixture(params=[False, True], ids=["file", "memory"])
def store_and_log(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, StreamLog]:
    store = open_small_store(tmp_path)
    return store, store.create("S", memory=request.param)


def fill(store: Store, log: StreamLog, rng: random.Random) -> None:
    """Store messages of a few subjects with gaps, in several segments."""
    for number in range(300):
        header = b"NATS/1.0\r\nA: b\r\n\r\n" if rng.random() < 0.3 else b""
        log.append(b"s.%d" % rng.randrange(12), header, b"x" * rng.randrange(40), number)
        if rng.random() < 0.1:
            log.advance(log.last_seq + rng.randrange(1, 5))
        if rng.random() < 0.3:
            log.remove(rng.randint(log.first_seq, log.last_seq))
        if rng.random() < 0.05:
            store.commit()
            store.disk.drain()


def live(log: StreamLog) -> list[int]:
    return [seq for seq in range(1, log.last_seq + 1) if log.get(seq) is not None]


def subject_of(log: StreamLog, seq: int) -> bytes:
    message = log.get(seq)
    assert message is not None
    return message[1]


@pytest.mark.parametrize("seed", range(6))
def test_the_newest_of_each_subject_stay(store_and_log: tuple[Store, StreamLog], seed: int) -> None:
    store, log = store_and_log
    rng = random.Random(seed)
    fill(store, log, rng)
    limit = rng.randint(1, 5)
    left: Counter[bytes] = Counter()
    expected = []
    for seq in reversed(live(log)):
        subject = subject_of(log, seq)
        left[subject] += 1
        if left[subject] <= limit:
            expected.append(seq)
    at = 1
    while at:
        seqs, at = bulk_trim.find_over_subject_limit(log, limit, at, rows_max=rng.randint(5, 60))
        log.remove_many(seqs)
    assert live(log) == expected[::-1]


@pytest.mark.parametrize("seed", range(6))
def test_the_oldest_go_until_enough_bytes_are_free(store_and_log: tuple[Store, StreamLog], seed: int) -> None:
    store, log = store_and_log
    rng = random.Random(seed)
    fill(store, log, rng)
    limit = log.bytes * rng.randint(1, 9) // 10
    before = live(log)
    while log.bytes > limit:
        log.remove_below(bulk_trim.find_cut_for_bytes(log, log.bytes - limit, rows_max=rng.randint(5, 60)))
    after = live(log)
    assert after == before[len(before) - len(after) :]
    gone = before[len(before) - len(after) - 1]
    log.append(b"s.0", b"", b"", 0)  # a log without its last message could not report that message's size
    assert gone < log.first_seq


@pytest.mark.parametrize("seed", range(6))
def test_live_and_deleted_sequences(store_and_log: tuple[Store, StreamLog], seed: int) -> None:
    store, log = store_and_log
    rng = random.Random(seed)
    fill(store, log, rng)
    there = live(log)
    asked = np.array(sorted(rng.sample(range(1, log.last_seq + 20), 150)), np.uint64)
    assert log.filter_live(asked).tolist() == sorted(set(asked.tolist()) & set(there))
    gone = sorted(set(range(log.first_seq, log.last_seq + 1)) - set(there))
    assert log.find_deleted_seqs(log.first_seq, log.last_seq).tolist() == gone
    middle = log.first_seq + 50
    assert log.find_deleted_seqs(middle, middle + 60).tolist() == [
        seq for seq in gone if middle <= seq <= middle + 60
    ]


@pytest.mark.parametrize("seed", range(6))
def test_last_messages_after_removals(store_and_log: tuple[Store, StreamLog], seed: int) -> None:
    store, log = store_and_log
    rng = random.Random(seed)
    for number in range(400):
        log.append(b"s.%d" % rng.randrange(60), b"", b"x", number)
    for seq in rng.sample(range(1, 401), 150):
        log.remove(seq)
    store.commit()
    last = {subject_of(log, seq): seq for seq in live(log)}
    assert log.find_last_per_subject(None, log.last_seq).tolist() == sorted(last.values())
    assert {subject: log.get_last_seq(subject) for subject in last} == last


@pytest.mark.parametrize("memory", [False, True])
def test_messages_that_come_and_go_while_last_ones_are_looked_up(
    memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_seqs, "SUBJECTS_PER_SLICE", 8)
    options = StoreOptions(segment_rows=100, block_bytes=4096)
    log = open_store(SimDisk(), SimClock(), options).create("S", memory=memory)
    subjects = [b"k.%d" % number for number in range(40)]
    for _ in range(8):
        for subject in subjects:
            log.append(subject, b"", b"v" * 50, 1)
    for _ in range(400):
        log.append(b"filler", b"", b"v" * 50, 1)
    for subject in subjects:
        log.remove(log.get_last_seq(subject))
    steps = last_seqs.iter_last_seqs(log, None)
    for _ in range(8):  # the search for stale subjects takes 6 steps
        next(steps)
    stays = log.append(b"k.7", b"", b"", 1)
    log.remove(log.append(b"k.7", b"", b"", 1))
    found = finish(steps)
    assert log.get_last_seq(b"k.7") == stays
    assert log.get_last_seq(b"k.8") == live_seqs_of(log, b"k.8")[-1]
    assert sorted(found) == sorted(live_seqs_of(log, subject)[-1] for subject in [*subjects, b"filler"])


def test_last_messages_are_found_after_subjects_got_new_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_seqs, "SUBJECTS_PER_SLICE", 8)
    for steps_before in range(11):
        log = open_store(SimDisk(), SimClock()).create("S")
        for number in range(40):
            log.append(b"k.%d" % number, b"", b"", 1)
        steps = last_seqs.iter_last_seqs(log, None)
        for _ in range(steps_before):
            next(steps)
        for seq in range(1, 31):
            log.remove(seq)
        log.drop_dead_subjects()
        found = finish(steps)
        # What was removed in between may be among them: delivery skips it.
        assert [seq for seq in sorted(found) if seq > 30] == list(range(31, 41)), steps_before


def finish(steps: Generator[None, None, Seqs]) -> list[int]:
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            return [int(seq) for seq in finished.value]


def live_seqs_of(log: StreamLog, subject: bytes) -> list[int]:
    return [seq for seq in live(log) if subject_of(log, seq) == subject]
