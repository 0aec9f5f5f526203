"""Broker time: runs calls at a given time of the server's clock.

Owns the order of calls and a time that never goes back: `now_ns()` continues when the clock is set back, so that
timeouts do not get longer. Calls with a date wait for the wall clock. The clock is passed in, real or virtual; the
server asks for `next_deadline()` and calls `run_due()` then, in slices if many calls are due. Calls are made in the
order of their deadlines, those with the same deadline in the order in which they were scheduled.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Callable

from headrace.clock import Clock

#: Two clocks may differ by this much without either having been set.
_SLACK_NS = 50_000_000


class TimerHandle:
    """A scheduled call at a time of `Timers.now_ns`; `cancel()` prevents it.

    With `on_wall_clock`, the call waits until the wall clock shows its time.
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
        """Cancel the call; no effect if it was already made."""
        if self.call is not None:
            self.call = None
            self._timers.on_cancelled()


class Timers:
    """Scheduled calls. `on_earlier_deadline` is called when the next deadline moves to an earlier time."""

    def __init__(self, clock: Clock, on_earlier_deadline: Callable[[], None] | None = None) -> None:
        self.clock = clock
        self.on_earlier_deadline = on_earlier_deadline
        #: Makes a call that is due; the server measures it here.
        self.run_call: Callable[[Callable[[], None]], None] = operator.call
        self._heap: list[TimerHandle] = []
        self._cancelled = 0
        self._order = 0
        self._last_clock_ns = 0
        #: How far the clock was set back, in total.
        self.clock_offset_ns = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def now_ns(self) -> int:
        """Return a time for measuring intervals: the clock's, except that it never goes back."""
        clock_ns = self.clock.now_ns()
        if clock_ns < self._last_clock_ns:
            self._add_offset(self._last_clock_ns - clock_ns)
        self._last_clock_ns = clock_ns
        return clock_ns + self.clock_offset_ns

    def advance_to(self, until_ns: int) -> None:
        """Advance `now_ns` to at least `until_ns`.

        The caller knows that this much time has passed although the clock does not show it.
        """
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
        """Schedule a call for when the wall clock shows the date or later."""
        return self._push(date_ns + self.clock_offset_ns, call, on_wall_clock=True)

    def at_monotonic(self, deadline_ns: int, call: Callable[[], None]) -> TimerHandle:
        """Schedule a call for when `now_ns` reaches the deadline."""
        return self._push(deadline_ns, call, on_wall_clock=False)

    def _push(self, deadline_ns: int, call: Callable[[], None], *, on_wall_clock: bool) -> TimerHandle:
        self._order += 1
        timer = TimerHandle(self, deadline_ns, self._order, call, on_wall_clock)
        heapq.heappush(self._heap, timer)
        if self.on_earlier_deadline is not None and self._heap[0] is timer:
            self.on_earlier_deadline()
        return timer

    def after(self, delay_ns: int, call: Callable[[], None]) -> TimerHandle:
        """Schedule a call after a delay."""
        return self._push(self.now_ns() + delay_ns, call, on_wall_clock=False)

    def cancel(self, handle: TimerHandle) -> None:
        """Cancel a call; no effect if it was already made."""
        handle.cancel()

    def next_deadline(self) -> int | None:
        """Return what the clock will show at the next deadline, unless it is set; None if nothing is scheduled."""
        self.now_ns()
        while self._heap and self._heap[0].call is None:
            heapq.heappop(self._heap)
            self._cancelled -= 1
        return self._heap[0].deadline_ns - self.clock_offset_ns if self._heap else None

    def run_due(self, has_time: Callable[[], bool] = lambda: True) -> int:
        """Make the calls that are due, including those scheduled meanwhile, while there is time; return how many."""
        calls = 0
        now = self.now_ns()
        while True:
            if self.next_deadline() is None or self._heap[0].deadline_ns > now or (calls and not has_time()):
                return calls
            timer = heapq.heappop(self._heap)
            call, timer.call = timer.call, None
            assert call is not None
            self.run_call(call)
            calls += 1

    def on_cancelled(self) -> None:
        """Count a cancelled timer; remove cancelled timers from the heap when they are the majority."""
        self._cancelled += 1
        if self._cancelled > 64 and self._cancelled * 2 > len(self._heap):
            self._heap = [timer for timer in self._heap if timer.call is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0
