"""A store to which payloads move from others: it writes to one, and reads, lists and deletes in all.

Object keys contain a random part, so no two stores have different objects under the same key. Must not know which
stores these are.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from headrace.claims.stores.lifecycle import Lifecycle
from headrace.claims.stores.object_store import (
    Attributes,
    Chunk,
    MultipartUpload,
    ObjectInfo,
    ObjectMissing,
    ObjectStore,
    ObjectStoreError,
    get_whole,
)

_T = TypeVar("_T")


class CombinedStore:
    """`primary` gets what is written; `others` are read, and emptied in time."""

    def __init__(self, primary: ObjectStore, others: Sequence[ObjectStore]) -> None:
        self.bucket = primary.bucket
        self.others = tuple(others)
        self._primary = primary
        self._stores = (primary, *others)
        #: Where unfinished uploads were found.
        self._upload_stores: dict[str, ObjectStore] = {}

    @property
    def has_late_metadata(self) -> bool:
        return getattr(self._primary, "has_late_metadata", False)

    @property
    def lifecycle(self) -> Lifecycle | None:
        return self._primary.lifecycle

    async def ensure_bucket(self) -> None:
        await self._primary.ensure_bucket()

    async def bucket_exists(self) -> bool:
        return await self._primary.bucket_exists()

    async def delete_bucket(self) -> None:
        await self._primary.delete_bucket()

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        await self._primary.put(key, data, attributes, replace=replace)

    async def put_stream(self, key: str, chunks: AsyncIterator[Chunk], attributes: Attributes) -> None:
        await self._primary.put_stream(key, chunks, attributes)

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        return await self._find(lambda store: store.get(key))

    async def get_whole(self, key: str, size: int) -> tuple[bytes, str] | None:
        return await self._find(lambda store: get_whole(store, key, size))

    async def head(self, key: str) -> ObjectInfo:
        return await self._find(lambda store: store.head(key))

    async def exists(self, key: str) -> bool:
        async def confirm(store: ObjectStore) -> bool:
            if not await store.exists(key):
                raise ObjectMissing(f"there is no object {key!r}")
            return True

        try:
            return await self._find(confirm)
        except ObjectMissing:
            return False

    async def delete(self, keys: Sequence[str]) -> None:
        await asyncio.gather(*(store.delete(keys) for store in self._stores))

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """Yield pages in key order: of what was read from each store, as much as no other store can precede."""
        pages = {index: store.list(prefix, start_after) for index, store in enumerate(self._stores)}
        waiting: dict[int, list[ObjectInfo]] = {}
        while pages:
            for index in [index for index in pages if not waiting.get(index)]:
                page = await anext(pages[index], None)
                if page is None:
                    del pages[index]
                    waiting.pop(index, None)
                else:
                    waiting[index] = list(page)
            last = min((items[-1].key for items in waiting.values() if items), default="")
            ready = [[info for info in items if info.key <= last] for items in waiting.values()]
            waiting = {
                index: items[len(done) :] for (index, items), done in zip(waiting.items(), ready, strict=True)
            }
            if merged := list(heapq.merge(*ready, key=lambda info: info.key)):
                yield merged

    async def prefixes(self, prefix: str) -> Sequence[str]:
        return sorted({name for store in self._stores for name in await store.prefixes(prefix)})

    async def uploads(self) -> Sequence[MultipartUpload]:
        found = [(upload, store) for store in self._stores for upload in await store.uploads()]
        self._upload_stores = {upload.upload_id: store for upload, store in found}
        return [upload for upload, _ in found]

    async def abort(self, upload: MultipartUpload) -> None:
        await self._upload_stores.get(upload.upload_id, self._primary).abort(upload)

    async def close(self) -> None:
        for store in self._stores:
            await store.close()

    async def _find(self, read: Callable[[ObjectStore], Awaitable[_T]]) -> _T:
        """Read from the first store that has the object; raise `ObjectMissing` only if every store says so.

        A store that fails or denies access may have it, or another one: some stores deny access to what they lack.
        """
        failures: list[ObjectStoreError] = []
        for store in self._stores:
            try:
                return await read(store)
            except ObjectMissing as error:
                missing = error
            except ObjectStoreError as error:
                failures.append(type(error)(f"bucket {store.bucket!r}: {error}"))
                failures[-1].__cause__ = error
        raise failures[0] if failures else missing
