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
