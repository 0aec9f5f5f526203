"""Simulated object store in memory, with the faults that real object stores show.

Owns the objects, their history, and the faults by seed: refused before anything happened, unanswered after it happened,
late, done twice, slow, not visible yet, listed in an earlier state, altered or removed by a third party, a clock of its
own. `SimBucket` is the bucket; each of its users has a `SimObjectStore`, which is an `ObjectStore`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Protocol

from headrace.claims.stores import (
    Attributes,
    Chunk,
    MultipartUpload,
    ObjectAlreadyExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStoreError,
)
from headrace.sim.clock import SECOND_NS, SimClock
from headrace.sim.multipart_uploads import MultipartUploads

_FOREVER_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class ObjectFaults:
    """Probability of each fault per call; `skew_ns` is how far the store's clock is ahead."""

    refused: float = 0
    unanswered: float = 0
    late: float = 0
    twice: float = 0
    slow: float = 0
    hidden: float = 0
    stale: float = 0
    broken_off: float = 0
    skew_ns: int = 0


@dataclass(slots=True)
class ObjectVersion:
    """An object from its upload to its end; replacing it makes a new version."""

    info: ObjectInfo
    data: bytes
    visible_ns: int
    deleted_ns: int = _FOREVER_NS


class ObjectStoreObserver(Protocol):
    """A process, which is called when something happens in its object store."""

    def on_delete(self, key: str) -> None:
        """Called before a deletion takes effect."""

    def on_abort(self, upload: MultipartUpload) -> None:
        """Called before a multipart upload, perhaps another process's, is aborted."""

    def on_uploaded(self) -> None:
        """Called after an upload: the process may die between that and its next step."""

    def on_part_uploaded(self) -> None:
        """Called after each part of a multipart upload: the process may die before the next one."""


class SimBucket:
    """One bucket."""

    def __init__(self, clock: SimClock, rng: Random, faults: ObjectFaults, bucket: str = "claims") -> None:
        self.bucket = bucket
        self.faults = faults
        self.uploads = MultipartUploads()
        #: Objects that a third party altered, replaced or removed.
        self.tampered: set[str] = set()
        self.fault_counts: dict[str, int] = {}
        self._clock = clock
        self._rng = rng
        self._objects: dict[str, ObjectVersion] = {}
        self._deleted: list[ObjectVersion] = []
        self._never_done: asyncio.Future[None] | None = None

    # Actual state

    def list_keys(self) -> list[str]:
        """Return the keys of all objects."""
        return sorted(self._objects)

    def get_actual(self, key: str) -> ObjectVersion | None:
        """Return an object as it really is now."""
        return self._objects.get(key)

    def heal(self) -> None:
        """Stop all faults; hidden objects stay hidden for the time already chosen."""
        self.faults = ObjectFaults(skew_ns=self.faults.skew_ns)

    # Tampering

    def tamper(self, key: str) -> str:
        """Alter, replace or remove an object as a third party; return what was done."""
        version, change = self._objects[key], self._rng.choice(("altered", "cut", "replaced", "removed"))
        self.tampered.add(key)
        if change == "removed":
            self.delete_object(key)
            return change
        data = bytearray(version.data)
        if change == "altered" and data:
            data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
        elif change == "cut":
            del data[self._rng.randrange(len(data) + 1) :]
        else:
            data = bytearray(self._rng.randbytes(len(data)))
        self.store(key, bytes(data), dict(version.info.metadata))
        return change

    # Operations of object stores

    def store(self, key: str, data: bytes, metadata: dict[str, str] | None = None) -> None:
        now_ns = self._clock.now_ns()
        visible_ns = now_ns
        if self._draw_fault("hidden", self.faults.hidden):
            visible_ns += self._rng.randrange(20 * SECOND_NS)
        self.delete_object(key)
        info = ObjectInfo(key, len(data), now_ns + self.faults.skew_ns, metadata or {})
        self._objects[key] = ObjectVersion(info, data, visible_ns)

    def begin_upload(self, key: str, metadata: dict[str, str]) -> str:
        return self.uploads.begin(key, metadata, self._clock.now_ns() + self.faults.skew_ns)

    def complete_upload(self, upload_id: str) -> bool:
        """Make an object of all parts; return False if the upload was finished before."""
        upload = self.uploads.finish(upload_id)
        if upload is None:
            return False
        self.store(upload.upload.key, b"".join(upload.parts), upload.metadata)
        return True

    def delete_object(self, key: str) -> None:
        version = self._objects.pop(key, None)
        if version is not None:
            version.deleted_ns = self._clock.now_ns()
            version.data = b""  # stale listings show that it existed, but nobody reads it
            self._deleted.append(version)

    def get_visible(self, key: str) -> ObjectVersion | None:
        """Return an object as the store shows it."""
        version = self._objects.get(key)
        return version if version is not None and version.visible_ns <= self._clock.now_ns() else None

    def list_visible(self, prefix: str) -> list[ObjectInfo]:
        """Return a listing, perhaps of an earlier state, in key order."""
        at_ns = self._clock.now_ns()
        if self._draw_fault("stale", self.faults.stale):
            at_ns -= self._rng.randrange(300 * SECOND_NS)
        found = {
            version.info.key: version.info
            for version in (*self._deleted, *self._objects.values())
            if version.visible_ns <= at_ns < version.deleted_ns and version.info.key.startswith(prefix)
        }
        return [ObjectInfo(key, found[key].size, found[key].modified_ns) for key in sorted(found)]

    async def begin_request(self) -> None:
        """Start a request; it may take long, or be refused."""
        rng, slow = self._rng, self._draw_fault("slow", self.faults.slow)
        await asyncio.sleep(rng.uniform(1, 40) if slow else rng.uniform(0.000_5, 0.02))
        if self._draw_fault("refused", self.faults.refused):
            raise ObjectStoreError("503 Slow Down")

    def end_request(self) -> None:
        """Finish a request that was carried out; its reply may be lost."""
        if self._draw_fault("unanswered", self.faults.unanswered):
            raise ObjectStoreError("no answer in time")

    def repeat(self, act: Callable[[], object]) -> bool:
        """Perhaps schedule a request again, or only, for later; return whether to do it now."""
        loop, delay_s = asyncio.get_running_loop(), self._rng.uniform(0.1, 60)
        if self._draw_fault("late", self.faults.late):
            loop.call_later(delay_s, act)
            return False
        if self._draw_fault("twice", self.faults.twice):
            loop.call_later(delay_s, act)
        return True

    async def wait_forever(self) -> None:
        """Wait forever."""
        if self._never_done is None:
            self._never_done = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._never_done)

    def loses_connection(self) -> bool:
        return self._draw_fault("broken_off", self.faults.broken_off)

    def _draw_fault(self, name: str, share: float) -> bool:
        if not share or self._rng.random() >= share:
            return False
        self.fault_counts[name] = self.fault_counts.get(name, 0) + 1
        return True


class SimObjectStore:
    """One process's access to the bucket. `page_size` is the number of objects per page of a listing."""

    lifecycle = None

    def __init__(
        self, bucket: SimBucket, observer: ObjectStoreObserver | None = None, *, page_size: int = 1000
    ) -> None:
        self.bucket = bucket.bucket
        self.process_dead = False
        self._bucket = bucket
        self._observer = observer
        self._page_size = page_size

    async def ensure_bucket(self) -> None:
        """Do nothing: the bucket exists."""

    async def bucket_exists(self) -> bool:
        return True

    async def delete_bucket(self) -> None:
        raise ObjectStoreError("others use it")

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        await self._begin()
        if not replace and self._bucket.get_visible(key) is not None:
            raise ObjectAlreadyExists(f"object {key!r} exists already")
        content, metadata = bytes(data), dict(attributes.metadata())
        now = self._bucket.repeat(lambda: self._bucket.store(key, content, metadata))
        if not now:
            raise ObjectStoreError("no answer in time, and nothing was done yet")
        self._bucket.store(key, content, metadata)
        await self._end()
        if self._observer is not None:
            self._observer.on_uploaded()

    async def put_stream(self, key: str, chunks: AsyncIterator[Chunk], attributes: Attributes) -> None:
        """Upload in parts; on an error the upload is aborted if the store allows it, a dead process does not abort."""
        await self._begin()
        upload_id = self._bucket.begin_upload(key, dict(attributes.metadata()))
        try:
            await self._end()
            async for chunk in chunks:
                await self._begin()
                self._bucket.uploads.add_part(upload_id, bytes(chunk))
                await self._end()
                if self._observer is not None:
                    self._observer.on_part_uploaded()
            await self._complete(upload_id)
        except Exception:
            with suppress(ObjectStoreError):
                await self._begin()
                self._bucket.uploads.finish(upload_id)
            raise
        if self._observer is not None:
            self._observer.on_uploaded()

    async def _complete(self, upload_id: str) -> None:
        await self._begin()
        if not self._bucket.repeat(lambda: self._bucket.complete_upload(upload_id)):
            raise ObjectStoreError("no answer in time, and nothing was done yet")
        if not self._bucket.complete_upload(upload_id):
            raise ObjectStoreError("no such upload")
        await self._end()

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        await self._begin()
        version = self._bucket.get_visible(key)
        if version is None:
            raise ObjectMissing(f"there is no object {key!r}")
        return self._iter_chunks(version.data)

    async def _iter_chunks(self, data: bytes) -> AsyncIterator[Chunk]:
        half = len(data) // 2
        if half:
            yield memoryview(data)[:half]
        if self._bucket.loses_connection():
            raise ObjectStoreError("the connection was lost")
        yield memoryview(data)[half:]

    async def head(self, key: str) -> ObjectInfo:
        await self._begin()
        version = self._bucket.get_visible(key)
        if version is None:
            raise ObjectMissing(f"there is no object {key!r}")
        return version.info

    async def exists(self, key: str) -> bool:
        await self._begin()
        return self._bucket.get_visible(key) is not None

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete one by one, until an error."""
        await self._begin()
        for number, key in enumerate(keys):
            if number:
                await self._begin()
            if self._observer is not None:
                self._observer.on_delete(key)
            self._bucket.delete_object(key)
        await self._end()

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        await self._begin()
        infos = [info for info in self._bucket.list_visible(prefix) if info.key > start_after]
        for start in range(0, len(infos), self._page_size):
            yield infos[start : start + self._page_size]
            await self._begin()

    async def prefixes(self, prefix: str) -> Sequence[str]:
        await self._begin()
        below = [info.key[len(prefix) :].partition("/") for info in self._bucket.list_visible(prefix)]
        return sorted({f"{prefix}{name}/" for name, slash, _ in below if slash})

    async def uploads(self) -> Sequence[MultipartUpload]:
        await self._begin()
        return self._bucket.uploads.list_open()

    async def abort(self, upload: MultipartUpload) -> None:
        """Abort an upload; one that is already finished is no error."""
        await self._begin()
        if self._observer is not None:
            self._observer.on_abort(upload)
        self._bucket.uploads.finish(upload.upload_id)
        await self._end()

    async def close(self) -> None:
        """Do nothing."""

    async def _begin(self) -> None:
        await self._wait_if_dead()
        await self._bucket.begin_request()
        await self._wait_if_dead()

    async def _end(self) -> None:
        self._bucket.end_request()
        await self._wait_if_dead()

    async def _wait_if_dead(self) -> None:
        """Never return if the process is dead."""
        if self.process_dead:
            await self._bucket.wait_forever()


class FaultFreeObjectStore(SimObjectStore):
    """Shows what really exists, at once: for checkers."""

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        version = self._bucket.get_actual(key)
        if version is None:
            raise ObjectMissing(f"there is no object {key!r}")
        return _iter_whole(version.data)


async def _iter_whole(data: bytes) -> AsyncIterator[Chunk]:
    yield data
