"""An object store in memory that does what object stores do on bad days.

Owns the objects, what became of each, and the faults by seed: refused before anything happened, unanswered after it
happened, late, done twice, slow, not visible yet, listed as it was a while ago, altered or removed by a stranger, a
clock of its own. `SimObjects` is the bucket; everybody who uses it has a `Door`, which is an `ObjectStore`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from headrace.claims.stores import (
    Attributes,
    Chunk,
    ObjectInfo,
    ObjectMissing,
    ObjectThere,
    StoreError,
    Upload,
)
from headrace.sim.clock import SECOND_NS, SimClock
from headrace.sim.uploads import Uploads

_ALWAYS_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class ObjectFaults:
    """How often what goes wrong, a call; `skew_ns` is how far the store's clock is ahead."""

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
class Life:
    """An object from its upload to its end; replaced ones end and begin anew."""

    info: ObjectInfo
    data: bytes
    seen_ns: int
    gone_ns: int = _ALWAYS_NS


class SimObjects:
    """One bucket. `removing(key, who)` is asked before somebody's deletion takes effect, `aborting(upload, who)` before
    an upload in parts is given up by somebody else.
    """

    def __init__(self, clock: SimClock, rng: Random, faults: ObjectFaults, bucket: str = "claims") -> None:
        self.bucket = bucket
        self.faults = faults
        self.removing: Callable[[str, str], None] = lambda key, who: None
        self.aborting: Callable[[Upload, str], None] = lambda upload, who: None
        self.uploads = Uploads()
        #: Objects that a stranger altered, replaced or removed.
        self.tampered: set[str] = set()
        self.counts: dict[str, int] = {}
        self._clock = clock
        self._rng = rng
        self._live: dict[str, Life] = {}
        self._past: list[Life] = []
        self._never: asyncio.Future[None] | None = None

    # What is true

    def stored(self) -> list[str]:
        """The keys of all objects."""
        return sorted(self._live)

    def peek(self, key: str) -> Life | None:
        """An object as it really is now."""
        return self._live.get(key)

    def heal(self) -> None:
        """No more faults; what is hidden stays so for as long as was said."""
        self.faults = ObjectFaults(skew_ns=self.faults.skew_ns)

    # What a stranger does

    def tamper(self, key: str) -> str:
        """Somebody who should not alters, replaces or removes an object; what was done."""
        life, way = self._live[key], self._rng.choice(("altered", "cut", "replaced", "removed"))
        self.tampered.add(key)
        if way == "removed":
            self.drop(key)
            return way
        data = bytearray(life.data)
        if way == "altered" and data:
            data[self._rng.randrange(len(data))] ^= 1 << self._rng.randrange(8)
        elif way == "cut":
            del data[self._rng.randrange(len(data) + 1) :]
        else:
            data = bytearray(self._rng.randbytes(len(data)))
        self.store(key, bytes(data), dict(life.info.metadata))
        return way

    # What doors do

    def store(self, key: str, data: bytes, metadata: dict[str, str] | None = None) -> None:
        now_ns = self._clock.now_ns()
        seen_ns = now_ns
        if self._happens("hidden", self.faults.hidden):
            seen_ns += self._rng.randrange(20 * SECOND_NS)
        self.drop(key)
        info = ObjectInfo(key, len(data), now_ns + self.faults.skew_ns, metadata or {})
        self._live[key] = Life(info, data, seen_ns)

    def begin_upload(self, key: str, metadata: dict[str, str]) -> str:
        return self.uploads.begin(key, metadata, self._clock.now_ns() + self.faults.skew_ns)

    def complete_upload(self, upload_id: str) -> bool:
        """All parts become an object; False if the upload was ended before."""
        parted = self.uploads.end(upload_id)
        if parted is None:
            return False
        self.store(parted.upload.key, b"".join(parted.parts), parted.metadata)
        return True

    def drop(self, key: str) -> None:
        life = self._live.pop(key, None)
        if life is not None:
            life.gone_ns = self._clock.now_ns()
            life.data = b""  # old listings show that it was there, nobody reads it
            self._past.append(life)

    def shown(self, key: str) -> Life | None:
        """An object as the store shows it."""
        life = self._live.get(key)
        return life if life is not None and life.seen_ns <= self._clock.now_ns() else None

    def listed(self, prefix: str) -> list[ObjectInfo]:
        """What a listing says, perhaps as things were a while ago; in the order of keys."""
        at_ns = self._clock.now_ns()
        if self._happens("stale", self.faults.stale):
            at_ns -= self._rng.randrange(300 * SECOND_NS)
        found = {
            life.info.key: life.info
            for life in (*self._past, *self._live.values())
            if life.seen_ns <= at_ns < life.gone_ns and life.info.key.startswith(prefix)
        }
        return [ObjectInfo(key, found[key].size, found[key].modified_ns) for key in sorted(found)]

    async def begin(self) -> None:
        """A request is on its way; it may take long, or be refused."""
        rng, slow = self._rng, self._happens("slow", self.faults.slow)
        await asyncio.sleep(rng.uniform(1, 40) if slow else rng.uniform(0.000_5, 0.02))
        if self._happens("refused", self.faults.refused):
            raise StoreError("503 Slow Down")

    def end(self) -> None:
        """It was done; whether the answer arrives is another matter."""
        if self._happens("unanswered", self.faults.unanswered):
            raise StoreError("no answer in time")

    def repeat(self, act: Callable[[], object]) -> bool:
        """A request may be done once more later, or only then; whether it is to be done now."""
        loop, delay_s = asyncio.get_running_loop(), self._rng.uniform(0.1, 60)
        if self._happens("late", self.faults.late):
            loop.call_later(delay_s, act)
            return False
        if self._happens("twice", self.faults.twice):
            loop.call_later(delay_s, act)
        return True

    async def never(self) -> None:
        """Wait for ever."""
        if self._never is None:
            self._never = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._never)

    def breaks_off(self) -> bool:
        return self._happens("broken_off", self.faults.broken_off)

    def _happens(self, name: str, share: float) -> bool:
        if not share or self._rng.random() >= share:
            return False
        self.counts[name] = self.counts.get(name, 0) + 1
        return True


class Door:
    """One process's way to the bucket. `page` is how many objects a page of a listing has."""

    lifecycle = None

    def __init__(self, objects: SimObjects, who: str, *, page: int = 1000) -> None:
        self.bucket = objects.bucket
        self.dead = False
        #: Called when an upload is done: a process may die between that and what it does next.
        self.uploaded: Callable[[], None] = lambda: None
        #: The same for each part of an upload in parts.
        self.part_uploaded: Callable[[], None] = lambda: None
        self._objects = objects
        self._who = who
        self._page = page

    async def ensure_bucket(self) -> None:
        """It is there."""

    async def bucket_exists(self) -> bool:
        return True

    async def delete_bucket(self) -> None:
        raise StoreError("others use it")

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        await self._begin()
        if not replace and self._objects.shown(key) is not None:
            raise ObjectThere(f"object {key!r} exists already")
        content, metadata = bytes(data), dict(attributes.metadata())
        now = self._objects.repeat(lambda: self._objects.store(key, content, metadata))
        if not now:
            raise StoreError("no answer in time, and nothing was done yet")
        self._objects.store(key, content, metadata)
        await self._end()
        self.uploaded()

    async def put_stream(self, key: str, chunks: AsyncIterator[Chunk], attributes: Attributes) -> None:
        """In parts; whoever fails gives the upload up if the store lets it, whoever dies does not."""
        await self._begin()
        upload_id = self._objects.begin_upload(key, dict(attributes.metadata()))
        try:
            await self._end()
            async for chunk in chunks:
                await self._begin()
                self._objects.uploads.add(upload_id, bytes(chunk))
                await self._end()
                self.part_uploaded()
            await self._complete(upload_id)
        except Exception:
            with suppress(StoreError):
                await self._begin()
                self._objects.uploads.end(upload_id)
            raise
        self.uploaded()

    async def _complete(self, upload_id: str) -> None:
        await self._begin()
        if not self._objects.repeat(lambda: self._objects.complete_upload(upload_id)):
            raise StoreError("no answer in time, and nothing was done yet")
        if not self._objects.complete_upload(upload_id):
            raise StoreError("no such upload")
        await self._end()

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        await self._begin()
        life = self._objects.shown(key)
        if life is None:
            raise ObjectMissing(f"there is no object {key!r}")
        return self._pieces(life.data)

    async def _pieces(self, data: bytes) -> AsyncIterator[Chunk]:
        half = len(data) // 2
        if half:
            yield memoryview(data)[:half]
        if self._objects.breaks_off():
            raise StoreError("the connection broke")
        yield memoryview(data)[half:]

    async def head(self, key: str) -> ObjectInfo:
        await self._begin()
        life = self._objects.shown(key)
        if life is None:
            raise ObjectMissing(f"there is no object {key!r}")
        return life.info

    async def exists(self, key: str) -> bool:
        await self._begin()
        return self._objects.shown(key) is not None

    async def delete(self, keys: Sequence[str]) -> None:
        """One by one, as far as it gets."""
        await self._begin()
        for number, key in enumerate(keys):
            if number:
                await self._begin()
            self._objects.removing(key, self._who)
            self._objects.drop(key)
        await self._end()

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        await self._begin()
        infos = [info for info in self._objects.listed(prefix) if info.key > start_after]
        for start in range(0, len(infos), self._page):
            yield infos[start : start + self._page]
            await self._begin()

    async def prefixes(self, prefix: str) -> Sequence[str]:
        await self._begin()
        below = [info.key[len(prefix) :].partition("/") for info in self._objects.listed(prefix)]
        return sorted({f"{prefix}{name}/" for name, slash, _ in below if slash})

    async def uploads(self) -> Sequence[Upload]:
        await self._begin()
        return self._objects.uploads.listed()

    async def abort(self, upload: Upload) -> None:
        """One that is over already is no error."""
        await self._begin()
        self._objects.aborting(upload, self._who)
        self._objects.uploads.end(upload.upload_id)
        await self._end()

    async def close(self) -> None:
        """Nothing to close."""

    async def _begin(self) -> None:
        await self._alive()
        await self._objects.begin()
        await self._alive()

    async def _end(self) -> None:
        self._objects.end()
        await self._alive()

    async def _alive(self) -> None:
        """The calls of a process that is gone never return."""
        if self.dead:
            await self._objects.never()


class HonestDoor(Door):
    """What is really there, at once: for those who judge."""

    def __init__(self, objects: SimObjects) -> None:
        super().__init__(objects, "judge")

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        life = self._objects.peek(key)
        if life is None:
            raise ObjectMissing(f"there is no object {key!r}")
        return _whole(life.data)


async def _whole(data: bytes) -> AsyncIterator[Chunk]:
    yield data
