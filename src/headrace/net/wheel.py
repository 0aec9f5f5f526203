"""One clock for the patience of all connections, instead of a timer for each.

Owns when a connection is looked at next. A connection has one appointment; a new one replaces the old. Only
its number is kept, so that who has gone is forgotten at once. It keeps the loop's time, whatever the broker's
clock shows.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Protocol

SLOT_S = 0.02


class Patient(Protocol):
    """What waits for its appointment; `slot` belongs to the wheel."""

    slot: int

    @property
    def number(self) -> int: ...

    def look(self) -> None:
        """The appointed time has come."""


class Wheel:
    """Appointments, kept to a fiftieth of a second and never early."""

    __slots__ = ("_find", "_handle", "_loop", "_order", "_slots")

    def __init__(self, loop: asyncio.AbstractEventLoop, find: Callable[[int], Patient | None]) -> None:
        self._loop = loop
        self._find = find
        self._slots: dict[int, list[int]] = {}
        self._order: list[int] = []
        self._handle: asyncio.TimerHandle | None = None

    def appoint(self, patient: Patient, delay_s: float) -> None:
        """Look at it after this delay, and not before."""
        slot = int((self._loop.time() + delay_s) / SLOT_S) + 1
        patient.slot = slot
        waiting = self._slots.get(slot)
        if waiting is not None:
            waiting.append(patient.number)
            return
        self._slots[slot] = [patient.number]
        heapq.heappush(self._order, slot)
        if self._order[0] == slot:
            self._arm()

    def stop(self) -> None:
        """Keep no more appointments."""
        if self._handle is not None:
            self._handle.cancel()
        self._slots.clear()
        self._order.clear()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(self._order[0] * SLOT_S, self._turn)

    def _turn(self) -> None:
        now = self._loop.time()
        self._handle = None
        while self._order and self._order[0] * SLOT_S <= now:
            slot = heapq.heappop(self._order)
            for number in self._slots.pop(slot, ()):
                patient = self._find(number)
                if patient is not None and patient.slot == slot:
                    patient.look()
        if self._order:
            self._arm()
