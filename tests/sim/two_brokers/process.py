"""A simulated process: it can be suspended (SIGSTOP) and killed at any moment at which it waits.

Owns whether its coroutines continue. Invariant: nothing of a process runs while it is suspended, and never again after it
was killed. Requests that it has sent go on without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from headrace.sim.clock import SimClock


class MachineClock:
    """The clock of a machine: it is ahead of or behind the simulated time, and may be set."""

    def __init__(self, clock: SimClock, skew_ns: int) -> None:
        self._clock = clock
        self.skew_ns = skew_ns

    def now_ns(self) -> int:
        return self._clock.now_ns() + self.skew_ns

    def continue_from(self, time_ns: int) -> None:
        """Do not go back behind a time that another machine's clock has shown."""
        self.skew_ns += max(0, time_ns - self.now_ns())


class SimProcess:
    """One process of a machine."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_killed = False
        self.is_cut = False  # it cannot reach the object store
        self._resumed: asyncio.Future[None] | None = None
        self._tasks: list[asyncio.Task[Any]] = []
        self.failure: BaseException | None = None

    @property
    def is_running(self) -> bool:
        return self._resumed is None and not self.is_killed

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine of this process."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)  # a killed process waits forever: without a reference, it would be collected
        return task

    def suspend(self) -> None:
        """Stop at the next moment at which it waits."""
        if self._resumed is None:
            self._resumed = asyncio.get_running_loop().create_future()

    def resume(self) -> None:
        """Let a suspended process go on."""
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            resumed.set_result(None)

    def kill(self) -> None:
        """Stop for good."""
        self.is_killed = True
        self.suspend()

    async def run_gate(self) -> None:
        """Return when the process runs: never, if it was killed."""
        while self.is_killed or self._resumed is not None:
            if self.is_killed:
                await asyncio.get_running_loop().create_future()
            assert self._resumed is not None
            await asyncio.shield(self._resumed)

    async def sleep(self, delay_s: float) -> None:
        """Wait, longer if the process is suspended meanwhile."""
        await asyncio.sleep(delay_s)
        await self.run_gate()
