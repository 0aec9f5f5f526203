"""Switches the compression of logs on and off, and makes the store's root name the format feature that it needs.

Owns the request for the feature. Invariant: no block is compressed before a durable root names the feature, and a store
that never had a compressed log does not need it. Must not know how blocks are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.storage.compressed_block import FEATURE
from headrace.storage.log.file_log import FileLog
from headrace.storage.log.log import StreamLog

if TYPE_CHECKING:
    from headrace.storage.store import Store


class BlockCompression:
    """Whether blocks may be compressed; see `LogContext.may_compress`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_wanted = False
        self._is_requested = False

    def configure(self, log: StreamLog, enabled: bool) -> None:
        """Compress the blocks of a log from now on, or stop that; existing blocks stay as they are."""
        if isinstance(log, FileLog) and log.is_compressed != enabled:
            log.is_compressed = enabled
            log.saved_frame = -1  # its section says whether replayed records are compressed
        if isinstance(log, FileLog) and enabled:
            self._is_wanted = True
            self.request_feature()

    def request_feature(self) -> None:
        """Request the feature if it is needed and not requested; called again whenever a checkpoint is durable."""
        store = self._store
        if not self._is_wanted or self._is_requested or store.log_context.may_compress or store.poisoned:
            return
        self._is_requested = True
        store.checkpointer.require(FEATURE, self._on_root_durable)

    def _on_root_durable(self, error: OSError | None) -> None:
        """Handle the end of the checkpoint: one that found no space is requested again after the next one."""
        self._is_requested = False
        if error is None:
            self._store.log_context.may_compress = True
