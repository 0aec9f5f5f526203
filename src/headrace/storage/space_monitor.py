"""Watches free disk space: whether the disk is full, and how much the open frame may hold.

Owns the last measurement. Invariant: on a full disk the open frame is closed, so that messages are refused, while the
journal keeps space for removals. Must not know what is written. See ADR 15.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.code_probes import sometimes
from headrace.errors import StoreFull
from headrace.storage.io.disk import Disk
from headrace.storage.journal.frame_submit import FrameSubmission
from headrace.storage.journal.journal_writer import Journal
from headrace.storage.maintenance.flush import SegmentFlusher
from headrace.storage.native_records import OpenFrame
from headrace.storage.options import StoreOptions


class SpaceMonitor:
    """`full`: less than the headroom is free, or something waits for space. `on_full` is called when that begins."""

    def __init__(
        self,
        disk: Disk,
        options: StoreOptions,
        open_frame: OpenFrame,
        journal: Journal,
        flusher: SegmentFlusher,
        frame_submission: FrameSubmission,
        on_full: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._headroom = options.headroom_bytes
        self._open_frame = open_frame
        self._journal = journal
        self._flusher = flusher
        self._frame_submission = frame_submission
        self._on_full = on_full
        self._free = 0
        self.full = False

    @property
    def slack(self) -> int:
        """Bytes free at the last measurement, less everything that is queued for segments."""
        return self._free - self._flusher.pending_bytes

    @property
    def above_headroom(self) -> int:
        """What remains of `slack` beyond the headroom; negative if it is too little."""
        return self.slack - self._headroom

    def update(self, in_flight_bytes: int) -> None:
        """Measure free space, retry what waits for some, and set how much the next frame can certainly hold."""
        self._free = self._disk.free()
        is_low = self.above_headroom < in_flight_bytes
        self._frame_submission.retry()  # frames may use the headroom
        if not is_low and (self._flusher.out_of_space or self.full):
            sometimes("there is space again")
            self._flusher.resume()
        is_waiting = self._flusher.out_of_space or self._frame_submission.no_space_error is not None
        self.set_full(is_low or is_waiting or self._journal.is_short)
        # Removals need a journal file to continue in.
        if not is_low or self._journal.needs_spare(self.slack):
            self._journal.replenish_spares()
        available = self._journal.get_guaranteed_bytes()
        # A quarter is reserved for what appends do not count: entries and watermarks.
        self._open_frame.max_bytes = available - available // 4

    def set_full(self, full: bool) -> None:
        """Set whether the disk is full; only while the store has not failed, or to True."""
        before, self.full = self.full, full
        self._journal.is_cramped = full
        self._open_frame.closed = full
        if full and not before:
            self._on_full()

    def extend_frame(self, size: int) -> None:
        """Let the open frame grow beyond its reserved size; raises StoreFull if the disk has no space for that."""
        if self.full:
            raise StoreFull("the disk is full; free some space or remove messages")
        needed = 2 * (self._open_frame.pending_bytes + size)
        if self._disk.free() < needed + self._headroom:
            sometimes("a frame is too large for the disk")
            raise StoreFull("the disk has no space for a frame of this size")
        sometimes("a frame exceeds its reserved size")
        self._open_frame.max_bytes = needed

    def check_free(self, size: int) -> int:
        """Raise StoreFull unless this many bytes are free beyond the headroom; return how many more are."""
        left = self._disk.free() - self._headroom - size
        if left < 0:
            raise StoreFull("the disk is full; free some space or remove messages")
        return left
