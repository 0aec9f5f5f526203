"""Storage usage of an account's streams, updated as they change, so that nothing has to look at all streams.

Owns the count. At the start of a frame it is exact: it takes in every log that changed since the last count. Within a
frame the size of each message about to be stored is added to it, and it is counted again before anything is refused.
Must not know where limits come from.
"""

from __future__ import annotations

from headrace.storage import MemoryFrames, Store, StreamLog


class StorageUsage:
    """Bytes by kind of storage, for one account."""

    __slots__ = ("_counted_frames", "_frames", "_log_bytes", "_reserved", "_total")

    def __init__(self, store: Store) -> None:
        self._frames: dict[str, Store | MemoryFrames] = {"memory": store.memory_frames, "file": store}
        self._counted_frames = {"memory": -1, "file": -1}  # the open frame at the last count
        self._log_bytes: dict[str, dict[object, int]] = {"memory": {}, "file": {}}
        self._total = {"memory": 0, "file": 0}
        self._reserved = {"memory": 0, "file": 0}

    def add(self, storage: str, log: StreamLog) -> None:
        """Count a log from now on."""
        self._log_bytes[storage][log] = log.bytes
        self._total[storage] += log.bytes

    def remove(self, storage: str, log: StreamLog) -> None:
        """Stop counting a log, and drop the reference to it."""
        self._count_changes(storage)
        self._total[storage] -= self._log_bytes[storage].pop(log, 0)

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

    def count(self, storage: str) -> int:
        """Return the bytes in use now, without those that are reserved."""
        self._count_changes(storage)
        return self._total[storage]

    def _recount(self, storage: str) -> None:
        """Count at the start of a frame, or before something is refused; nothing is reserved any more."""
        self._count_changes(storage)
        self._counted_frames[storage] = self._frames[storage].frame_number
        self._reserved[storage] = 0

    def _count_changes(self, storage: str) -> None:
        log_bytes, total = self._log_bytes[storage], self._total[storage]
        for log in self._frames[storage].drain_changed_logs():
            counted = log_bytes.get(log)
            if counted is not None and log.bytes != counted:
                total += log.bytes - counted
                log_bytes[log] = log.bytes
        self._total[storage] = total
