"""The object store of the simulation, and the network to it.

Owns the objects, what is wrong with requests, and what really happened. Invariant: a request takes effect when it
arrives, whether or not its sender still waits, was suspended or is dead; once, twice or never. A reader sees every object
at once; only lists may lack new ones. `observe` sees each change when it happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, NamedTuple

from headrace.archive.group_format import parse_log_key
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

from .process import SimProcess

TIMEOUT_S = 2.0
LATE_S = 25.0


@dataclass(frozen=True, slots=True)
class RequestFaults:
    """Probability of each fault per request."""

    refused: float = 0.0
    lost: float = 0.0
    late: float = 0.0
    unanswered: float = 0.0
    twice: float = 0.0
    slow: float = 0.0
    conflict: float = 0.0  # "already exists" for a create that failed
    hidden: float = 0.0  # a new object is not in lists for a while


NO_FAULTS = RequestFaults()


class StoredObject(NamedTuple):
    """An object as it is."""

    data: bytes
    info: ObjectInfo
    version: str
    listed_ns: int


#: Called for a change that happened: key, the object (None if it was removed), the process that asked for it.
Observer = Callable[[str, "StoredObject | None", str], None]


class SimArchiveBucket:
    """The bucket. With `keeps_numbers` the log is like a stream of NATS: each group follows the one before it."""

    def __init__(self, clock: SimClock, rng: Random, faults: RequestFaults) -> None:
        self.objects: dict[str, StoredObject] = {}
        self.faults = faults
        self.is_down = False
        self.keeps_numbers = False
        self._last_number = 0
        self.observe: Observer = lambda key, stored, sender: None
        self.requests = 0
        self.fault_counts: dict[str, int] = {}
        self._clock = clock
        self._rng = rng
        self._versions = 0

    # What happens in the store

    def put(
        self, key: str, data: bytes, sender: str, condition: Callable[[StoredObject | None], None]
    ) -> str:
        """Write an object if the condition does not raise an error; return its version."""
        now_ns = self._clock.now_ns()
        condition(self.objects.get(key))
        if self.keeps_numbers and (number := parse_log_key(key.partition("/")[2])):
            if number != self._last_number + 1:
                raise ObjectAlreadyExists(f"group {number} does not follow {self._last_number}")
            self._last_number = number
        self._versions += 1
        listed_ns = now_ns
        if self._rng.random() < self.faults.hidden:
            listed_ns += self._rng.randrange(20 * SECOND_NS)
        stored = StoredObject(data, ObjectInfo(key, len(data), now_ns), f"v{self._versions}", listed_ns)
        self.objects[key] = stored
        self.observe(key, stored, sender)
        return stored.version

    def delete(self, keys: Sequence[str], sender: str) -> None:
        for key in keys:
            if self.objects.pop(key, None) is not None:
                self.observe(key, None, sender)

    def list_visible(self, prefix: str) -> list[ObjectInfo]:
        now_ns = self._clock.now_ns()
        found = [each for key, each in self.objects.items() if key.startswith(prefix)]
        return sorted((each.info for each in found if each.listed_ns <= now_ns), key=lambda info: info.key)

    # The network to it

    def send(self, process: SimProcess, act: Callable[[], Any], *, is_create: bool, is_write: bool) -> Any:
        """Send a request; return a future of the reply."""
        loop, rng = asyncio.get_running_loop(), self._rng
        reply: asyncio.Future[Any] = loop.create_future()
        self.requests += 1
        there_s, back_s = rng.uniform(0.0005, 0.006), rng.uniform(0.0005, 0.006)
        if process.is_cut or self.is_down:
            loop.call_later(rng.choice((0.05, TIMEOUT_S)), _fail, reply, ObjectStoreError("unreachable"))
            return reply
        fault = self._draw(is_create=is_create, is_write=is_write)
        if fault == "slow":
            there_s += rng.uniform(0.05, TIMEOUT_S)
        if fault == "refused":
            loop.call_later(there_s + back_s, _fail, reply, ObjectStoreError("503 Slow Down"))
        elif fault == "conflict":
            error = ObjectAlreadyExists("409 conflict with another request, which failed")
            loop.call_later(there_s + back_s, _fail, reply, error)
        elif fault in ("lost", "late", "unanswered"):
            if fault != "lost":
                loop.call_later(rng.uniform(0.1, LATE_S) if fault == "late" else there_s, _try, act)
            loop.call_later(rng.uniform(0.05, TIMEOUT_S), _fail, reply, ObjectStoreError("no reply"))
        elif fault == "twice":
            gap_s = rng.choice((rng.uniform(0, 0.01), rng.uniform(0, LATE_S)))
            is_second = gap_s < 0.01 and rng.random() < 0.5
            other: asyncio.Future[Any] = loop.create_future()
            loop.call_later(there_s, _answer, loop, other if is_second else reply, act, back_s)
            loop.call_later(there_s + gap_s, _answer, loop, reply if is_second else other, act, back_s)
        else:
            loop.call_later(there_s, _answer, loop, reply, act, back_s)
        return reply

    def _draw(self, *, is_create: bool, is_write: bool) -> str:
        roll, faults = self._rng.random(), self.faults
        shares = [("refused", faults.refused), ("lost", faults.lost), ("slow", faults.slow)]
        if is_write:
            shares += [("late", faults.late), ("unanswered", faults.unanswered), ("twice", faults.twice)]
        if is_create:
            shares.append(("conflict", faults.conflict))
        for name, share in shares:
            if roll < share:
                self.fault_counts[name] = self.fault_counts.get(name, 0) + 1
                return name
            roll -= share
        return ""


def _answer(
    loop: asyncio.AbstractEventLoop, reply: asyncio.Future[Any], act: Callable[[], Any], back_s: float
) -> None:
    try:
        result = act()
    except ObjectStoreError as error:
        loop.call_later(back_s, _fail, reply, error)
        return
    loop.call_later(back_s, lambda: None if reply.done() else reply.set_result(result))


def _try(act: Callable[[], Any]) -> None:
    """Carry a request out that nobody waits for."""
    try:
        act()
    except ObjectStoreError:
        return


def _fail(reply: asyncio.Future[Any], error: Exception) -> None:
    if not reply.done():
        reply.set_exception(error)
        reply.exception()  # its sender may be dead


def require_absent(found: StoredObject | None) -> None:
    if found is not None:
        raise ObjectAlreadyExists(f"object {found.info.key!r} exists already")


def accept_any(found: StoredObject | None) -> None:
    """Accept every state of the object."""


class BucketClient:
    """The bucket, as a process uses it: an `ObjectStore`."""

    bucket = "archive"
    lifecycle = None

    def __init__(self, bucket: SimArchiveBucket, process: SimProcess) -> None:
        self._bucket = bucket
        self._process = process

    async def _call(self, act: Callable[[], Any], *, is_create: bool = False, is_write: bool = False) -> Any:
        await self._process.run_gate()
        reply = self._bucket.send(self._process, act, is_create=is_create, is_write=is_write)
        try:
            result = await reply
        except ObjectStoreError:
            await self._process.run_gate()
            raise
        await self._process.run_gate()
        return result

    async def ensure_bucket(self) -> None:
        """Do nothing: the bucket exists."""

    async def bucket_exists(self) -> bool:
        return True

    async def delete_bucket(self) -> None:
        raise ObjectStoreError("others use it")

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        content, sender = bytes(data), self._process.name
        condition = accept_any if replace else require_absent
        await self._call(
            lambda: self._bucket.put(key, content, sender, condition), is_create=not replace, is_write=True
        )

    async def put_stream(self, key: str, chunks: AsyncIterator[Chunk], attributes: Attributes) -> None:
        data = b"".join([bytes(chunk) async for chunk in chunks])
        await self.put(key, data, attributes, replace=True)

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        data = (await self._call(lambda: self._find(key))).data
        return _iter_whole(data)

    def _find(self, key: str) -> StoredObject:
        found = self._bucket.objects.get(key)
        if found is None:
            raise ObjectMissing(f"there is no object {key!r}")
        return found

    async def get_version(self, key: str) -> tuple[bytes, str]:
        found = await self._call(lambda: self._find(key))
        return found.data, found.version

    async def put_version(self, key: str, data: Chunk, version: str) -> None:
        content, sender = bytes(data), self._process.name

        def require_version(found: StoredObject | None) -> None:
            if found is None:
                raise ObjectMissing(f"there is no object {key!r}")
            if found.version != version:
                raise ObjectAlreadyExists(f"object {key!r} was replaced")

        act = partial(self._bucket.put, key, content, sender, require_version)
        await self._call(act, is_create=True, is_write=True)

    async def head(self, key: str) -> ObjectInfo:
        info: ObjectInfo = (await self._call(lambda: self._find(key))).info
        return info

    async def exists(self, key: str) -> bool:
        return bool(await self._call(lambda: key in self._bucket.objects))

    async def delete(self, keys: Sequence[str]) -> None:
        sender = self._process.name
        await self._call(lambda: self._bucket.delete(keys, sender), is_write=True)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        found = await self._call(lambda: self._bucket.list_visible(prefix))
        yield [info for info in found if info.key > start_after]

    async def prefixes(self, prefix: str) -> Sequence[str]:
        found = await self._call(lambda: self._bucket.list_visible(prefix))
        below = [info.key[len(prefix) :].partition("/") for info in found]
        return sorted({f"{prefix}{name}/" for name, slash, _ in below if slash})

    async def uploads(self) -> Sequence[MultipartUpload]:
        return ()

    async def abort(self, upload: MultipartUpload) -> None:
        """Do nothing: there are none."""

    async def close(self) -> None:
        """Do nothing."""


async def _iter_whole(data: bytes) -> AsyncIterator[Chunk]:
    yield data
