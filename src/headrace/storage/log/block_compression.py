"""Whether blocks may be compressed: makes the store's root name the format feature that they need.

Owns the request for the feature. Invariant: no block is compressed before a durable root names the feature, and a store
that never had a compressed log does not need it. Must not know how blocks are written.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import StoreError
from headrace.storage.compressed_block import FEATURE
from headrace.storage.io.disk import DoneCallback


class BlockCompression:
    """What the file logs of a store share; `is_ready`: the newest durable root names the feature."""

    def __init__(self, require: Callable[[str, DoneCallback], None]) -> None:
        self._require = require
        self._is_requested = False
        self.is_ready = False

    def request(self) -> None:
        """Request the feature unless that is done; after a failure for lack of space it can be requested again."""
        if self.is_ready or self._is_requested:
            return
        self._is_requested = True
        try:
            self._require(FEATURE, self._on_root_durable)
        except StoreError:
            self._is_requested = False  # the store failed: nothing is written any more

    def _on_root_durable(self, error: OSError | None) -> None:
        self._is_requested = False
        self.is_ready = self.is_ready or error is None
