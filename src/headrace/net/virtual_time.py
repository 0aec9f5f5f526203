"""Runs the broker's timers in virtual time: the clock stands still until it is advanced.

The counterpart of `timer_driver`. Connections still use real time.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from headrace.broker import Accounts, Clock, Timers


class VirtualClock(Clock, Protocol):
    """A clock that can be advanced."""

    def advance(self, delta_ns: int) -> int:
        """Move time forward; return the new time."""


class VirtualTime:
    """Virtual time of one server."""

    def __init__(self, clock: VirtualClock, timers: Timers, accounts: Accounts) -> None:
        self._clock = clock
        self._timers = timers
        self._accounts = accounts

    async def advance(self, duration_ns: int) -> None:
        """Let time pass; everything that falls due meanwhile has happened on return."""
        clock, timers = self._clock, self._timers
        end_ns = clock.now_ns() + duration_ns
        while (deadline_ns := timers.next_deadline()) is not None and deadline_ns <= end_ns:
            clock.advance(max(deadline_ns - clock.now_ns(), 0))
            timers.run_due()
            await self._wait_until_quiescent()
        clock.advance(end_ns - clock.now_ns())
        await self._wait_until_quiescent()

    async def _wait_until_quiescent(self) -> None:
        """Wait until recent changes are durable and their replies are sent."""
        await asyncio.sleep(0)
        # Poll: the store has a single commit callback, and the broker uses it.
        while any(not jetstream.is_quiescent for jetstream in self._accounts.jetstreams()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)
