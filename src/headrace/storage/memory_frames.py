"""Frames of the logs in memory: they wait for no disk, so a frame is committed as soon as it is sealed.

Owns the open frame of all memory logs of a store. Their frames are separate, so that a publisher to a memory stream does
not wait while file streams are written. After the store has failed, these frames are not committed either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.storage.native_records import LogWriter, OpenFrame, build_frame_body, mark_committed

if TYPE_CHECKING:
    from headrace.errors import StoreError
    from headrace.storage.store_observer import StoreObserver


class MemoryFrames:
    """The frames of memory logs, with the interface that group commit needs of a store."""

    in_flight = False
    waiting_for_space = False

    def __init__(self) -> None:
        #: Why the store accepts nothing any more, set by the store.
        self.poisoned: StoreError | None = None
        self._observer: StoreObserver | None = None
        self._changed_logs: set[LogWriter] = set()  # by committed frames, until they are drained
        self.open_frame = OpenFrame(self._extend)
        self.committed_frame = 0

    def set_observer(self, observer: StoreObserver) -> None:
        """Set the observer that is called from now on."""
        self._observer = observer

    @property
    def frame_number(self) -> int:
        return self.open_frame.number

    @property
    def dirty(self) -> bool:
        return bool(self.open_frame.dirty_logs)

    def drain_changed_logs(self) -> list[LogWriter]:
        """Return the logs that changed since the last call; those of the open frame are returned again next time."""
        changed = [*self._changed_logs, *self.open_frame.dirty_logs]
        self._changed_logs.clear()
        return changed

    def forget_log(self, log: LogWriter) -> None:
        """Refer to a log no longer: it is deleted. It may be a log that this never had."""
        self._changed_logs.discard(log)

    def commit(self) -> int:
        """Commit the open frame, and notify the observer."""
        self._extend(0)
        open_frame = self.open_frame
        logs = open_frame.dirty_logs
        self._changed_logs.update(logs)
        build_frame_body(logs)
        mark_committed(logs)
        open_frame.dirty_logs = []
        self.committed_frame = open_frame.number
        open_frame.number += 1
        open_frame.pending_bytes = 0
        if self._observer is not None:
            self._observer.on_frame_durable(self.committed_frame)
        return self.committed_frame

    def _extend(self, _: int) -> None:
        if self.poisoned is not None:
            raise self.poisoned
