"""Broker time: what has to happen at a certain moment of the server's clock.

Owns the order of what is due. The clock comes from outside, real or virtual; the shell asks `next_deadline()`
and calls `run_due()` then. Calls are made in the order of their deadlines, equal ones in the order they were
asked for.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from: nanoseconds since the epoch."""

    def now_ns(self) -> int: ...


class Handle:
    """Something that is going to happen; `cancel()` prevents it."""

    __slots__ = ("_timers", "call", "deadline_ns", "order")

    def __init__(self, timers: Timers, deadline_ns: int, order: int, call: Callable[[], None]) -> None:
        self._timers = timers
        self.deadline_ns = deadline_ns
        self.order = order
        self.call: Callable[[], None] | None = call

    def __lt__(self, other: Handle) -> bool:
        return (self.deadline_ns, self.order) < (other.deadline_ns, other.order)

    def cancel(self) -> None:
        """Do not call; no harm when it has happened already."""
        if self.call is not None:
            self.call = None
            self._timers.forget()


class Timers:
    """The moments ahead. `changed` is called when the next deadline became an earlier one."""

    def __init__(self, clock: Clock, changed: Callable[[], None] | None = None) -> None:
        self.clock = clock
        self.changed = changed
        self._heap: list[Handle] = []
        self._cancelled = 0
        self._order = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def at(self, deadline_ns: int, call: Callable[[], None]) -> Handle:
        """Call when the clock shows the deadline or later."""
        self._order += 1
        timer = Handle(self, deadline_ns, self._order, call)
        heapq.heappush(self._heap, timer)
        if self.changed is not None and self._heap[0] is timer:
            self.changed()
        return timer

    def after(self, delay_ns: int, call: Callable[[], None]) -> Handle:
        """Call when so much time has passed."""
        return self.at(self.clock.now_ns() + delay_ns, call)

    def cancel(self, handle: Handle) -> None:
        """Do not call; no harm when it has happened already."""
        handle.cancel()

    def next_deadline(self) -> int | None:
        """When there is something to do; None when there is nothing ahead."""
        while self._heap and self._heap[0].call is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0].deadline_ns if self._heap else None

    def run_due(self) -> int:
        """Make every call whose deadline has come, also those asked for meanwhile; how many there were."""
        made = 0
        now = self.clock.now_ns()
        while True:
            deadline = self.next_deadline()
            if deadline is None or deadline > now:
                return made
            timer = heapq.heappop(self._heap)
            call, timer.call = timer.call, None
            assert call is not None
            call()
            made += 1

    def forget(self) -> None:
        """Count a cancelled timer, and clear them out when they are the larger part."""
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._heap):
            self._heap = [timer for timer in self._heap if timer.call is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0
