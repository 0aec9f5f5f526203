"""When a store counts as idle: shortly after the last commit, and long after it."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker import Timers
from headrace.broker.commit import idle_timer
from headrace.broker.commit.idle_timer import IdleTimer
from headrace.sim import SimClock

SECOND_NS = 1_000_000_000


class Idle:
    """A store that counts the calls."""

    def __init__(self) -> None:
        self.full = False
        self.uses = (1, 0)
        self.calls: list[str] = []

    def on_idle(self) -> None:
        self.calls.append("idle")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Idle:
    store = Idle()

    def release(released: Any) -> bool:
        assert released is store
        store.calls.append("long")
        return True

    monkeypatch.setattr(idle_timer, "release_idle_resources", release)
    monkeypatch.setattr(idle_timer, "count_uses", lambda store: store.uses)
    return store


def advance(clock: SimClock, timers: Timers, seconds: float) -> None:
    clock.advance(int(seconds * SECOND_NS))
    timers.run_due()


def test_resources_are_released_once_after_ten_idle_seconds(store: Idle) -> None:
    clock = SimClock()
    timers = Timers(clock)
    timer = IdleTimer(store, timers)  # type: ignore[arg-type]
    timer.start()
    advance(clock, timers, 0.1)
    assert store.calls == ["idle"]
    advance(clock, timers, 9)
    store.uses = (2, 0)  # another commit
    timer.start()
    advance(clock, timers, 2)
    assert store.calls == ["idle", "idle"]
    advance(clock, timers, 11)
    assert store.calls == ["idle", "idle", "long"]
    advance(clock, timers, 100)
    assert len(store.calls) == 3


def test_nothing_is_released_while_messages_are_read(store: Idle) -> None:
    clock = SimClock()
    timers = Timers(clock)
    IdleTimer(store, timers).start()  # type: ignore[arg-type]
    for reads in range(5):
        advance(clock, timers, 9)
        store.uses = (1, reads)
    assert "long" not in store.calls
    advance(clock, timers, 11)
    advance(clock, timers, 11)
    assert store.calls.count("long") == 1
