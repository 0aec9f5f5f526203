"""Filters find what matching each subject would find, whatever happens between the slices in which they are made."""

from __future__ import annotations

import gc
import random
from collections.abc import Generator
from pathlib import Path

import pytest

from headrace.protocol import subjects
from headrace.storage import Filter, StreamLog
from headrace.storage.log import filters
from support.small_store import open_small_store

TOKENS = [b"a", b"b", b"c", b"d"]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StreamLog:
    """A log whose filters are made in many small slices."""
    for name, value in (("_MANY_PATTERNS", 3), ("_PATTERNS_PER_SLICE", 2), ("_WALKS_PER_SLICE", 3)):
        monkeypatch.setattr(filters, name, value)
    monkeypatch.setattr(filters, "_MATCHES_PER_SLICE", 5)
    return open_small_store(tmp_path).create("S", memory=True)


def publish_some(log: StreamLog, rng: random.Random) -> None:
    for _ in range(rng.randint(0, 3)):
        log.append(b".".join(rng.choices(TOKENS, k=rng.randint(1, 4))), b"", b"x", 1)


def make_patterns(rng: random.Random, count: int) -> tuple[bytes, ...]:
    return tuple(
        b".".join(
            [*rng.choices([*TOKENS, b"*"], k=rng.randint(1, 3)), *([b">"] if rng.random() < 0.3 else [])]
        )
        for _ in range(count)
    )


def find_by_trying(log: StreamLog, patterns: tuple[bytes, ...]) -> list[int]:
    found = []
    for seq in range(log.first_seq, log.last_seq + 1):
        message = log.get(seq)
        if message is not None and any(subjects.matches(pattern, message[1]) for pattern in patterns):
            found.append(seq)
    return found


def finish(steps: Generator[None, None, Filter], between: object) -> tuple[Filter, int]:
    taken = 0
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            return finished.value, taken
        taken += 1
        between()  # type: ignore[operator]


@pytest.mark.parametrize("seed", range(10))
def test_subjects_that_appear_between_slices_are_found(log: StreamLog, seed: int) -> None:
    rng = random.Random(seed)
    made: list[tuple[tuple[bytes, ...], Filter]] = []
    for _ in range(8):
        publish_some(log, rng)
        patterns = make_patterns(rng, rng.choice([1, 2, 6, 12]))
        subject_filter, _ = finish(log.iter_filter(patterns), lambda: publish_some(log, rng))
        assert subject_filter is log.get_filter(patterns)
        made.append((patterns, subject_filter))
        if rng.random() < 0.4:
            made.pop(rng.randrange(len(made)))
        publish_some(log, rng)
        for patterns, each in made:
            assert log.find_seqs(each, 1, log.last_seq).tolist() == find_by_trying(log, patterns)
            assert each.matches(b"a.b.c") == any(subjects.matches(p, b"a.b.c") for p in patterns)


def test_many_patterns_are_added_in_slices(log: StreamLog) -> None:
    publish_some(log, random.Random(1))
    _, steps = finish(log.iter_filter(tuple(b"x.%d.*" % n for n in range(20))), lambda: None)
    assert steps >= 10


def test_a_filter_that_nobody_uses_is_freed(log: StreamLog) -> None:
    for number in range(300):
        log.get_filter(tuple(b"x%d.%d.*" % (number, n) for n in range(6)))
        log.append(b"x%d.1.a" % number, b"", b"", 1)
    gc.collect()
    table = log._filters
    assert len(table._interned) <= 1
    assert len(table._roots) < 100


@pytest.mark.parametrize("at_step", range(1, 6))
def test_dropped_subjects_start_the_search_again(log: StreamLog, at_step: int) -> None:
    """Ids change when dead subjects are dropped."""
    for number in range(30):
        log.append(b"s.%d" % number, b"", b"", 1)

    def drop() -> None:
        for seq in range(1, 16):
            log.remove(seq)
        log.drop_dead_subjects()

    happened: list[bool] = []

    def once() -> None:
        happened.append(True)
        if len(happened) == at_step:
            drop()

    subject_filter, _ = finish(log.iter_filter((b"s.*",)), once)
    assert len(happened) >= at_step
    assert log.find_seqs(subject_filter, 1, log.last_seq).tolist() == list(range(16, 31))


def test_filters_that_are_made_at_the_same_time(log: StreamLog) -> None:
    """The slices of several filters alternate, and so many come and go that the table is rebuilt meanwhile."""
    rng = random.Random(5)
    for _ in range(40):
        publish_some(log, rng)
    wanted = [make_patterns(rng, 2) for _ in range(4)]
    running = {patterns: log.iter_filter(patterns) for patterns in wanted}
    found: dict[tuple[bytes, ...], Filter] = {}
    while running:
        for patterns, steps in list(running.items()):
            log.get_filter((*make_patterns(rng, 1), b"gone.%d" % rng.randrange(1 << 30)))
            try:
                next(steps)
            except StopIteration as finished:
                found[patterns] = finished.value
                del running[patterns]
        publish_some(log, rng)
    for patterns, each in found.items():
        assert log.find_seqs(each, 1, log.last_seq).tolist() == find_by_trying(log, patterns)
