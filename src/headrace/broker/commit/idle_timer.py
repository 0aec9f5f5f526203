"""Idle work of a store: shortly after the last commit, again and again while its disk is full, and long after it.

Owns the timers. Shortly after the last commit the store writes a mark for it, which tells corruption from a torn write,
and on a full disk looks for space that others may have freed. Long after it, memory and files that only a burst needed
are given back.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace._native.heap import HeapTrimmer, begin_trimming
from headrace.code_probes import sometimes
from headrace.storage import count_uses, release_idle_resources

if TYPE_CHECKING:
    from headrace.broker.timers import TimerHandle, Timers
    from headrace.storage import Store

_IDLE_NS = 50_000_000
_FULL_NS = 1_000_000_000
_LONG_IDLE_NS = 10_000_000_000
_TRIM_PAUSE_NS = 1_000_000  # between two steps, so that others are served


class IdleTimer:
    """Calls `store.on_idle` when nothing was committed for a while, and releases what is not needed after a long one."""

    __slots__ = ("_long_timer", "_seen_uses", "_store", "_timer", "_timers")

    def __init__(self, store: Store, timers: Timers) -> None:
        self._store = store
        self._timers = timers
        self._timer: TimerHandle | None = None
        self._long_timer: TimerHandle | None = None
        self._seen_uses = (0, 0)  # when the long timer was started
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
        if self._long_timer is None:
            self._start_long_timer()

    def _start_long_timer(self) -> None:
        self._seen_uses = count_uses(self._store)
        self._long_timer = self._timers.after(_LONG_IDLE_NS, self._fire_long)

    def _fire_long(self) -> None:
        self._long_timer = None
        if count_uses(self._store) != self._seen_uses:
            self._start_long_timer()
            return
        if release_idle_resources(self._store) and (trimmer := begin_trimming()) is not None:
            self._trim_heap(trimmer)

    def _trim_heap(self, trimmer: HeapTrimmer) -> None:
        if trimmer.step():
            self._timers.after(_TRIM_PAUSE_NS, partial(self._trim_heap, trimmer))
