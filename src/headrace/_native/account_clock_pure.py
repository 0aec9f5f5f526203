"""The times of one account in pure Python: a different one for each message, and the wall clock; the compiled version is
`account_clock.pyx`.

Owns the last time that was given to a message. Implements `MessageClock` of the publish fast path.
"""

from __future__ import annotations

from headrace.clock import Clock

#: A clock that went back further than this was set on purpose; follow it.
_CLOCK_JUMP_NS = 1_000_000_000


class AccountClock:
    """`now_ns` is for messages and events, `wall_ns` for comparisons with the time of day."""

    __slots__ = ("_last_ns", "wall_ns")

    def __init__(self, clock: Clock) -> None:
        self._last_ns = 0
        #: Returns the time of day.
        self.wall_ns = clock.now_ns

    def now_ns(self) -> int:
        """Return the time for a new message: never the same twice, so that a time identifies at most one message."""
        now = self.wall_ns()
        if self._last_ns - _CLOCK_JUMP_NS < now <= self._last_ns:
            now = self._last_ns + 1
        self._last_ns = now
        return now

    def reserve_times(self, count: int) -> int:
        """Return the first of `count` consecutive times, for messages that are stored together."""
        first = self.now_ns()
        self._last_ns = first + count - 1
        return first
