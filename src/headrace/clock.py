"""Where the time comes from: every part that needs it is given a clock, so that a simulation can give another.

Owns the protocol and the machine's own clock. Must not know who asks.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time in nanoseconds since the epoch."""

    def now_ns(self) -> int: ...


class SystemClock:
    """The time of this machine."""

    __slots__ = ("now_ns",)

    def __init__(self) -> None:
        self.now_ns = time.time_ns


class FlooredClock:
    """The time of this machine, but never before a moment."""

    __slots__ = ("_floor_ns",)

    def __init__(self, floor_ns: int) -> None:
        self._floor_ns = floor_ns

    def now_ns(self) -> int:
        """Return the time."""
        return max(time.time_ns(), self._floor_ns)


def make_system_clock(floor_ns: int) -> Clock:
    """Return the machine's clock; if it has not reached `floor_ns` yet, one that shows at least this time."""
    return FlooredClock(floor_ns) if floor_ns > time.time_ns() else SystemClock()
