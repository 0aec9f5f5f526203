"""A timer wheel for the timeouts of all connections, instead of one timer for each.

Owns when a connection is checked next. A connection has one timeout; a new one replaces the old. Only the connection's
id is stored, so that a closed connection is not kept in memory. It uses the event loop's time, not the broker's clock.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Protocol

SLOT_S = 0.02


class Timed(Protocol):
    """An object with a timeout; `slot` belongs to the wheel."""

    slot: int

    @property
    def timer_id(self) -> int: ...

    def on_timeout(self) -> None:
        """Called when the timeout has expired."""


class TimerWheel:
    """Timeouts with a resolution of 20 ms, never early."""

    __slots__ = ("_find", "_handle", "_loop", "_slot_heap", "_slots")

    def __init__(self, loop: asyncio.AbstractEventLoop, find: Callable[[int], Timed | None]) -> None:
        self._loop = loop
        self._find = find
        self._slots: dict[int, list[int]] = {}
        self._slot_heap: list[int] = []
        self._handle: asyncio.TimerHandle | None = None

    def schedule(self, timed: Timed, delay_s: float) -> None:
        """Set the timeout of an object; it replaces the previous one."""
        slot = int((self._loop.time() + delay_s) / SLOT_S) + 1
        timed.slot = slot
        timer_ids = self._slots.get(slot)
        if timer_ids is not None:
            timer_ids.append(timed.timer_id)
            return
        self._slots[slot] = [timed.timer_id]
        heapq.heappush(self._slot_heap, slot)
        if self._slot_heap[0] == slot:
            self._arm()

    def stop(self) -> None:
        """Drop all timeouts."""
        if self._handle is not None:
            self._handle.cancel()
        self._slots.clear()
        self._slot_heap.clear()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(self._slot_heap[0] * SLOT_S, self._fire)

    def _fire(self) -> None:
        now = self._loop.time()
        self._handle = None
        while self._slot_heap and self._slot_heap[0] * SLOT_S <= now:
            slot = heapq.heappop(self._slot_heap)
            for timer_id in self._slots.pop(slot, ()):
                timed = self._find(timer_id)
                if timed is not None and timed.slot == slot:
                    timed.on_timeout()
        if self._slot_heap:
            self._arm()
