"""The watchdog counts and names what holds the event loop, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import gc
import mmap
import re
import time
from collections.abc import Callable
from functools import partial

import pytest
import uvloop

from headrace.net import loop_watchdog
from headrace.net.logs import Logger
from headrace.net.loop_watchdog import UNKNOWN_OPERATION, LoopWatchdog, SlowCall, find_cause
from support.loop_stalls import find_stalls

#: Longer than the interval between two measurements of an idle loop.
HELD_S = 0.4


class ListLogger(Logger):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def warn(self, text: str) -> None:
        self.lines.append(text)


def burn(seconds: float = HELD_S) -> None:
    """Use CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(autouse=True)
def _every_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watchdog, "LOG_INTERVAL_S", 0.0)


def observed(act: Callable[[LoopWatchdog], None], factory: LoopFactory) -> tuple[LoopWatchdog, list[str]]:
    """Run something on a watched loop until the watchdog has seen it."""
    log = ListLogger()
    watchdog = LoopWatchdog(log)

    async def main() -> None:
        watchdog.start()
        await asyncio.sleep(0.03)
        act(watchdog)
        await asyncio.sleep(0.3)
        watchdog.stop()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    return watchdog, log.lines


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def factory(request: pytest.FixtureRequest) -> LoopFactory:
    made: LoopFactory = request.param
    return made


def test_a_scheduled_call_is_named_and_its_cpu_time_is_measured(factory: LoopFactory) -> None:
    def act(watchdog: LoopWatchdog) -> None:
        watchdog.watch(asyncio.get_running_loop().call_soon)(partial(burn, HELD_S))

    watchdog, lines = observed(act, factory)
    assert [line.partition(" for: ")[2] for line in find_stalls("\n".join(lines))] == ["burn"]
    assert watchdog.stalls.longest_s >= HELD_S
    assert watchdog.stalls.longest_cpu_s >= HELD_S * 0.9


def test_an_inner_operation_is_named_instead_of_the_call_around_it(factory: LoopFactory) -> None:
    def act(watchdog: LoopWatchdog) -> None:
        def outer() -> None:
            with watchdog.measure("$JS.API.STREAM.PURGE.S"):
                burn()

        watchdog.run(outer)

    _, lines = observed(act, factory)
    (line,) = find_stalls("\n".join(lines))
    assert line.endswith(" for: $JS.API.STREAM.PURGE.S")


def test_a_stall_says_what_the_kernel_did_meanwhile() -> None:
    def act(_: LoopWatchdog) -> None:
        with mmap.mmap(-1, 1 << 24) as memory:  # touching a new page is a fault
            for at in range(0, len(memory), mmap.PAGESIZE):
                memory[at] = 1
        burn()

    _, lines = observed(act, asyncio.new_event_loop)
    (line,) = find_stalls("\n".join(lines))
    found = re.search(
        r"last measurement: (\d+) ms in the kernel, (\d+) page faults, \d+ preemptions\) for:", line
    )
    assert found is not None, line
    assert int(found[2]) > 100


def test_a_stall_that_nobody_reports_is_counted(factory: LoopFactory) -> None:
    watchdog, lines = observed(lambda _: burn(), factory)
    assert watchdog.stalls.count >= 1
    (line,) = find_stalls("\n".join(lines))
    assert line.endswith(f" for: {UNKNOWN_OPERATION}")


def test_waiting_for_the_processor_uses_no_cpu_time(factory: LoopFactory) -> None:
    watchdog, lines = observed(lambda _: time.sleep(HELD_S), factory)
    assert watchdog.stalls.count >= 1
    assert not find_stalls("\n".join(lines))


def test_work_in_earlier_turns_is_not_the_cpu_time_of_a_call_that_waits() -> None:
    found = find_cause([SlowCall("garbage collection", 0.9, 0.01)], held_s=1.0, used_s=0.5, delay_s=0.02)
    assert found.operation == "garbage collection"
    assert found.cpu_s == pytest.approx(0.11)  # its own, and all of the time that it does not explain
    found = find_cause([SlowCall("info", 0.03, 0.028)], held_s=0.055, used_s=0.06, delay_s=0.02)
    assert found.cpu_s == pytest.approx(0.04)  # 20 ms may have been used before this turn
    found = find_cause([SlowCall("info", 0.03, 0.028)], held_s=0.055, used_s=0.06, delay_s=0.2)
    assert found.cpu_s == pytest.approx(0.028)


def test_work_in_earlier_turns_is_not_the_cpu_time_of_a_turn_that_waits() -> None:
    assert find_cause([], held_s=0.112, used_s=0.059, delay_s=0.2).cpu_s == 0.0
    assert find_cause([], held_s=0.112, used_s=0.090, delay_s=0.02).cpu_s == pytest.approx(0.07)
    slow_calls = [SlowCall("a", 0.04, 0.03), SlowCall("b", 0.04, 0.03)]
    assert find_cause(slow_calls, held_s=0.112, used_s=0.07, delay_s=0.2).cpu_s == pytest.approx(0.06)


def test_a_loop_that_waits_is_no_stall(factory: LoopFactory) -> None:
    _, lines = observed(lambda _: None, factory)
    assert not find_stalls("\n".join(lines))


def test_garbage_collection_is_named() -> None:
    def act(_: LoopWatchdog) -> None:
        objects: list[list[int]] = [[] for _ in range(3_000_000)]
        gc.collect()
        objects.clear()

    _, lines = observed(act, asyncio.new_event_loop)
    assert any("garbage collection" in line for line in lines), lines


def test_lines_are_limited_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watchdog, "LOG_INTERVAL_S", 3600.0)
    log = ListLogger()
    watchdog = LoopWatchdog(log)

    async def stall() -> None:
        before = watchdog.stalls.count
        watchdog.run(burn)
        while watchdog.stalls.count == before:
            await asyncio.sleep(0.01)

    async def main() -> None:
        watchdog.start()
        for _ in range(3):
            await stall()
        assert len(log.lines) == 1
        monkeypatch.setattr(watchdog, "_next_log_s", 0.0)
        await stall()
        watchdog.stop()

    asyncio.run(main())
    assert "more since the last report" in log.lines[1]


def test_a_stopped_watchdog_leaves_nothing_behind() -> None:
    before = list(gc.callbacks)
    watchdog, _ = observed(lambda _: None, asyncio.new_event_loop)
    watchdog.stop()
    assert gc.callbacks == before


def test_one_short_stall_may_be_the_machine() -> None:
    """The kernel counts interrupts and faults of guest memory as CPU time of the thread that they hit."""
    short, long = (f"All clients waited {ms} ms ({ms} ms of CPU) for: x" for ms in (55, 120))
    assert not find_stalls(short)
    assert find_stalls(long) == [long]
    assert find_stalls(f"{short}\n{short}") == [short, short]
    assert find_stalls(f"{short}; 2 more since the last report") != []
