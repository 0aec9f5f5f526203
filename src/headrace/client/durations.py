"""Encodes how long a message, a key or a marker lives: whole seconds as a Go duration, or nanoseconds.

Owns the client's rules: at least a second, and a fraction is rounded up, because servers truncate it and a value must
not vanish too early. `headrace.durations` parses durations.
"""

from __future__ import annotations

from headrace.durations import Duration, parse_duration_ns

__all__ = ["NEVER", "SECOND_NS", "Duration", "format_ttl", "parse_optional_ns", "parse_ttl_ns"]

SECOND_NS = 1_000_000_000
#: The TTL of a message that outlives its stream's max_age.
NEVER = "never"


def parse_ttl_ns(duration: Duration, name: str = "ttl") -> int:
    """Return nanoseconds; raise ValueError if shorter than a second, which no server accepts."""
    nanoseconds = parse_duration_ns(duration)
    if nanoseconds < SECOND_NS:
        raise ValueError(f"{name}={duration!r} is too short: use at least one second")
    return nanoseconds


def parse_optional_ns(duration: Duration | None, name: str) -> int:
    """Return nanoseconds; 0 for None and 0, which mean none."""
    if duration is None or duration == 0:
        return 0
    nanoseconds = parse_duration_ns(duration)
    if nanoseconds <= 0:
        raise ValueError(f"{name}={duration!r} is not a positive duration: use one, or None")
    return nanoseconds


def format_ttl(ttl: Duration) -> str:
    """Return the value of a `Nats-TTL` header, in the shortest Go form: 3600 is "1h", timedelta(seconds=90) is "1m30s"."""
    if ttl == NEVER:
        return NEVER
    seconds = -(-parse_ttl_ns(ttl) // SECOND_NS)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (seconds, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number)
