"""Object buckets through an unmodified nats-py: a convention on top of streams."""

from __future__ import annotations

import asyncio
import hashlib
import io
from random import Random

import pytest
from nats.aio.client import Client as NatsClient
from nats.js.api import ObjectMeta
from nats.js.errors import NotFoundError, ObjectDeletedError, ObjectNotFoundError

MEBIBYTE = 1 << 20


async def test_life_of_an_object(nc: NatsClient, name: str) -> None:
    js = nc.jetstream()
    store = await js.create_object_store(name)
    info = await store.put("one", b"first content")
    assert (info.name, info.size, info.chunks) == ("one", 13, 1)
    found = await store.get("one")
    assert found.data == b"first content"
    await store.put("one", b"second")
    assert (await store.get("one")).data == b"second"
    await store.put("two", b"")
    assert (await store.get("two")).data == b""
    assert sorted(entry.name for entry in await store.list()) == ["one", "two"]
    await store.delete("one")
    with pytest.raises((ObjectNotFoundError, ObjectDeletedError)):
        await store.get("one")
    assert [entry.name for entry in await store.list() if not entry.deleted] == ["two"]
    assert (await store.status()).bucket == name
    assert await js.delete_object_store(name)
    with pytest.raises(NotFoundError):
        await js.object_store(name)


async def test_chunks_of_an_older_content_are_gone(nc: NatsClient, name: str) -> None:
    js = nc.jetstream()
    store = await js.create_object_store(name)
    for number in range(3):
        await store.put("a", Random(number).randbytes(300_000))
    state = (await js.stream_info(f"OBJ_{name}")).state
    assert state.messages == 4  # three chunks and their metadata
    assert (await store.get("a")).data == Random(2).randbytes(300_000)
    await js.delete_object_store(name)


async def test_watch_sees_changes(nc: NatsClient, name: str) -> None:
    js = nc.jetstream()
    store = await js.create_object_store(name)
    await store.put("a", b"1")
    watcher = await store.watch()
    assert (await watcher.updates()).name == "a"
    assert await watcher.updates() is None
    await store.put("b", b"2")
    assert (await watcher.updates()).name == "b"
    await watcher.stop()
    await js.delete_object_store(name)


async def test_the_description_of_an_object_can_be_changed(nc: NatsClient, name: str) -> None:
    js = nc.jetstream()
    store = await js.create_object_store(name)
    await store.put("a", b"1", meta=ObjectMeta(name="a", description="before"))
    await store.update_meta("a", ObjectMeta(name="a", description="after"))
    assert (await store.get_info("a")).description == "after"
    assert (await store.get("a")).data == b"1"
    await js.delete_object_store(name)


async def test_a_sealed_store_stays_as_it_is(nc: NatsClient, name: str) -> None:
    js = nc.jetstream()
    store = await js.create_object_store(name)
    await store.put("a", b"1")
    await store.seal()
    with pytest.raises(Exception, match="sealed"):
        await store.put("b", b"2")
    assert (await store.get("a")).data == b"1"
    await js.delete_object_store(name)


@pytest.mark.slow
async def test_an_object_of_a_hundred_megabytes_is_read_back(nc: NatsClient, name: str) -> None:
    js = nc.jetstream()
    store = await js.create_object_store(name)
    block = Random(7).randbytes(MEBIBYTE)
    content = b"".join(number.to_bytes(4, "big") + block[4:] for number in range(100))
    info = await asyncio.wait_for(store.put("large", io.BytesIO(content)), 90)
    assert (info.size, info.chunks) == (100 * MEBIBYTE, 800)
    target = io.BytesIO()
    await asyncio.wait_for(store.get("large", writeinto=target), 90)
    assert hashlib.sha256(target.getbuffer()).digest() == hashlib.sha256(content).digest()
    await js.delete_object_store(name)
