"""What an account's streams take, kept up as they change: a message must not cost a look at every stream.

Owns the count. It is exact when a frame begins, as far as the logs that the frames since the last count changed; within
a frame what is about to be stored is added to it, and before anything is refused it is counted again. Must not know limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.broker.jetstream import JetStream


class Footprint:
    """Bytes by kind of storage."""

    __slots__ = ("_counted", "_dirty", "_expected", "_frame", "_jetstream", "_total")

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream
        self._frame = -1
        #: What changed in the frame of the last count; the store begins a new list with each frame.
        self._dirty: list[Any] = []
        self._counted: dict[Any, tuple[str, int]] = {}
        self._total = {"memory": 0, "file": 0}
        self._expected = {"memory": 0, "file": 0}

    def forget(self) -> None:
        """There is another stream, or one less."""
        self._frame = -1

    def takes(self, storage: str, size: int, most: int) -> bool:
        """Whether so much more stays within `most`; if so it is expected to come."""
        if self._frame != self._jetstream.store.frame:
            self._count()
        if self._total[storage] + self._expected[storage] + size > most:
            self._count()
            if self._total[storage] + size > most:
                return False
        self._expected[storage] += size
        return True

    def _count(self) -> None:
        store = self._jetstream.store
        if store.frame not in (self._frame, self._frame + 1) or self._frame < 0:
            self._count_all()
        else:
            dirty = store.gate.dirty
            for log in dirty if dirty is self._dirty else [*self._dirty, *dirty]:
                if log in self._counted:
                    storage, before = self._counted[log]
                    self._counted[log] = (storage, log.bytes)
                    self._total[storage] += log.bytes - before
        self._frame, self._dirty = store.frame, store.gate.dirty
        self._expected = dict.fromkeys(self._expected, 0)

    def _count_all(self) -> None:
        streams = self._jetstream.streams.values()
        self._counted = {stream.log: (stream.config.storage, stream.log.bytes) for stream in streams}
        self._total = dict.fromkeys(self._total, 0)
        for storage, size in self._counted.values():
            self._total[storage] += size
