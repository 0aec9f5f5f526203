"""Disk backpressure: pauses publishers while too many bytes wait for the disk, resumes them when it has caught up.

Owns the thresholds. It is called after each chunk read from a connection, so a call costs one comparison; nothing
here blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.timers import TimerHandle, Timers
    from headrace.storage import Store

#: Bytes accepted but not yet written to their files; beyond this publishers are paused.
PENDING_BYTES_MAX = 64 * 1024 * 1024
#: Bytes in the open frame while another one is written; every client with a message in it waits until all are durable.
FRAME_BYTES_MAX = 4 * 1024 * 1024
#: The same with its large messages, on a slow and on a fast disk: they go to growing files, whose syncs cost more.
LARGE_FRAME_BYTES_MIN, LARGE_FRAME_BYTES_MAX = 4 * 1024 * 1024, 16 * 1024 * 1024
#: If writing a full frame took less, or more, the next frames may hold twice, or half, as much of large messages.
FAST_FRAME_NS, SLOW_FRAME_NS = 10_000_000, 20_000_000
_CHECK_INTERVAL_NS = 2_000_000


class DiskBackpressure:
    """The backpressure of one store."""

    __slots__ = ("_frame_start_ns", "_large_frame_bytes", "_low_callback", "_store", "_timer", "_timers")

    def __init__(self, store: Store, timers: Timers) -> None:
        self._store = store
        self._timers = timers
        self._timer: TimerHandle | None = None
        self._low_callback: Callable[[], None] | None = None
        self._large_frame_bytes = LARGE_FRAME_BYTES_MIN
        #: When the frame in flight was submitted, if publishers were paused then.
        self._frame_start_ns: int | None = None

    @property
    def pending_bytes(self) -> int:
        """How many bytes wait for the disk."""
        return self._store.pending_bytes

    def is_high(self) -> bool:
        """Whether too much waits for the disk, so that publishers must be paused.

        Never while the disk is full: then nothing is accepted anyway, and requests that free space must get through.
        """
        pending = self._store.pending_bytes
        if pending <= FRAME_BYTES_MAX or self._store.full:
            return False
        if pending <= PENDING_BYTES_MAX and not self._is_frame_large():
            return False
        if self._timer is None:
            self._timer = self._timers.after(_CHECK_INTERVAL_NS, self._check)
        return True

    def _is_frame_large(self) -> bool:
        store, context = self._store, self._store.log_context
        return store.in_flight and (
            context.journal_bytes > FRAME_BYTES_MAX or context.frame_bytes > self._large_frame_bytes
        )

    def on_low(self, call: Callable[[], None]) -> None:
        """Set the call that is made whenever the disk has caught up."""
        self._low_callback = call

    def on_committed(self) -> None:
        """Handle a durable frame, after the next one was closed: paused publishers need not wait for the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._adapt_frame()
            self._check()
        else:
            self._frame_start_ns = None

    def _adapt_frame(self) -> None:
        """Adapt the size of frames to the disk, after one that filled up while the previous one was written."""
        now_ns, start_ns = self._timers.now_ns(), self._frame_start_ns
        self._frame_start_ns = now_ns
        if start_ns is None:
            return
        if now_ns - start_ns < FAST_FRAME_NS:
            self._large_frame_bytes = min(2 * self._large_frame_bytes, LARGE_FRAME_BYTES_MAX)
        elif now_ns - start_ns > SLOW_FRAME_NS:
            self._large_frame_bytes = max(self._large_frame_bytes // 2, LARGE_FRAME_BYTES_MIN)

    def _check(self) -> None:
        """Resume publishers as soon as half of the bytes are written, and the open frame is small again."""
        self._timer = None
        is_behind = self._store.pending_bytes > PENDING_BYTES_MAX // 2 or self._is_frame_large()
        if is_behind and not self._store.full:
            self._timer = self._timers.after(_CHECK_INTERVAL_NS, self._check)
        elif self._low_callback is not None:
            self._low_callback()


class DiskBackpressures:
    """The backpressure of several stores: high if that of any store is."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[DiskBackpressure]) -> None:
        self._parts = tuple(parts)

    @property
    def pending_bytes(self) -> int:
        """How many bytes wait for the disks."""
        return sum(part.pending_bytes for part in self._parts)

    def is_high(self) -> bool:
        """Whether too much waits for one of the disks."""
        for part in self._parts:  # noqa: SIM110 - runs after each chunk, and a generator costs more
            if part.is_high():
                return True
        return False

    def on_low(self, call: Callable[[], None]) -> None:
        """Set the call that is made whenever one of the disks has caught up."""
        for part in self._parts:
            part.on_low(call)


#: The backpressure of a server without stores.
NO_DISKS = DiskBackpressures(())


def combine_backpressure(parts: Sequence[DiskBackpressure]) -> DiskBackpressure | DiskBackpressures:
    """Return the backpressure of all stores; a single one is asked directly, because it is asked after each chunk."""
    return parts[0] if len(parts) == 1 else DiskBackpressures(parts)
