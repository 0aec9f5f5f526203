"""What maintenance may use of the store: its disk, its state, and what to report to it.

Owns no behaviour. `Store` implements it; garbage collection and compaction name this protocol instead.
"""

from __future__ import annotations

from typing import Protocol

from headrace.errors import StoreError
from headrace.storage.io.disk import Disk
from headrace.storage.journal.journal_writer import Journal
from headrace.storage.maintenance.flush import SegmentFlusher
from headrace.storage.options import StoreOptions


class MaintenanceContext(Protocol):
    """One store, seen from its garbage collection and its compaction."""

    disk: Disk
    options: StoreOptions
    flusher: SegmentFlusher
    journal: Journal
    #: The newest frame whose sync has returned.
    committed_frame: int
    #: Set after a failed write: nothing may be written any more.
    poisoned: StoreError | None

    @property
    def full(self) -> bool:
        """Return whether the disk is full."""

    @property
    def next_checkpoint(self) -> int:
        """Return the number of the first checkpoint that will not name files dropped now."""

    def fail(self, error: OSError) -> None:
        """Report a failed write or sync."""

    def on_out_of_space(self, error: OSError) -> None:
        """Report that a write found no space."""

    def on_files_removed(self, error: OSError | None) -> None:
        """Report unlinked files: there may be space again."""
