"""Durations as people and Go write them: "24h", "1m30s", "250ms"."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h|d)")

Duration = str | int | float | timedelta


def duration_ns(duration: Duration) -> int:
    """Nanoseconds of a text ("1h30m"), a number of seconds, or a timedelta."""
    if isinstance(duration, timedelta):
        return round(duration.total_seconds() * _UNITS_NS["s"])
    if isinstance(duration, int | float):
        return round(duration * _UNITS_NS["s"])
    parts = _PART.findall(duration)
    if not parts or "".join(number + unit for number, unit in parts) != duration:
        raise ValueError(f"{duration!r} is not a duration: write for example 24h, 1m30s or 250ms")
    return round(sum(float(number) * _UNITS_NS[unit] for number, unit in parts))
