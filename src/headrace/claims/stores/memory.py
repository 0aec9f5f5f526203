"""Objects in memory, with a clock that can be moved: for tests and for trying things out.

Its lifecycle rules are stored like a vendor's and run on request (`run_lifecycle`), which no vendor offers.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence

from headrace.claims.clock import SECOND_NS
from headrace.claims.stores.lifecycle import LifecycleRule
from headrace.claims.stores.object_store import (
    Attributes,
    BucketMissing,
    Chunk,
    MultipartUpload,
    ObjectAlreadyExists,
    ObjectInfo,
    ObjectMissing,
    ObjectStoreError,
    StaticAttributes,
)
from headrace.clock import Clock, SystemClock

_PAGE_SIZE = 1000
_DAY_NS = 86400 * SECOND_NS
_CHUNK_BYTES = 1024 * 1024


class MemoryLifecycle:
    def __init__(self) -> None:
        self._rules: list[LifecycleRule] = []

    async def read(self) -> list[LifecycleRule]:
        return [dict(rule) for rule in self._rules]

    async def write(self, rules: Sequence[LifecycleRule]) -> None:
        self._rules = [dict(rule) for rule in rules]

    def make_rules(self, namespace: str, days: int) -> list[LifecycleRule]:
        return [{"id": f"headrace-claims-{namespace}", "prefix": f"{namespace}/", "days": days}]

    def is_own_rule(self, rule: LifecycleRule, namespace: str) -> bool:
        return rule.get("id") == f"headrace-claims-{namespace}"


class MemoryStore:
    """A bucket in memory."""

    def __init__(self, bucket: str = "claims", clock: Clock | None = None) -> None:
        self.bucket = bucket
        self.lifecycle = MemoryLifecycle()
        self._clock = clock or SystemClock()
        self._objects: dict[str, tuple[bytes, ObjectInfo]] = {}
        self._has_bucket = False

    async def ensure_bucket(self) -> None:
        self._has_bucket = True

    async def bucket_exists(self) -> bool:
        return self._has_bucket

    async def delete_bucket(self) -> None:
        if self._objects:
            raise ObjectStoreError(
                f"bucket {self.bucket!r} holds {len(self._objects)} objects; delete them first"
            )
        self._has_bucket = False

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        if not self._has_bucket:
            raise BucketMissing(f"there is no bucket {self.bucket!r}")
        if key in self._objects and not replace:
            raise ObjectAlreadyExists(f"object {key!r} exists already")
        info = ObjectInfo(key, len(data), self._clock.now_ns(), dict(attributes.metadata()))
        self._objects[key] = (bytes(data), info)

    async def put_stream(self, key: str, chunks: AsyncIterator[Chunk], attributes: Attributes) -> None:
        data = b"".join([bytes(chunk) async for chunk in chunks])
        await self.put(key, data, attributes, replace=True)

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        data = self._get_object(key)[0]

        async def iter_chunks() -> AsyncIterator[Chunk]:
            view = memoryview(data)
            for start in range(0, len(view), _CHUNK_BYTES):
                yield view[start : start + _CHUNK_BYTES]

        return iter_chunks()

    async def get_version(self, key: str) -> tuple[bytes, str]:
        """Return an object and its version; implements `VersionedStore`."""
        data = self._get_object(key)[0]
        return data, hashlib.sha256(data).hexdigest()

    async def put_version(self, key: str, data: Chunk, version: str) -> None:
        """Replace an object that still has this version."""
        if hashlib.sha256(self._get_object(key)[0]).hexdigest() != version:
            raise ObjectAlreadyExists(f"object {key!r} was replaced")
        await MemoryStore.put(self, key, data, StaticAttributes(), replace=True)

    async def head(self, key: str) -> ObjectInfo:
        return self._get_object(key)[1]

    async def exists(self, key: str) -> bool:
        return key in self._objects

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._objects.pop(key, None)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        keys = sorted(key for key in self._objects if key.startswith(prefix) and key > start_after)
        for start in range(0, len(keys), _PAGE_SIZE):
            page = [self._objects[key][1] for key in keys[start : start + _PAGE_SIZE] if key in self._objects]
            yield [ObjectInfo(info.key, info.size, info.modified_ns) for info in page]

    async def prefixes(self, prefix: str) -> Sequence[str]:
        suffixes = {key[len(prefix) :].partition("/") for key in self._objects if key.startswith(prefix)}
        return sorted({f"{prefix}{name}/" for name, slash, _ in suffixes if slash})

    async def uploads(self) -> Sequence[MultipartUpload]:
        return ()

    async def abort(self, upload: MultipartUpload) -> None:
        raise ObjectMissing(f"there is no upload of {upload.key!r}")

    async def close(self) -> None:
        """Do nothing; the objects stay as long as the store is referenced."""

    async def run_lifecycle(self) -> None:
        """Apply the bucket's rules now."""
        now_ns = self._clock.now_ns()
        for rule in await self.lifecycle.read():
            for key, (_, info) in list(self._objects.items()):
                if key.startswith(rule["prefix"]) and info.modified_ns + rule["days"] * _DAY_NS <= now_ns:
                    del self._objects[key]

    def _get_object(self, key: str) -> tuple[bytes, ObjectInfo]:
        try:
            return self._objects[key]
        except KeyError:
            raise ObjectMissing(f"there is no object {key!r} in {self.bucket!r}") from None
