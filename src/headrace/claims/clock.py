"""Clocks for claims: nanoseconds since the epoch, from the machine or from the server.

Producers and consumers use the machine's clock and allow for skew; collectors ask the server, whose TTLs decide.
Nothing in this package calls `time.time()` itself.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

SECOND_NS = 1_000_000_000
_FRACTION = re.compile(r"\.(\d{1,9})")


class FakeClock:
    """A clock that stands still until it is moved; for tests of programs that use claims."""

    def __init__(self, now_ns: int | None = None) -> None:
        self._now_ns = time.time_ns() if now_ns is None else now_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, seconds: float) -> None:
        self._now_ns += round(seconds * SECOND_NS)


def to_datetime(time_ns: int) -> datetime:
    return datetime.fromtimestamp(time_ns // SECOND_NS, UTC)


def format_rfc3339(time_ns: int) -> str:
    """`2026-01-31T12:00:00Z`"""
    return to_datetime(time_ns).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_rfc3339_ns(text: str) -> int:
    """Parse a time as servers write it; a time from a client may be in a zone other than UTC."""
    moment = datetime.fromisoformat(text).replace(microsecond=0)
    fraction = _FRACTION.search(text)
    return int(moment.timestamp()) * SECOND_NS + (int(fraction[1].ljust(9, "0")) if fraction else 0)
