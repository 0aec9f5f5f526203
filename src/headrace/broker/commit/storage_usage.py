"""Storage usage of an account's streams, updated as they change, so that a message does not cost a scan of all streams.

Owns the count. At the start of a frame it is exact: it takes in every log that changed since the last count. Within a
frame the size of each message about to be stored is added to it, and it is counted again before anything is refused.
Must not know where limits come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.storage import MemoryFrames, Store


class StorageUsage:
    """Bytes by kind of storage, for one account."""

    __slots__ = ("_counted_frames", "_frames", "_log_bytes", "_reserved", "_streams", "_total")

    def __init__(self, store: Store, streams: Mapping[str, Any]) -> None:
        self._frames: dict[str, Store | MemoryFrames] = {"memory": store.memory_frames, "file": store}
        self._streams = streams
        self._counted_frames = {"memory": -1, "file": -1}  # the open frame at the last count
        self._log_bytes: dict[str, dict[Any, int]] = {"memory": {}, "file": {}}
        self._total = {"memory": 0, "file": 0}
        self._reserved = {"memory": 0, "file": 0}

    def invalidate(self) -> None:
        """Count all streams at the next use, because one was added or removed."""
        self._counted_frames = dict.fromkeys(self._counted_frames, -1)

    def reserve(self, storage: str, size: int, limit: int) -> bool:
        """Reserve `size` bytes; return whether usage stays within `limit`."""
        if self._counted_frames[storage] != self._frames[storage].frame_number:
            self._recount(storage)
        if self._total[storage] + self._reserved[storage] + size > limit:
            # Reserved bytes may be stored by now, or limits may have removed messages since: count before refusing.
            self._recount(storage)
            if self._total[storage] + size > limit:
                return False
        self._reserved[storage] += size
        return True

    def _recount(self, storage: str) -> None:
        frames, log_bytes = self._frames[storage], self._log_bytes[storage]
        changed = frames.get_changed_logs(self._counted_frames[storage])
        if changed is None:
            self._recount_all(storage)
        else:
            for log in changed:
                if log in log_bytes:
                    self._total[storage] += log.bytes - log_bytes[log]
                    log_bytes[log] = log.bytes
        self._counted_frames[storage] = frames.frame_number
        self._reserved[storage] = 0

    def _recount_all(self, storage: str) -> None:
        logs = [stream.log for stream in self._streams.values() if stream.config.storage == storage]
        self._log_bytes[storage] = {log: log.bytes for log in logs}
        self._total[storage] = sum(self._log_bytes[storage].values())
