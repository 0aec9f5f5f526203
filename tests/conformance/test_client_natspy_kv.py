"""nats-py's own key-value buckets, unmodified: everything works on both servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import nats.js.errors
import pytest
from nats.aio.client import Client as NatsClient
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig
from nats.js.kv import KeyValue


@pytest.fixture
def js(nc: NatsClient) -> JetStreamContext:
    return nc.jetstream()


@pytest.fixture
async def kv(js: JetStreamContext, name: str) -> AsyncIterator[KeyValue]:
    yield await js.create_key_value(config=KeyValueConfig(bucket=name, history=5, direct=True))
    await js.delete_key_value(name)


async def initial(watcher: Any) -> list[Any]:
    entries = []
    async for entry in watcher:
        if entry is None:
            return entries
        entries.append(entry)
    raise AssertionError("no None came")


async def test_values_are_put_updated_deleted_and_purged(kv: KeyValue) -> None:
    assert await kv.put("a", b"1") == 1
    assert await kv.update("a", b"2", last=1) == 2
    assert ((await kv.get("a")).value, (await kv.get("a", revision=1)).value) == (b"2", b"1")
    with pytest.raises(nats.js.errors.KeyWrongLastSequenceError):
        await kv.create("a", b"3")
    await kv.delete("a")
    assert await kv.create("a", b"4") == 4
    await kv.purge("a")
    with pytest.raises(nats.js.errors.KeyNotFoundError):
        await kv.get("a")
    assert (await kv.status()).values == 1


async def test_a_watcher_sees_puts_deletes_and_purges(kv: KeyValue) -> None:
    await kv.put("a", b"1")
    await kv.put("a", b"2")
    watcher = await kv.watchall()
    assert [(entry.key, entry.revision, entry.delta) for entry in await initial(watcher)] == [("a", 2, 0)]
    await kv.put("b", b"1")
    await kv.delete("a")
    await kv.purge("b")
    changes = [await watcher.updates(timeout=90) for _ in range(3)]
    assert [(entry.key, entry.operation) for entry in changes] == [("b", None), ("a", "DEL"), ("b", "PURGE")]
    await watcher.stop()
    empty = await kv.watch("nope")
    assert await initial(empty) == []
    await empty.stop()


async def test_history_and_keys(kv: KeyValue) -> None:
    for number in range(7):
        await kv.put("a", b"%d" % number)
    await kv.put("b", b"x")
    await kv.delete("b")
    assert [entry.value for entry in await kv.history("a")] == [b"2", b"3", b"4", b"5", b"6"]
    assert await kv.keys() == ["a"]
    assert await kv.purge_deletes(olderthan=-1)
    with pytest.raises(nats.js.errors.NoKeysError):
        await kv.history("b")


async def test_hundreds_of_keys_are_listed(kv: KeyValue) -> None:
    for number in range(600):
        await kv.put(f"k.{number}", b"x" * 100)
    assert len(await kv.keys()) == 600


@pytest.mark.slow
async def test_watchers_see_markers(js: JetStreamContext, name: str) -> None:
    kv = await js.create_key_value(bucket=name, limit_marker_ttl=60.0)
    watcher = await kv.watchall()
    assert await initial(watcher) == []
    await kv.create("a", b"1", msg_ttl=1.0)
    put, expired = [await watcher.updates(timeout=90) for _ in range(2)]
    assert (put.operation, put.revision) == (None, 1)
    assert (expired.key, expired.operation, expired.revision, expired.value) == ("a", "PURGE", 2, b"")
    await watcher.stop()
    with pytest.raises(nats.js.errors.NoKeysError):
        await kv.keys()
    assert [entry.operation for entry in await kv.history("a")] == ["PURGE"]
    assert (await kv.status()).marker_ttl == 60
    await js.delete_key_value(name)
