"""Timers: order, cancelling, and a clock that is moved by hand."""

from __future__ import annotations

from headrace.broker import Timers


class Hands:
    """A clock that shows the time it is set to."""

    def __init__(self) -> None:
        self.now = 1000

    def now_ns(self) -> int:
        return self.now


def test_due_in_order() -> None:
    clock = Hands()
    timers, seen = Timers(clock), list[str]()
    timers.at_wall_time(1020, lambda: seen.append("late"))
    timers.at_wall_time(1010, lambda: seen.append("first"))
    timers.at_wall_time(1010, lambda: seen.append("second"))
    assert timers.next_deadline() == 1010
    assert timers.run_due() == 0
    clock.now = 1010
    assert timers.run_due() == 2
    clock.now = 2000
    timers.run_due()
    assert seen == ["first", "second", "late"]
    assert timers.next_deadline() is None


def test_what_is_cancelled_does_not_happen() -> None:
    clock = Hands()
    timers, seen = Timers(clock), list[int]()
    keep = timers.after(10, lambda: seen.append(1))
    gone = timers.after(5, lambda: seen.append(2))
    timers.cancel(gone)
    gone.cancel()
    assert len(timers) == 1
    assert timers.next_deadline() == 1010
    clock.now = 1010
    assert timers.run_due() == 1
    keep.cancel()
    assert seen == [1]
    assert len(timers) == 0


def test_what_is_asked_for_meanwhile_happens_if_due() -> None:
    clock = Hands()
    timers, seen = Timers(clock), list[str]()
    timers.at_wall_time(
        1000, lambda: (seen.append("a"), timers.at_wall_time(1000, lambda: seen.append("b")))[0]
    )
    assert timers.run_due() == 2
    assert seen == ["a", "b"]


def test_the_loop_is_notified_of_an_earlier_deadline() -> None:
    timers, calls = Timers(Hands()), list[int]()
    timers.on_earlier_deadline = lambda: calls.append(1)
    timers.at_wall_time(2000, lambda: None)
    timers.at_wall_time(3000, lambda: None)
    timers.at_wall_time(1500, lambda: None)
    assert len(calls) == 2


def test_many_cancelled_take_no_room() -> None:
    timers = Timers(Hands())
    for i in range(10_000):
        timers.at_wall_time(5000 + i, lambda: None).cancel()
    assert len(timers._heap) < 200
    assert len(timers) == 0


def test_a_clock_that_is_set_back_holds_up_nothing_but_dates() -> None:
    clock = Hands()
    timers, seen = Timers(clock), list[str]()
    timers.after(100, lambda: seen.append("waited"))
    timers.at_monotonic(timers.now_ns() + 110, lambda: seen.append("due"))
    timers.at_wall_time(1120, lambda: seen.append("dated"))
    clock.now = 500
    assert timers.now_ns() == 1000
    assert timers.next_deadline() == 600
    clock.now = 610
    assert timers.run_due() == 2
    assert seen == ["waited", "due"]
    assert timers.next_deadline() == 1120
    clock.now = 1119
    assert timers.run_due() == 0
    clock.now = 1120
    assert timers.run_due() == 1
    timers.after(5, lambda: seen.append("later"))
    assert timers.next_deadline() == 1125
    assert timers.now_ns() == 1620


def test_a_caller_can_report_that_time_has_passed() -> None:
    second = 1_000_000_000
    clock = Hands()
    timers, seen = Timers(clock), list[int]()
    timers.after(10 * second, lambda: seen.append(1))
    clock.now = 0  # set back after an interval that the clock does not show
    timers.advance_to(1000 + 10 * second)
    assert timers.run_due() == 1
    before = timers.now_ns()
    timers.advance_to(before + 1000)  # no clock is that exact
    assert timers.now_ns() == before
