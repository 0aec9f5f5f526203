"""The clock of a real server, and what makes its timers happen in an event loop.

The broker knows only `Clock` and `Timers`; this joins them to the world. Virtual time is `headrace.sim`'s.
"""

from __future__ import annotations

import asyncio
import time

from headrace.broker import Timers

SECOND_NS = 1_000_000_000
#: Never sleep longer than this on one alarm: the system's clock may be set meanwhile.
ALARM_S_MAX = 60.0


class SystemClock:
    """The machine's own time."""

    __slots__ = ("now_ns",)

    def __init__(self) -> None:
        self.now_ns = time.time_ns


class Alarm:
    """Runs what is due when it is due, with one loop timer for the next deadline."""

    def __init__(self, timers: Timers, loop: asyncio.AbstractEventLoop) -> None:
        self._timers = timers
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None
        self._set_at = (0, 0.0)
        timers.changed = self._set
        self._set()

    def close(self) -> None:
        self._timers.changed = None
        if self._handle is not None:
            self._handle.cancel()

    def _set(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        deadline_ns = self._timers.next_deadline()
        if deadline_ns is None:
            return
        self._set_at = (self._timers.now_ns(), self._loop.time())
        delay_s = (deadline_ns - self._timers.clock.now_ns()) / SECOND_NS
        self._handle = self._loop.call_later(min(max(delay_s, 0.0), ALARM_S_MAX), self._ring)

    def _ring(self) -> None:
        self._handle = None
        started_ns, started_s = self._set_at
        # The loop's own clock is never set.
        self._timers.passed(started_ns + int((self._loop.time() - started_s) * SECOND_NS))
        try:
            self._timers.run_due()
        finally:
            self._set()
