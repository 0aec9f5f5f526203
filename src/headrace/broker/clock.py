"""The server's clock: what time it is, for everything a message or a stream can tell.

Owns the two kinds: the system's, and one that stands still until it is moved. Connection liveness is no
business of this clock; sockets live in real time whatever a test does here.
"""

from __future__ import annotations

import time
from typing import Protocol

#: 2026-01-01T00:00:00Z
VIRTUAL_START_NS = 1_767_225_600 * 1_000_000_000


class Clock(Protocol):
    """Nanoseconds since the epoch."""

    def now_ns(self) -> int: ...


class SystemClock:
    """The time of day."""

    __slots__ = ()

    def now_ns(self) -> int:
        return time.time_ns()


class VirtualClock:
    """Time that moves only when told, and never back."""

    __slots__ = ("_now_ns",)

    def __init__(self, start_ns: int = VIRTUAL_START_NS) -> None:
        self._now_ns = start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def set(self, now_ns: int) -> None:
        """It is now this late."""
        if now_ns < self._now_ns:
            raise ValueError(f"time cannot go back by {self._now_ns - now_ns} ns")
        self._now_ns = now_ns
