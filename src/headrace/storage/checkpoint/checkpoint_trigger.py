"""Decides when a checkpoint is due.

Owns the amount of free space that was too little for one. Invariant: a checkpoint that was abandoned for lack of space
is not tried again until more space is free. Must not know what is in a checkpoint.
"""

from __future__ import annotations

from headrace.storage.checkpoint.checkpoint_context import DoneCallback
from headrace.storage.checkpoint.checkpoint_writer import Checkpointer
from headrace.storage.journal.journal_writer import Journal
from headrace.storage.maintenance.flush import SegmentFlusher
from headrace.storage.maintenance.gc import FileGarbageCollector
from headrace.storage.options import StoreOptions
from headrace.storage.space_monitor import SpaceMonitor

#: On a nearly full disk a checkpoint is due after this fraction of the bytes that normally trigger one.
EARLY_PARTS = 16


class CheckpointTrigger:
    """Starts checkpoints, when they are due or requested."""

    def __init__(
        self,
        options: StoreOptions,
        journal: Journal,
        flusher: SegmentFlusher,
        file_gc: FileGarbageCollector,
        space: SpaceMonitor,
        checkpointer: Checkpointer,
    ) -> None:
        self._checkpoint_bytes = options.checkpoint_bytes
        self._journal = journal
        self._flusher = flusher
        self._file_gc = file_gc
        self._space = space
        self._checkpointer = checkpointer
        self._start_slack = 0  # slack when the current checkpoint started
        self._insufficient_slack: int | None = None  # slack that was not enough for a checkpoint

    def request(self, done: DoneCallback | None) -> None:
        """Start a checkpoint, even if the last attempt lacked space."""
        self._insufficient_slack = None
        self._start_slack = self._space.slack
        self._flusher.resume()
        self._checkpointer.start(done)

    def maybe_start(self) -> None:
        """Start a checkpoint if one is due and none is running."""
        if self._checkpointer.running is not None or self._checkpointer.pending_mark or not self._is_due():
            return
        self._flusher.resume()  # even below the headroom: without a checkpoint no removed file is unlinked
        if not self._flusher.out_of_space:
            self._start_slack = self._space.slack
            self._checkpointer.start()

    def _is_due(self) -> bool:
        """Return whether enough was journaled or space can be gained, and the last attempt did not lack space."""
        if self._insufficient_slack is not None and self._space.slack <= self._insufficient_slack:
            return False
        journaled = self._journal.bytes_since_checkpoint
        if journaled >= self._checkpoint_bytes or self._file_gc.should_checkpoint():
            return True
        if self._space.full and self._journal.is_scarce:
            return True
        # Less than a replay of the journal would write is free beyond the headroom.
        return journaled >= self._checkpoint_bytes // EARLY_PARTS and self._space.above_headroom < journaled

    def on_out_of_space(self, journaled: int) -> None:
        """Handle a checkpoint aborted for lack of space: it is due again when there is more."""
        self._journal.bytes_since_checkpoint += journaled
        self._insufficient_slack = self._start_slack

    def on_marked(self) -> None:
        """Handle a checkpoint that became durable: an earlier lack of space no longer counts."""
        self._insufficient_slack = None
