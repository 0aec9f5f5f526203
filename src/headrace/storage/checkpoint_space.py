"""Tracks free disk space and decides whether a checkpoint can be written.

Owns the last measurement, and the amount that was too little for a checkpoint. Invariant: a checkpoint that was
abandoned for lack of space is not tried again until more space is free. Must not know what is written.
"""

from __future__ import annotations

from headrace.storage.io.disk import Disk
from headrace.storage.maintenance.flush import SegmentFlusher
from headrace.storage.options import StoreOptions

#: On a disk that is nearly full a checkpoint is due after such a part of the bytes that call for one otherwise.
EARLY_PARTS = 16


class Space:
    """Free bytes as last measured; `slack` is what is left of them when all that is queued is written."""

    def __init__(self, disk: Disk, options: StoreOptions, behind: SegmentFlusher) -> None:
        self._disk = disk
        self._options = options
        self._behind = behind
        self._free = 0
        self._begun = 0  # slack when the checkpoint under way began
        self._missed: int | None = None  # slack that was too little for one

    @property
    def slack(self) -> int:
        return self._free - self._behind.pending_bytes

    def measure(self, in_flight: int) -> bool:
        """Whether less than the headroom is free, beyond what is admitted and has yet to be written."""
        self._free = self._disk.free()
        return self.slack - in_flight < self._options.headroom_bytes

    def begin(self) -> None:
        """A checkpoint begins now."""
        self._begun = self.slack

    def miss(self) -> None:
        """It was given up for want of space."""
        self._missed = self._begun

    def forgive(self) -> None:
        """One is proven, or asked for by name: what was missing says nothing any more."""
        self._missed = None

    @property
    def allows_checkpoint(self) -> bool:
        """Unless there was too little for one, and there is no more now."""
        return self._missed is None or self.slack > self._missed

    def wants_checkpoint(self, journaled: int) -> bool:
        """Whether there is less space beyond the headroom than a replay of so many bytes may need."""
        least = self._options.checkpoint_bytes // EARLY_PARTS
        return journaled >= least and self.slack - self._options.headroom_bytes < journaled
