"""A page of subjects equals what sorting all of them would give, for any number of steps."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.handlers import subject_pages
from headrace.broker.handlers.subject_pages import SubjectPage, iter_page
from support.small_store import open_small_store


def finish(steps: Generator[Callable[[], Any] | None, Any, SubjectPage]) -> tuple[SubjectPage, int]:
    taken, call = 0, None
    while True:
        try:
            call = steps.send(call() if call is not None else None)
        except StopIteration as finished:
            return finished.value, taken
        taken += 1


def decode(page: SubjectPage) -> dict[str, int]:
    assert page.counts is not None
    counts: dict[str, int] = json.loads(bytes(page.counts))
    return counts


@pytest.mark.parametrize("seed", range(8))
def test_a_page_is_a_slice_of_all_subjects_in_order(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("STEP", 16), ("CLEAR_STEP", 8), ("LARGE_BYTES", 100)):
        monkeypatch.setattr(subject_pages, name, value)
    rng = random.Random(seed)
    log = open_small_store(tmp_path).create("S", memory=True)
    names = [b"s.%s.%d" % (rng.choice([b"a", b"b"]), rng.randrange(500)) for _ in range(400)]
    for name in names:
        log.append(name, b"", b"", 1)
    expected = sorted({name for name in names if name.startswith(b"s.a.")})
    offset, limit = rng.randrange(len(expected)), rng.randint(1, 60)
    page, steps = finish(iter_page(log, log.get_filter((b"s.a.*",)), offset, limit))
    counts = decode(page)
    assert list(counts) == [name.decode() for name in expected[offset : offset + limit]]
    assert page.total == len(expected)
    assert all(count == names.count(name.encode()) for name, count in counts.items())
    assert steps > 10


def test_few_subjects_take_one_step(tmp_path: Path) -> None:
    log = open_small_store(tmp_path).create("S", memory=True)
    log.append(b"s.a", b"", b"", 1)
    page, steps = finish(iter_page(log, log.get_filter((b">",)), 0, 10))
    assert (decode(page), page.total, steps) == ({"s.a": 1}, 1, 0)
    assert finish(iter_page(log, log.get_filter((b"x",)), 5, 10)) == (SubjectPage(None, 0), 0)
