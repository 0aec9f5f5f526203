"""Buckets over hours and days, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from headrace.client import Entry, JetStream, Watcher, connect, errors
from headrace.testing import HostedServer

pytestmark = pytest.mark.headrace(clock="virtual")

Advance = Callable[[str], Awaitable[None]]


@pytest.fixture
async def js(headrace_server: HostedServer) -> AsyncIterator[JetStream]:
    async with await connect(headrace_server.url) as nc:
        yield nc.jetstream()


@pytest.fixture
def advance(headrace_server: HostedServer) -> Advance:
    async def pass_time(duration: str) -> None:
        await asyncio.to_thread(headrace_server.advance, duration)

    return pass_time


async def changes(watcher: Watcher, count: int) -> list[tuple[str, str]]:
    entries: list[Entry | None] = [await watcher.updates(30) for _ in range(count)]
    return sorted((entry.key, str(entry.operation)) for entry in entries if entry)


async def test_a_key_a_marker_and_then_nothing(js: JetStream, advance: Advance) -> None:
    kv = await js.create_key_value(bucket="B", limit_markers="1h")
    await kv.create("day", b"1", ttl="24h")
    await kv.create("minute", b"1", ttl="1m")
    await kv.create("always", b"1", ttl="never")
    async with await kv.watchall(updates_only=True) as watcher:
        assert await watcher.updates() is None
        await advance("59s")
        assert sorted(await kv.keys()) == ["always", "day", "minute"]
        await advance("2s")
        assert await changes(watcher, 1) == [("minute", "PURGE")]
        assert await kv.last("minute")
        await advance("61m")
        assert await kv.last("minute") is None
        await advance("23h")
        assert await changes(watcher, 1) == [("day", "PURGE")]
    assert await kv.keys() == ["always"]


async def test_a_purge_is_forgotten_after_its_ttl(js: JetStream, advance: Advance) -> None:
    kv = await js.create_key_value(bucket="B", history=5, limit_markers="1m")
    await kv.put("a", b"1")
    await kv.purge("a", ttl="1h")
    await advance("59m")
    with pytest.raises(errors.KeyNotFound) as caught:
        await kv.get("a")
    assert caught.value.op == "PURGE"
    await advance("2m")
    assert (await kv.status()).values == 0
    assert await kv.create("a", b"2") == 3


async def test_a_bucket_with_a_ttl(js: JetStream, advance: Advance) -> None:
    kv = await js.create_key_value(bucket="B", ttl="24h", limit_markers="48h")
    await kv.put("put", b"1")
    await kv.delete("deleted")
    await kv.purge("purged")
    async with await kv.watchall(updates_only=True) as watcher:
        await watcher.updates()
        await advance("24h")
        await advance("1s")
        assert await changes(watcher, 2) == [("deleted", "PURGE"), ("put", "PURGE")]
        assert await kv.last("purged") is None
        # Markers expire with the bucket's max_age at the latest.
        await advance("24h")
        await advance("1s")
        assert (await kv.status()).values == 0


async def test_markers_enabled_later(js: JetStream, advance: Advance) -> None:
    kv = await js.create_key_value(bucket="B", ttl="1h")
    await kv.put("silent", b"1")
    await advance("61m")
    assert await kv.last("silent") is None
    await js.update_key_value("B", limit_markers="10m")
    await kv.put("loud", b"1")
    async with await kv.watchall(updates_only=True) as watcher:
        await watcher.updates()
        await advance("61m")
        assert await changes(watcher, 1) == [("loud", "PURGE")]
