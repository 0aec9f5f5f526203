"""What a store gives back when nothing has happened for a long while: memory and files that only a burst needed.

Owns no state. Nothing is lost: blocks are read from their files again, and journal files are removed only after a
checkpoint that contains their frames. Must not know time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from headrace.errors import StoreError
from headrace.storage.journal.journal_writer import Journal
from headrace.storage.log.log_context import LogContext


class IdleStore(Protocol):
    """One store, seen from here; `Store` implements it."""

    journal: Journal
    log_context: LogContext
    in_flight: bool
    poisoned: StoreError | None

    @property
    def frame_number(self) -> int:
        """Return the number of the open frame."""

    @property
    def dirty(self) -> bool:
        """Return whether the open frame has changes."""

    @property
    def full(self) -> bool:
        """Return whether the disk is full."""

    def checkpoint(self, done: Callable[[OSError | None], None] | None = None) -> None:
        """Start a checkpoint; `done` is called when it is durable, or aborted for lack of space."""


def count_uses(store: IdleStore) -> tuple[int, int]:
    """Return counts that change with each commit and with each block that is read."""
    return store.frame_number, store.log_context.block_cache.use_count


def release_idle_resources(store: IdleStore) -> bool:
    """Drop cached blocks, and remove journal files that are not needed; return False if the store is busy or full."""
    if store.poisoned is not None or store.in_flight or store.dirty or store.full:
        return False
    store.log_context.block_cache.clear()
    if store.journal.closed_files:
        store.checkpoint(partial(_on_checkpoint, store.journal))
    else:
        store.journal.trim()
    return True


def _on_checkpoint(journal: Journal, error: OSError | None) -> None:
    if error is None:
        journal.trim()
