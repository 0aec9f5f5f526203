"""Broker time: what has to happen at a certain moment of the server's clock.

Owns the order of what is due, and time that never goes back: `now_ns()` runs on when somebody sets the clock back,
so that whatever waits for so long waits no longer. What has a date waits for the clock. The clock comes from outside,
real or virtual; the shell asks `next_deadline()` and calls `run_due()` then. Calls are made in the order of their
deadlines, equal ones in the order they were asked for.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

#: Two clocks differ by so much without anybody having set one.
_SLACK_NS = 50_000_000


class Clock(Protocol):
    """Where the time comes from: nanoseconds since the epoch."""

    def now_ns(self) -> int: ...


class Handle:
    """Something that is going to happen, at a moment of `Timers.now_ns`; `cancel()` prevents it. `dated`: when the clock
    shows that moment.
    """

    __slots__ = ("_timers", "call", "dated", "deadline_ns", "order")

    def __init__(
        self, timers: Timers, deadline_ns: int, order: int, call: Callable[[], None], dated: bool
    ) -> None:
        self._timers = timers
        self.deadline_ns = deadline_ns
        self.order = order
        self.dated = dated
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
        self._seen_ns = 0
        #: How far the clock was set back, in all.
        self.behind_ns = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def now_ns(self) -> int:
        """The time, for how long something takes: as the clock shows it, but it never goes back."""
        clock_ns = self.clock.now_ns()
        if clock_ns < self._seen_ns:
            self._fall_behind(self._seen_ns - clock_ns)
        self._seen_ns = clock_ns
        return clock_ns + self.behind_ns

    def passed(self, until_ns: int) -> None:
        """It is that late, in terms of `now_ns`: who knows better than the clock says so."""
        missing_ns = until_ns - self.now_ns()
        if missing_ns > _SLACK_NS:
            self._fall_behind(missing_ns)

    def _fall_behind(self, by_ns: int) -> None:
        self.behind_ns += by_ns
        for timer in self._heap:
            if timer.dated:
                timer.deadline_ns += by_ns
        heapq.heapify(self._heap)

    def at(self, date_ns: int, call: Callable[[], None]) -> Handle:
        """Call when the clock shows the date or later."""
        return self._push(date_ns + self.behind_ns, call, dated=True)

    def at_own(self, deadline_ns: int, call: Callable[[], None]) -> Handle:
        """Call when `now_ns` has come to the deadline."""
        return self._push(deadline_ns, call, dated=False)

    def _push(self, deadline_ns: int, call: Callable[[], None], *, dated: bool) -> Handle:
        self._order += 1
        timer = Handle(self, deadline_ns, self._order, call, dated)
        heapq.heappush(self._heap, timer)
        if self.changed is not None and self._heap[0] is timer:
            self.changed()
        return timer

    def after(self, delay_ns: int, call: Callable[[], None]) -> Handle:
        """Call when so much time has passed."""
        return self._push(self.now_ns() + delay_ns, call, dated=False)

    def cancel(self, handle: Handle) -> None:
        """Do not call; no harm when it has happened already."""
        handle.cancel()

    def next_deadline(self) -> int | None:
        """What the clock shows when there is something to do, unless it is set; None when there is nothing ahead."""
        self.now_ns()
        while self._heap and self._heap[0].call is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0].deadline_ns - self.behind_ns if self._heap else None

    def run_due(self) -> int:
        """Make every call whose deadline has come, also those asked for meanwhile; how many there were."""
        made = 0
        now = self.now_ns()
        while True:
            if self.next_deadline() is None or self._heap[0].deadline_ns > now:
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
