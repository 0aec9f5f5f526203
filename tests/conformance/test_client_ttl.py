"""Expiring keys: TTLs of keys, of buckets and of purges, as a user of headrace.client sees them.

On nats-server these take real seconds, so each test lets several keys expire together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from nats.aio.client import Client as NatsClient

from conformance.client import Client
from headrace.client import Entry, JetStream, KeyValue, errors, jetstream
from support.cluster_server import IS_TARGET

pytestmark = pytest.mark.slow

TIMEOUT_S = 90.0


@pytest.fixture
def js(nc: NatsClient) -> JetStream:
    return jetstream(nc)


@pytest.fixture
async def make(js: JetStream, name: str) -> AsyncIterator[Callable[..., Awaitable[KeyValue]]]:
    made: list[str] = []

    async def create(bucket: str = name, **options: Any) -> KeyValue:
        made.append(bucket)
        return await js.create_key_value(bucket=bucket, **options)

    yield create
    for bucket in made:
        await js.delete_key_value(bucket)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_key_that_expires(make: Callable[..., Awaitable[KeyValue]]) -> None:
    """Watchers receive the marker, other reads do not see the key, and a new value replaces the marker."""
    kv = await make(limit_markers="1h")
    await kv.put("stays", b"1")
    async with await kv.watchall() as watcher, await kv.watchall(ignore_deletes=True) as values:
        assert len(await watcher.initial()) == 1
        assert len(await values.initial()) == 1
        begun = time.monotonic()
        # At the same time, so that both exist before the first one expires, however slow the machine is.
        await asyncio.gather(kv.create("short", b"1", ttl=1), kv.create("again", b"1", ttl="1s"))
        for each in (watcher, values):
            put = [await each.updates(TIMEOUT_S) for _ in range(2)]
            assert {(entry.key, entry.value) for entry in put if entry} == {("short", b"1"), ("again", b"1")}
        expired = [await watcher.updates(TIMEOUT_S) for _ in range(2)]
        assert time.monotonic() - begun >= 1
        assert {(entry.key, str(entry.operation), entry.value) for entry in expired if entry} == {
            ("short", "PURGE", b""),
            ("again", "PURGE", b""),
        }
        assert [entry.revision for entry in expired if entry] == [4, 5]
        with pytest.raises(errors.KeyNotFound) as caught:
            await kv.get("short")
        assert caught.value.entry.operation == "PURGE"
        assert await kv.keys() == ["stays"]
        assert [entry.operation for entry in await kv.history("short")] == ["PURGE"]
        assert await kv.create("again", b"2", ttl="1h") == 6
        assert (await kv.get("again")).value == b"2"
        late = await values.updates(TIMEOUT_S)
        assert late
        assert (late.key, late.value) == ("again", b"2")
    async with await kv.watch("short") as watcher:
        assert [str(entry.operation) for entry in await watcher.initial()] == ["PURGE"]
    async with await kv.watch("short", ignore_deletes=True) as watcher:
        assert await watcher.initial() == []


async def test_nothing_is_left_of_a_purge_with_ttl(make: Callable[..., Awaitable[KeyValue]]) -> None:
    kv = await make(history=3, limit_markers="1s")
    for key in ("a", "b"):
        await kv.put(key, b"1")
        await kv.put(key, b"2")
        await kv.purge(key, ttl=1)
    async with await kv.watchall() as watcher:
        await watcher.initial()

        async def empty() -> bool:
            return (await kv.status()).values == 0

        await until(empty)
        revision = await kv.create("a", b"3")
        entry = await watcher.updates(TIMEOUT_S)
        assert entry
        # A purge leaves no marker: the next event for watchers is the new value.
        assert (entry.revision, entry.operation) == (revision, "PUT")


async def test_what_becomes_of_markers_when_a_bucket_has_a_ttl(
    make: Callable[..., Awaitable[KeyValue]],
) -> None:
    """A DEL that expires becomes a marker; a PURGE disappears."""
    kv = await make(ttl="1s", limit_markers="3s")
    async with await kv.watchall() as watcher:
        assert await watcher.updates(TIMEOUT_S) is None
        await kv.delete("deleted")
        await kv.purge("purged")
        await kv.put("aged", b"1")
        events: list[Entry | None] = [await watcher.updates(TIMEOUT_S) for _ in range(5)]
    seen = [(entry.key, str(entry.operation)) for entry in events if entry]
    assert {key: [operation for each, operation in seen if each == key] for key, _ in seen} == {
        "deleted": ["DEL", "PURGE"],
        "purged": ["PURGE"],
        "aged": ["PUT", "PURGE"],
    }
    assert await kv.last("purged") is None


async def test_the_floor_of_a_ttl_with_history(
    make: Callable[..., Awaitable[KeyValue]], js: JetStream, name: str
) -> None:
    kv = await make(history=5, limit_markers="1h")
    await kv.create("a", b"1", ttl=1)
    assert (await js.get_msg(f"KV_{name}", 1)).headers["Nats-TTL"] == "3600"  # type: ignore[index]


async def test_without_markers_a_key_ends_silently(
    make: Callable[..., Awaitable[KeyValue]], client: Client, name: str
) -> None:
    kv = await make(ttl="1s")
    async with await kv.watchall() as watcher:
        await watcher.initial()
        await kv.put("a", b"1")
        assert await watcher.updates(TIMEOUT_S)

        async def gone() -> bool:
            return await kv.last("a") is None

        await until(gone)
        revision = await kv.create("a", b"2")
        entry = await watcher.updates(TIMEOUT_S)
        assert entry
        assert entry.revision == revision == 2


@pytest.mark.single_server("A second message at the same time is rejected with 10164")
async def test_the_vectors_of_a_bucket_with_markers(
    make: Callable[..., Awaitable[KeyValue]], client: Client, name: str
) -> None:
    """The same bytes that clients in other languages receive."""
    await make(limit_markers="30s")
    subject, stream = f"$KV.{name}.k", f"KV_{name}"
    expected = "Nats-Expected-Last-Subject-Sequence"
    purge = {"KV-Operation": "PURGE", "Nats-Rollup": "sub"}

    def wrong(seq: int) -> dict[str, Any]:
        error = {"code": 400, "err_code": 10071, "description": f"wrong last sequence: {seq}"}
        return {"error": error, "stream": stream, "seq": 0}

    # At the same time: the second is stored while the first exists, however slow the machine is.
    asked = [client.ask(subject, b"v", {expected: "0", **more}) for more in ({"Nats-TTL": "1"}, {})]
    answers = {message.subject: message.json for message in (client.next("1"), client.next("1"))}
    first, second = (answers[reply] for reply in asked)
    assert first == {"stream": stream, "seq": 1}
    if IS_TARGET and second["error"]["err_code"] == 10164:  # the cluster has not yet replicated the first
        assert second["error"]["description"] == "wrong last sequence"
    else:
        assert second == wrong(1)

    async def marked() -> bool:
        answer = client.request(f"$JS.API.DIRECT.GET.{stream}.{subject}")
        return answer.headers.get("Nats-Sequence") == "2"

    await until(marked)
    marker = client.request(f"$JS.API.DIRECT.GET.{stream}.{subject}")
    lines = marker.header.decode().split("\r\n")
    assert lines[:4] == ["NATS/1.0", "Nats-Marker-Reason: MaxAge", "Nats-TTL: 30s", "Nats-Rollup: sub"]
    assert {f"Nats-Stream: {stream}", f"Nats-Subject: {subject}", "Nats-Sequence: 2"} <= set(lines)
    assert marker.payload == b""
    answer = client.api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
    assert (answer["message"]["seq"], "data" in answer["message"]) == (2, False)
    assert client.store(subject, b"v", {expected: "0"}) == wrong(2)
    assert client.store(subject, b"v", {expected: "2"})["seq"] == 3
    assert client.store(subject, b"", {"KV-Operation": "DEL"})["seq"] == 4
    assert client.store(subject, b"v", {expected: "0"}) == wrong(4)
    assert client.store(subject, b"v", {expected: "4"})["seq"] == 5
    assert client.store(subject, b"", {**purge, "Nats-TTL": "1"})["seq"] == 6

    async def empty() -> bool:
        return client.api(f"STREAM.INFO.{stream}")["state"]["messages"] == 0

    await until(empty)
    assert client.api(f"STREAM.INFO.{stream}")["state"]["last_seq"] == 6
    assert client.store(subject, b"v", {expected: "0"})["seq"] == 7
    assert client.store(subject, b"", {**purge, expected: "1"}) == wrong(7)
    refused = client.api(f"STREAM.MSG.DELETE.{stream}", {"seq": 7})
    assert refused["error"] == {"code": 500, "err_code": 10057, "description": "message delete not permitted"}
    purged = client.api(f"STREAM.PURGE.{stream}", {"filter": subject})
    assert (purged["success"], purged["purged"]) == (True, 1)
