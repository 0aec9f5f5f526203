"""Parses durations and sizes as people and Go write them: "24h", "1m30s", "250ms"; "64MB", "8k"."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS_NS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # the micro sign, and the Greek letter
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
#: Possessive, so that matching is linear: texts with thousands of digits come from untrusted clients.
_DURATION_PART = re.compile(r"(\d++(?:\.\d*+)?|\.\d++)(ns|us|µs|μs|ms|s|m|h|d)")

_SIZE = re.compile(r"(\d+)\s*(?:([kmgt])(i?b?)?)?", re.IGNORECASE)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}

Duration = str | int | float | timedelta


def parse_duration_ns(duration: Duration) -> int:
    """Convert a text ("1h30m"), a number of seconds, or a timedelta to nanoseconds."""
    if isinstance(duration, timedelta):
        return round(duration.total_seconds() * _UNITS_NS["s"])
    if isinstance(duration, int | float):
        return round(duration * _UNITS_NS["s"])
    position, total = 0, 0.0
    while position < len(duration) or not duration:
        part = _DURATION_PART.match(duration, position)
        if part is None:
            raise ValueError(f"{duration!r} is not a duration: write for example 24h, 1m30s or 250ms")
        total += float(part[1]) * _UNITS_NS[part[2]]
        position = part.end()
    return round(total)


def parse_size(text: str) -> int:
    """Parse "1024", "8k" (powers of 1000) or "64KB", "1MiB" (powers of 1024) to bytes, as nats-server does."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size: write for example 1048576, 1MB or 64KB")
    number, unit, binary = match.groups()
    if unit is None:
        return int(number)
    return int(number) * int((1024 if binary else 1000) ** _POWERS[unit.lower()])
