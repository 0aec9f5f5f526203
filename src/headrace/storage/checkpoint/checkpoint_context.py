"""What checkpoints may use of the store: what they capture, what they wait for, and what to report to it.

Owns no behaviour. `Store` implements it; `Checkpointer` names this protocol instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from headrace.storage.damage_report import RecoveryReport
from headrace.storage.journal.journal_writer import Journal
from headrace.storage.log.file_log import FileLog
from headrace.storage.maintenance.compaction import Compactor
from headrace.storage.maintenance.maintenance_context import MaintenanceContext
from headrace.storage.metadata_store import MetadataStore

DoneCallback = Callable[[OSError | None], None]


class CheckpointContext(MaintenanceContext, Protocol):
    """One store, seen from its checkpoints."""

    store_id: int
    next_ident: int
    journal: Journal
    metadata: MetadataStore
    compactor: Compactor

    @property
    def frame_number(self) -> int:
        """Return the number of the open frame."""

    @property
    def has_deletes(self) -> bool:
        """Return whether the open frame deletes a stream."""

    def iter_file_logs(self) -> Iterator[FileLog]:
        """Iterate over the logs that are stored in files."""

    def report(self) -> RecoveryReport:
        """Return the damage that recovery and reads have found."""

    def checkpoint(self, done: DoneCallback | None = None) -> None:
        """Request a checkpoint."""

    def write_mark(self) -> None:
        """Commit the mark of a checkpoint at once if the open frame is empty."""

    def on_checkpoint_aborted(self, journaled: int) -> None:
        """Report a checkpoint that found no space, and the bytes that were journaled since the one before."""

    def fail_on_error(self, error: OSError | None) -> None:
        """Report the end of a submission of which only failure matters."""
