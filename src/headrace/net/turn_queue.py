"""A queue of calls that share a limited time in each turn of the event loop.

Thousands of connections can become readable, or disconnect, in the same turn. Invariant: calls are made in the order in
which they were added, and after `SLICE_S` the rest waits for the next turn, so that others are served between them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

#: How long the calls of one queue may take in one turn.
SLICE_S = 0.002
#: How long one turn may do work of the same kind that does not wait in the queue.
TURN_S = 0.004


class TurnQueue:
    """Calls of one kind."""

    __slots__ = ("_calls", "_is_scheduled", "_loop", "_turn_end_s", "_used_s")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: deque[Callable[[], None]] = deque()
        self._used_s = 0.0
        self._is_scheduled = False
        self._turn_end_s = 0.0

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Callable[[], None]) -> None:
        """Make the call in the next turn, or later if there is much to do."""
        self._calls.append(call)
        self._schedule()

    def run(self, call: Callable[[], None]) -> None:
        """Make the call now if this turn has time left for it, otherwise later."""
        if self._calls or self._used_s >= SLICE_S:
            self.add(call)
            return
        self._schedule()
        started_s = perf_counter()
        call()
        self._used_s += perf_counter() - started_s

    def is_turn_over(self) -> bool:
        """Return whether this turn has lasted long since the first time that it was asked, so that work should wait."""
        if self._turn_end_s:
            return perf_counter() > self._turn_end_s
        self._turn_end_s = perf_counter() + TURN_S
        self._loop.call_soon(self._on_next_turn)
        return False

    def _on_next_turn(self) -> None:
        self._turn_end_s = 0.0

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._on_turn)

    def _on_turn(self) -> None:
        self._is_scheduled = False
        self._used_s = 0.0
        end_s = perf_counter() + SLICE_S
        try:
            while self._calls and perf_counter() < end_s:
                self._calls.popleft()()
        finally:
            if self._calls:
                self._schedule()

    def finish(self) -> None:
        """Make all calls now."""
        while self._calls:
            self._calls.popleft()()
