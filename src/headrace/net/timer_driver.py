"""Runs the broker's timers in an event loop; if many are due, others are served between them.

The broker knows only `Timers`; this module drives them in real time, `virtual_time` in virtual time.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from headrace.broker import Timers
from headrace.net.turn_queue import SLICE_S

SECOND_NS = 1_000_000_000
#: Never sleep longer than this: the system's clock may be set meanwhile.
SLEEP_S_MAX = 60.0


class TimerDriver:
    """Runs due calls, with one timer of the event loop for the next deadline."""

    def __init__(self, timers: Timers, loop: asyncio.AbstractEventLoop) -> None:
        self._timers = timers
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._armed_at = (0, 0.0)
        timers.on_earlier_deadline = self._arm
        self._arm()

    def close(self) -> None:
        self._timers.on_earlier_deadline = None
        if self._handle is not None:
            self._handle.cancel()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        deadline_ns = self._timers.next_deadline()
        if deadline_ns is None:
            return
        self._armed_at = (self._timers.now_ns(), self._loop.time())
        delay_s = (deadline_ns - self._timers.clock.now_ns()) / SECOND_NS
        self._handle = self._loop.call_later(min(max(delay_s, 0.0), SLEEP_S_MAX), self._on_timer)

    def _on_timer(self) -> None:
        self._handle = None
        started_ns, started_s = self._armed_at
        # The event loop's clock is monotonic.
        self._timers.advance_to(started_ns + int((self._loop.time() - started_s) * SECOND_NS))
        end_s = perf_counter() + SLICE_S
        try:
            self._timers.run_due(lambda: perf_counter() < end_s)
        finally:
            self._arm()
