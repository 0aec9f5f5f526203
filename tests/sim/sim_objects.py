"""An object store in memory with the faults that an archive meets: by seed, one for each call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from random import Random

from headrace.claims.stores import (
    Attributes,
    Chunk,
    MemoryStore,
    ObjectAlreadyExists,
    ObjectInfo,
    ObjectStoreError,
)


class ProcessKilled(BaseException):
    """The process that made the call no longer exists."""


class SimObjects(MemoryStore):
    """A bucket that refuses, loses replies, answers late, and hides new objects from lists."""

    def __init__(self, rng: Random, faults: float, kills: float) -> None:
        super().__init__("archive")
        self.rng = rng
        self.faults, self.kills = faults, kills
        self._late: list[tuple[str, bytes, Attributes]] = []
        self.hidden: set[str] = set()

    def _maybe_kill(self) -> None:
        if self.rng.random() < self.kills:
            raise ProcessKilled

    async def _arrive_late(self) -> None:
        """Let a request arrive that its sender has given up: it is applied only if the key is free."""
        if self._late and self.rng.random() < 0.3:
            key, data, attributes = self._late.pop(self.rng.randrange(len(self._late)))
            if key not in self._objects:
                await super().put(key, data, attributes)

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        await self._arrive_late()
        self._maybe_kill()
        roll = self.rng.random() if not replace else 1.0
        if roll < self.faults:
            raise ObjectStoreError("refused")
        if roll < 2 * self.faults:
            self._late.append((key, bytes(data), attributes))
            raise ObjectStoreError("no reply; the request may arrive later")
        if roll < 3 * self.faults and key not in self._objects:
            raise ObjectAlreadyExists("a conflict with a request that failed")
        await super().put(key, data, attributes, replace=replace)
        if self.rng.random() < 0.3:
            self.hidden.add(key)
        self._maybe_kill()
        if roll < 4 * self.faults:
            raise ObjectStoreError("the reply was lost")

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        self._maybe_kill()
        return await super().get(key)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._maybe_kill()
            await super().delete([key])

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        async for page in super().list(prefix, start_after):
            yield [info for info in page if info.key not in self.hidden or self.rng.random() < 0.5]
