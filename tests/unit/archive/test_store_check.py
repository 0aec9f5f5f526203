"""The test of an object store: a store without put-if-absent, or with late reads, is refused with the reason."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headrace.archive.store_check import check_store
from headrace.claims.stores import Attributes, Chunk, MemoryStore
from headrace.errors import ArchiveError
from support.archives import make_target


class Overwriting(MemoryStore):
    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        await super().put(key, data, attributes, replace=True)


class Stale(MemoryStore):
    def __init__(self) -> None:
        super().__init__("archive")
        self.first: dict[str, bytes] = {}

    async def put(self, key: str, data: Chunk, attributes: Attributes, *, replace: bool = False) -> None:
        await super().put(key, data, attributes, replace=replace)
        self.first.setdefault(key, bytes(data))

    async def get(self, key: str) -> AsyncIterator[Chunk]:
        async def chunks() -> AsyncIterator[Chunk]:
            yield self.first[key]

        await super().get(key)
        return chunks()


async def test_a_good_store_passes_and_nothing_is_left() -> None:
    store = MemoryStore("archive")
    assert (await check_store(await make_target(store)))["rounds"] == 20
    assert not store._objects


@pytest.mark.parametrize(
    ("store", "reason"), [(Overwriting("a"), "put-if-absent"), (Stale(), "older object")]
)
async def test_a_store_that_cannot_be_used_is_refused(store: MemoryStore, reason: str) -> None:
    with pytest.raises(ArchiveError, match=reason):
        await check_store(await make_target(store))
