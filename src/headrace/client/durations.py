"""How long a message, a key or a marker lives, as the wire wants it: whole seconds in Go's words, or nanoseconds.

Owns the client's rules (at least a second; a fraction is rounded up, because servers cut it off and a value must not
vanish before its time). Reading durations is `headrace.durations`.
"""

from __future__ import annotations

from headrace.durations import Duration, duration_ns

__all__ = ["NEVER", "SECOND_NS", "Duration", "at_least_a_second", "optional_ns", "ttl_text"]

SECOND_NS = 1_000_000_000
#: The TTL of a message that outlives its stream's max_age.
NEVER = "never"


def at_least_a_second(duration: Duration, name: str = "ttl") -> int:
    """Its nanoseconds; ValueError if it is shorter than a second, which no server accepts."""
    nanoseconds = duration_ns(duration)
    if nanoseconds < SECOND_NS:
        raise ValueError(f"{name}={duration!r} is too short: at least one second")
    return nanoseconds


def optional_ns(duration: Duration | None, name: str) -> int:
    """Its nanoseconds; 0 for None and 0, which mean none."""
    if duration is None or duration == 0:
        return 0
    nanoseconds = duration_ns(duration)
    if nanoseconds <= 0:
        raise ValueError(f"{name}={duration!r} is not a duration: give a positive one, or None")
    return nanoseconds


def ttl_text(ttl: Duration) -> str:
    """The value of a `Nats-TTL` header, in the shortest Go form: 3600 is "1h", timedelta(seconds=90) is "1m30s"."""
    if ttl == NEVER:
        return NEVER
    seconds = -(-at_least_a_second(ttl) // SECOND_NS)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "m"), (seconds, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number)
