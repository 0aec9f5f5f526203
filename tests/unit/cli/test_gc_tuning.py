"""Old objects are collected in portions, and cycles of ended connections are freed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from headrace.cli import gc_tuning
from headrace.cli.gc_tuning import PortionedGc

IN_PORTIONS = pytest.mark.skipif(gc_tuning.INCREMENTAL, reason="collections are incremental by themselves")


class Node:
    """An object in a cycle with itself."""

    def __init__(self) -> None:
        self.me = self


class Loop:
    """Runs scheduled calls when the test asks for it, as an event loop would."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.ended = 0

    def turn(self) -> None:
        while self.calls:
            self.calls.pop()()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    tuned = PortionedGc(loop.calls.append, lambda: loop.ended)
    before = gc.get_threshold()
    tuned.start()
    yield loop
    tuned.stop()
    gc.set_threshold(*before)


def grow(loop: Loop, count: int) -> tuple[list[list[int]], int]:
    """Create objects that stay; return them, and the maximum size of the oldest generation."""
    kept: list[list[int]] = []
    oldest = 0
    while len(kept) < count:
        kept += [[] for _ in range(500)]
        oldest = max(oldest, len(gc.get_objects(2)))
        loop.turn()
    return kept, oldest


@IN_PORTIONS
def test_the_oldest_generation_stays_small_while_objects_become_many(loop: Loop) -> None:
    before = gc.get_freeze_count()
    kept, oldest = grow(loop, 200_000)
    assert oldest < 15_000
    assert gc.get_freeze_count() - before > 150_000
    del kept


@IN_PORTIONS
def test_cycles_of_ended_objects_are_freed_in_the_end(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_tuning, "ENDED_MAX", 3)
    node = Node()
    alive = weakref.ref(node)
    kept, _ = grow(loop, 50_000)  # the node is frozen now
    del node
    more, _ = grow(loop, 50_000)
    assert alive() is not None
    loop.ended = 3
    even_more, _ = grow(loop, 50_000)
    assert alive() is None
    del kept, more, even_more


def test_stopping_restores_the_defaults() -> None:
    before, callbacks = gc.get_threshold(), list(gc.callbacks)
    tuned = PortionedGc([].append, lambda: 0)
    tuned.start()
    tuned.stop()
    assert gc.callbacks == callbacks
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_a_collection_that_was_disabled_during_the_start_is_enabled() -> None:
    gc.disable()
    tuned = PortionedGc(lambda call: None, lambda: 0)
    try:
        tuned.start()
        assert gc.isenabled()
    finally:
        gc.enable()
        tuned.stop()
