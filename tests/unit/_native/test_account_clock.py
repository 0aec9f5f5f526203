"""The times of an account, compiled and pure: never the same twice, and close to the wall clock."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

NOW_NS = 1_700_000_000_000_000_000


class WallClock:
    def __init__(self) -> None:
        self.time_ns = NOW_NS

    def now_ns(self) -> int:
        return self.time_ns


@pytest.fixture
def wall_clock() -> WallClock:
    return WallClock()


@pytest.fixture(params=["", "_pure"], ids=["compiled", "pure"])
def clock(request: pytest.FixtureRequest, wall_clock: WallClock) -> Any:
    name = f"headrace._native.account_clock{request.param}"
    pytest.importorskip(name)
    return importlib.import_module(name).AccountClock(wall_clock)


def test_times_differ_although_the_clock_stands_still(clock: Any) -> None:
    assert [clock.now_ns() for _ in range(3)] == [NOW_NS, NOW_NS + 1, NOW_NS + 2]
    assert clock.wall_ns() == NOW_NS


def test_a_small_step_back_does_not_repeat_a_time(clock: Any, wall_clock: WallClock) -> None:
    clock.now_ns()
    wall_clock.time_ns -= 999_999_999
    assert clock.now_ns() == NOW_NS + 1
    wall_clock.time_ns = NOW_NS + 10
    assert clock.now_ns() == NOW_NS + 10


def test_a_clock_that_was_set_back_is_followed(clock: Any, wall_clock: WallClock) -> None:
    clock.now_ns()
    wall_clock.time_ns -= 1_000_000_000
    assert clock.now_ns() == NOW_NS - 1_000_000_000


def test_reserved_times_are_not_given_again(clock: Any) -> None:
    assert clock.reserve_times(5) == NOW_NS
    assert clock.now_ns() == NOW_NS + 5
