"""Tracks free disk space and decides whether a checkpoint can be written.

Owns the last measurement, and the amount that was too little for a checkpoint. Invariant: a checkpoint that was
abandoned for lack of space is not tried again until more space is free. Must not know what is written.
"""

from __future__ import annotations

from headrace.storage.io.disk import Disk
from headrace.storage.maintenance.flush import SegmentFlusher
from headrace.storage.options import StoreOptions

#: On a nearly full disk a checkpoint is due after this fraction of the bytes that normally trigger one.
EARLY_PARTS = 16


class Space:
    """Free bytes as last measured; `slack` is what remains of them after everything queued is written."""

    def __init__(self, disk: Disk, options: StoreOptions, behind: SegmentFlusher) -> None:
        self._disk = disk
        self._options = options
        self._behind = behind
        self._free = 0
        self._begun = 0  # slack when the current checkpoint started
        self._missed: int | None = None  # slack that was not enough for a checkpoint

    @property
    def slack(self) -> int:
        return self._free - self._behind.pending_bytes

    def measure(self, in_flight: int) -> bool:
        """Measure free space; return whether less than the headroom remains after pending and in-flight writes."""
        self._free = self._disk.free()
        return self.slack - in_flight < self._options.headroom_bytes

    def begin(self) -> None:
        """Record the slack at the start of a checkpoint."""
        self._begun = self.slack

    def miss(self) -> None:
        """Record that the current checkpoint was aborted for lack of space."""
        self._missed = self._begun

    def forgive(self) -> None:
        """Forget an earlier lack of space: a checkpoint was marked or explicitly requested."""
        self._missed = None

    @property
    def allows_checkpoint(self) -> bool:
        """False if space was insufficient for the last checkpoint and there is no more space now."""
        return self._missed is None or self.slack > self._missed

    def wants_checkpoint(self, journaled: int) -> bool:
        """Return whether less space than the `journaled` bytes that a replay would write is free beyond the headroom."""
        least = self._options.checkpoint_bytes // EARLY_PARTS
        return journaled >= least and self.slack - self._options.headroom_bytes < journaled
