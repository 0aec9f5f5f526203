"""Broker time: runs calls at a given time of the server's clock.

Owns the order of calls and a time that never goes back: `now_ns()` continues when the clock is set back, so that
timeouts do not get longer. Calls with a date wait for the wall clock. The clock is passed in, real or virtual; the
server asks for `next_deadline()` and calls `run_due()` then. Calls are made in the order of their deadlines, those with
the same deadline in the order in which they were scheduled.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from headrace.clock import Clock

#: Two clocks differ by so much without anybody having set one.
_SLACK_NS = 50_000_000


class TimerHandle:
    """Something that is going to happen, at a moment of `Timers.now_ns`; `cancel()` prevents it. `on_wall_clock`: when
    the clock shows that moment.
    """

    __slots__ = ("_timers", "call", "deadline_ns", "on_wall_clock", "order")

    def __init__(
        self, timers: Timers, deadline_ns: int, order: int, call: Callable[[], None], on_wall_clock: bool
    ) -> None:
        self._timers = timers
        self.deadline_ns = deadline_ns
        self.order = order
        self.on_wall_clock = on_wall_clock
        self.call: Callable[[], None] | None = call

    def __lt__(self, other: TimerHandle) -> bool:
        return (self.deadline_ns, self.order) < (other.deadline_ns, other.order)

    def cancel(self) -> None:
        """Do not call; no harm when it has happened already."""
        if self.call is not None:
            self.call = None
            self._timers.on_cancelled()


class Timers:
    """The moments ahead. `changed` is called when the next deadline became an earlier one."""

    def __init__(self, clock: Clock, on_earlier_deadline: Callable[[], None] | None = None) -> None:
        self.clock = clock
        self.on_earlier_deadline = on_earlier_deadline
        self._heap: list[TimerHandle] = []
        self._cancelled = 0
        self._order = 0
        self._last_clock_ns = 0
        #: How far the clock was set back, in all.
        self.clock_offset_ns = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def now_ns(self) -> int:
        """The time, for how long something takes: as the clock shows it, but it never goes back."""
        clock_ns = self.clock.now_ns()
        if clock_ns < self._last_clock_ns:
            self._add_offset(self._last_clock_ns - clock_ns)
        self._last_clock_ns = clock_ns
        return clock_ns + self.clock_offset_ns

    def advance_to(self, until_ns: int) -> None:
        """It is that late, in terms of `now_ns`: who knows better than the clock says so."""
        missing_ns = until_ns - self.now_ns()
        if missing_ns > _SLACK_NS:
            self._add_offset(missing_ns)

    def _add_offset(self, by_ns: int) -> None:
        self.clock_offset_ns += by_ns
        for timer in self._heap:
            if timer.on_wall_clock:
                timer.deadline_ns += by_ns
        heapq.heapify(self._heap)

    def at_wall_time(self, date_ns: int, call: Callable[[], None]) -> TimerHandle:
        """Call when the clock shows the date or later."""
        return self._push(date_ns + self.clock_offset_ns, call, on_wall_clock=True)

    def at_monotonic(self, deadline_ns: int, call: Callable[[], None]) -> TimerHandle:
        """Call when `now_ns` has come to the deadline."""
        return self._push(deadline_ns, call, on_wall_clock=False)

    def _push(self, deadline_ns: int, call: Callable[[], None], *, on_wall_clock: bool) -> TimerHandle:
        self._order += 1
        timer = TimerHandle(self, deadline_ns, self._order, call, on_wall_clock)
        heapq.heappush(self._heap, timer)
        if self.on_earlier_deadline is not None and self._heap[0] is timer:
            self.on_earlier_deadline()
        return timer

    def after(self, delay_ns: int, call: Callable[[], None]) -> TimerHandle:
        """Call when so much time has passed."""
        return self._push(self.now_ns() + delay_ns, call, on_wall_clock=False)

    def cancel(self, handle: TimerHandle) -> None:
        """Do not call; no harm when it has happened already."""
        handle.cancel()

    def next_deadline(self) -> int | None:
        """What the clock shows when there is something to do, unless it is set; None when there is nothing ahead."""
        self.now_ns()
        while self._heap and self._heap[0].call is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0].deadline_ns - self.clock_offset_ns if self._heap else None

    def run_due(self) -> int:
        """Make every call whose deadline has come, also those asked for meanwhile; how many there were."""
        calls = 0
        now = self.now_ns()
        while True:
            if self.next_deadline() is None or self._heap[0].deadline_ns > now:
                return calls
            timer = heapq.heappop(self._heap)
            call, timer.call = timer.call, None
            assert call is not None
            call()
            calls += 1

    def on_cancelled(self) -> None:
        """Count a cancelled timer, and clear them out when they are the larger part."""
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._heap):
            self._heap = [timer for timer in self._heap if timer.call is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0
