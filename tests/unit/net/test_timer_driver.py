"""Timers that are due at the same time share the event loop with clients."""

from __future__ import annotations

import asyncio
from time import perf_counter

from headrace.broker import Timers
from headrace.clock import SystemClock
from headrace.net.timer_driver import TimerDriver
from headrace.net.turn_queue import SLICE_S


async def test_others_are_served_between_timers_that_are_due_together() -> None:
    timers, made = Timers(SystemClock()), list[int]()

    def call(number: int) -> None:
        made.append(number)
        end_s = perf_counter() + SLICE_S
        while perf_counter() < end_s:
            pass

    due_ns = timers.now_ns()
    for number in range(5):
        timers.at_monotonic(due_ns, lambda number=number: call(number))
    driver = TimerDriver(timers, asyncio.get_running_loop())
    turns = set[int]()
    async with asyncio.timeout(90):
        while len(made) < 5:
            turns.add(len(made))
            await asyncio.sleep(0)
    driver.close()
    assert made == [0, 1, 2, 3, 4]
    assert turns == {0, 1, 2, 3, 4}
