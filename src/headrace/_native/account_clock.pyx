# cython: language_level=3
"""The times of one account, compiled: a different one for each message, and the wall clock.

Owns the last time that was given to a message. `account_clock_pure` is the same in pure Python.
"""

from libc.stdint cimport int64_t

cdef enum:
    # A clock that went back further than this was set on purpose; follow it.
    CLOCK_JUMP_NS = 1_000_000_000


cdef class AccountClock:
    """`now_ns` is for messages and events, `wall_ns` for comparisons with the time of day."""

    cdef readonly object wall_ns
    cdef int64_t last_ns

    def __init__(self, clock):
        self.wall_ns = clock.now_ns

    def now_ns(self):
        """Return the time for a new message: never the same twice, so that a time identifies at most one message."""
        cdef int64_t now = self.wall_ns()
        if self.last_ns - CLOCK_JUMP_NS < now <= self.last_ns:
            now = self.last_ns + 1
        self.last_ns = now
        return now

    def reserve_times(self, int64_t count):
        """Return the first of `count` consecutive times, for messages that are stored together."""
        cdef int64_t first = self.now_ns()
        self.last_ns = first + count - 1
        return first
