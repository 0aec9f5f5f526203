"""Idle work of a store: shortly after the last commit, and again and again while its disk is full.

Owns one timer. The store writes a mark for its last frame, which tells corruption from a torn write, and on a full disk
looks for space that others may have freed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.code_probes import sometimes

if TYPE_CHECKING:
    from headrace.broker.timers import TimerHandle, Timers
    from headrace.storage import Store

_IDLE_NS = 50_000_000
_FULL_NS = 1_000_000_000


class IdleTimer:
    """Calls `store.on_idle` when nothing was committed for a while."""

    __slots__ = ("_store", "_timer", "_timers")

    def __init__(self, store: Store, timers: Timers) -> None:
        self._store = store
        self._timers = timers
        self._timer: TimerHandle | None = None
        if store.full:
            self.start()

    def start(self) -> None:
        """Start the timer unless it runs: something was committed, or the disk is full."""
        if self._timer is None:
            self._timer = self._timers.after(_IDLE_NS, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self._store.on_idle()
        if self._store.full:
            sometimes("full disk checked again")
            self._timer = self._timers.after(_FULL_NS, self._fire)
