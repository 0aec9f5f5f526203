"""Event loop on virtual time: asyncio programs run in a simulation, and time passes only on the simulated clock.

Owns when coroutines continue. Nothing waits in real time: when no coroutine can run, the clock moves to the next timer
of the loop or to the next deadline of the simulation, whichever comes first. There are no threads: work for an executor
runs at once. Invariant: two runs that schedule the same things are identical.
"""

from __future__ import annotations

import asyncio
import math
from asyncio import base_events
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from headrace.sim.clock import SECOND_NS, SimClock

_ITERATIONS_MAX = 5_000_000
_T = TypeVar("_T")


class LoopEnvironment(Protocol):
    """What happens outside of the coroutines."""

    def next_deadline(self) -> int | None:
        """Return when something happens by itself, in the clock's time; None if nothing will."""

    def run_due(self) -> object:
        """Run what is due."""


class SimulationStuck(RuntimeError):
    """Everything waits for something that will never come, or the loop never becomes idle."""


class _ClockSelector:
    """A selector without files: instead of waiting it moves the clock."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.advance_clock(timeout)
        return []


class SimLoop(base_events.BaseEventLoop):
    """A loop whose time is a simulated clock's, counted from the loop's start."""

    def __init__(self, clock: SimClock, environment: LoopEnvironment) -> None:
        super().__init__()
        self._clock = clock
        self._start_ns = clock.now_ns()
        self._environment = environment
        self._iterations = 0
        self._selector = _ClockSelector(self)

    def time(self) -> float:
        return (self._clock.now_ns() - self._start_ns) / SECOND_NS

    def advance_clock(self, timeout: float | None) -> None:
        """Called once per turn: coroutines can continue now (0), after a timeout, or only when the environment acts."""
        self._iterations += 1
        if self._iterations > _ITERATIONS_MAX:
            raise SimulationStuck(f"still busy after {_ITERATIONS_MAX:,} turns of the event loop")
        if timeout is not None and timeout <= 0:
            return
        now_ns = self._clock.now_ns()
        deadline_ns = self._environment.next_deadline()
        limit_ns = None if timeout is None else now_ns + math.ceil(timeout * SECOND_NS)
        if deadline_ns is not None and (limit_ns is None or deadline_ns <= limit_ns):
            self._clock.advance(max(deadline_ns - now_ns, 0))
            self._environment.run_due()
        elif limit_ns is not None:
            self._clock.advance(limit_ns - now_ns)
        else:
            raise SimulationStuck("deadlock: all tasks wait, and no timer is pending")

    def run_in_executor(self, executor: Any, func: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:  # type: ignore[override]
        """Run at once: a thread would run at unpredictable times."""
        done: asyncio.Future[_T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there are no events."""

    def _write_to_self(self) -> None:
        """Do nothing: the loop never sleeps."""


def run_program(loop: SimLoop, program: Coroutine[Any, Any, _T]) -> _T:
    """Run a program to its end, then cancel all remaining tasks."""
    try:
        return loop.run_until_complete(program)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.set_exception_handler(lambda _loop, _context: None)
        loop.run_until_complete(_finish_tasks(loop))
        loop.close()


async def _finish_tasks(loop: SimLoop) -> None:
    others = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
    await asyncio.gather(*others, return_exceptions=True)
    await loop.shutdown_asyncgens()
