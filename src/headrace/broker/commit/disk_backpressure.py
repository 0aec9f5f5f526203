"""Disk backpressure: pauses publishers while too many bytes wait for the disk, resumes them when it has caught up.

Owns the two thresholds. It is called after each chunk read from a connection, so a call costs one comparison; nothing
here blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.timers import TimerHandle, Timers
    from headrace.storage import Store

#: Bytes admitted and not yet where they belong; beyond this publishers wait.
PENDING_BYTES_MAX = 64 * 1024 * 1024
_CHECK_INTERVAL_NS = 10_000_000


class DiskBackpressure:
    """Of one store."""

    __slots__ = ("_low_callback", "_store", "_timer", "_timers")

    def __init__(self, store: Store, timers: Timers) -> None:
        self._store = store
        self._timers = timers
        self._timer: TimerHandle | None = None
        self._low_callback: Callable[[], None] | None = None

    def is_high(self) -> bool:
        """Whether more waits for the disk than should: publishers are to be held back.

        Not while the disk is full: then nothing is admitted anyway, and what would help has to be heard.
        """
        if self._store.pending_bytes <= PENDING_BYTES_MAX or self._store.full:
            return False
        if self._timer is None:
            self._timer = self._timers.after(_CHECK_INTERVAL_NS, self._check)
        return True

    def on_low(self, call: Callable[[], None]) -> None:
        """Call whenever the disk has caught up enough."""
        self._low_callback = call

    def _check(self) -> None:
        """Publishers wait: let them go on as soon as half of it has arrived where it belongs."""
        self._timer = None
        if self._store.pending_bytes > PENDING_BYTES_MAX // 2 and not self._store.full:
            self._timer = self._timers.after(_CHECK_INTERVAL_NS, self._check)
        elif self._low_callback is not None:
            self._low_callback()
