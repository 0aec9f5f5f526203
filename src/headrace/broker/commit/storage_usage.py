"""Storage usage of an account's streams, updated as they change, so that a message does not cost a scan of all streams.

Owns the count. At the start of a frame it is exact: it takes in every log that changed since the last count. Within a
frame the size of each message about to be stored is added to it, and it is counted again before anything is refused.
Must not know where limits come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.storage import Store


class StorageUsage:
    """Bytes by kind of storage, for one account."""

    __slots__ = ("_frame", "_log_bytes", "_reserved", "_store", "_streams", "_total")

    def __init__(self, store: Store, streams: Mapping[str, Any]) -> None:
        self._store = store
        self._streams = streams
        self._frame = -1  # the open frame at the last count
        self._log_bytes: dict[Any, tuple[str, int]] = {}
        self._total = {"memory": 0, "file": 0}
        self._reserved = {"memory": 0, "file": 0}

    def invalidate(self) -> None:
        """Count all streams at the next use, because one was added or removed."""
        self._frame = -1

    def reserve(self, storage: str, size: int, limit: int) -> bool:
        """Reserve `size` bytes; return whether usage stays within `limit`."""
        if self._frame != self._store.frame_number:
            self._recount()
        if self._total[storage] + self._reserved[storage] + size > limit:
            # Reserved bytes may be stored by now, or limits may have removed messages since: count before refusing.
            self._recount()
            if self._total[storage] + size > limit:
                return False
        self._reserved[storage] += size
        return True

    def _recount(self) -> None:
        changed = self._store.get_changed_logs(self._frame)
        if changed is None:
            self._recount_all()
        else:
            for log in changed:
                if log in self._log_bytes:
                    storage, before = self._log_bytes[log]
                    self._log_bytes[log] = (storage, log.bytes)
                    self._total[storage] += log.bytes - before
        self._frame = self._store.frame_number
        self._reserved = dict.fromkeys(self._reserved, 0)

    def _recount_all(self) -> None:
        streams = self._streams.values()
        self._log_bytes = {stream.log: (stream.config.storage, stream.log.bytes) for stream in streams}
        self._total = dict.fromkeys(self._total, 0)
        for storage, size in self._log_bytes.values():
            self._total[storage] += size
