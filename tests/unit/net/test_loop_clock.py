"""Timers in an event loop: one handle, set to the next deadline."""

import asyncio

from headrace.broker import Timers
from headrace.clock import SystemClock
from headrace.net.timer_driver import TimerDriver

MS = 1_000_000


async def test_what_is_due_happens_in_order() -> None:
    timers = Timers(SystemClock())
    alarm = TimerDriver(timers, asyncio.get_running_loop())
    happened: list[str] = []
    done = asyncio.Event()
    timers.after(20 * MS, done.set)
    timers.after(10 * MS, lambda: happened.append("second"))
    timers.after(1 * MS, lambda: happened.append("first"))
    await asyncio.wait_for(done.wait(), 10)
    assert happened == ["first", "second"]
    alarm.close()


async def test_what_was_asked_for_before_the_alarm_happens_too() -> None:
    timers = Timers(SystemClock())
    done = asyncio.Event()
    timers.after(0, done.set)
    alarm = TimerDriver(timers, asyncio.get_running_loop())
    await asyncio.wait_for(done.wait(), 10)
    alarm.close()


async def test_a_failing_call_does_not_stop_the_rest() -> None:
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    timers = Timers(SystemClock())
    alarm = TimerDriver(timers, loop)
    done = asyncio.Event()

    def fail() -> None:
        raise RuntimeError("one of many")

    timers.after(0, fail)
    timers.after(1 * MS, done.set)
    await asyncio.wait_for(done.wait(), 10)
    assert [str(failure) for failure in failures] == ["one of many"]
    alarm.close()


async def test_a_closed_alarm_stays_silent() -> None:
    timers = Timers(SystemClock())
    alarm = TimerDriver(timers, asyncio.get_running_loop())
    alarm.close()
    happened: list[int] = []
    timers.after(0, lambda: happened.append(1))
    await asyncio.sleep(0.01)
    assert not happened
