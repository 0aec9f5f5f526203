"""Watching buckets with headrace.client: the initial values, the None after them, and later changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import nats.errors
import pytest
from nats.aio.client import Client as NatsClient

from conformance.client import Client
from headrace.client import Entry, JetStream, KeyValue, Watcher, errors, jetstream


@pytest.fixture
def js(nc: NatsClient) -> JetStream:
    return jetstream(nc)


@pytest.fixture
async def kv(js: JetStream, name: str) -> AsyncIterator[KeyValue]:
    yield await js.create_key_value(bucket=name, history=5)
    await js.delete_key_value(name)


def seen(entries: list[Entry]) -> list[tuple[str, str, int]]:
    return [(str(entry.operation), entry.key, entry.revision) for entry in entries]


async def nothing_comes(watcher: Watcher, kv: KeyValue) -> None:
    """Check that a watcher receives nothing before the next change."""
    revision = await kv.put("zzz", b"")
    entry = await watcher.updates()
    assert entry
    assert entry.revision == revision


async def test_the_last_of_each_key_then_none_then_changes(kv: KeyValue) -> None:
    await kv.put("a", b"1")
    await kv.put("a", b"2")
    await kv.put("b", b"1")
    async with await kv.watchall() as watcher:
        assert seen(await watcher.initial()) == [("PUT", "a", 2), ("PUT", "b", 3)]
        await kv.delete("a")
        await kv.purge("b")
        changes = [await watcher.updates(), await watcher.updates()]
        assert seen(changes) == [("DEL", "a", 4), ("PURGE", "b", 5)]  # type: ignore[arg-type]
        await nothing_comes(watcher, kv)


async def test_entries_say_everything(kv: KeyValue, name: str) -> None:
    await kv.put("a", b"1")
    await kv.put("b", b"2")
    async with await kv.watchall() as watcher:
        first, second = await watcher.initial()
    assert (first.bucket, first.value, first.delta, second.delta) == (name, b"1", 1, 0)
    assert first.created <= second.created


async def test_an_empty_bucket_is_done_at_once(kv: KeyValue) -> None:
    async with await kv.watchall() as watcher:
        assert await watcher.updates() is None
        await nothing_comes(watcher, kv)


async def test_include_history_delivers_every_revision(kv: KeyValue) -> None:
    await kv.put("a", b"1")
    await kv.delete("a")
    await kv.put("a", b"2")
    async with await kv.watch("a", include_history=True) as watcher:
        assert seen(await watcher.initial()) == [("PUT", "a", 1), ("DEL", "a", 2), ("PUT", "a", 3)]


@pytest.mark.parametrize("tombstone", ["delete", "purge"])
async def test_none_comes_when_the_last_one_is_ignored(kv: KeyValue, tombstone: str) -> None:
    await kv.put("a", b"1")
    await kv.put("b", b"1")
    await getattr(kv, tombstone)("b")
    async with await kv.watchall(ignore_deletes=True) as watcher:
        assert seen(await watcher.initial()) == [("PUT", "a", 1)]
        await kv.delete("a")
        await nothing_comes(watcher, kv)


async def test_ignore_deletes_hides_tombstones(kv: KeyValue) -> None:
    await kv.put("a", b"1")
    await kv.purge("a")
    async with await kv.watchall(ignore_deletes=True) as watcher:
        assert await watcher.updates() is None
        await nothing_comes(watcher, kv)
    async with await kv.watch("a") as watcher:
        assert seen(await watcher.initial()) == [("PURGE", "a", 2)]


@pytest.mark.parametrize("ignore_deletes", [True, False])
async def test_none_comes_when_the_last_one_is_an_unknown_marker(
    kv: KeyValue, name: str, client: Client, ignore_deletes: bool
) -> None:
    await kv.put("a", b"1")
    client.store(f"$KV.{name}.b", b"", {"Nats-Marker-Reason": "Novelty"})
    async with await kv.watchall(ignore_deletes=ignore_deletes) as watcher:
        assert seen(await watcher.initial()) == [("PUT", "a", 1)]
        await nothing_comes(watcher, kv)


@pytest.mark.parametrize(
    ("headers", "operation"),
    [
        ({"Nats-Marker-Reason": "MaxAge"}, "PURGE"),
        ({"Nats-Marker-Reason": "Purge"}, "PURGE"),
        ({"Nats-Marker-Reason": "Remove"}, "DEL"),
        ({"Nats-Applied-Limit": "MaxAge"}, "PURGE"),
    ],
)
async def test_delete_markers_arrive_as_deletes_or_purges(
    kv: KeyValue, name: str, client: Client, headers: dict[str, str], operation: str
) -> None:
    await kv.put("a", b"1")
    async with await kv.watchall() as watcher, await kv.watchall(ignore_deletes=True) as values:
        await watcher.initial()
        await values.initial()
        client.store(f"$KV.{name}.a", b"", headers)
        entry = await watcher.updates()
        assert entry
        assert (entry.operation, entry.value, entry.revision) == (operation, b"", 2)
        await nothing_comes(values, kv)
    async with await kv.watch("a") as watcher:
        assert seen(await watcher.initial()) == [(operation, "a", 2)]


async def test_meta_only_delivers_no_values(kv: KeyValue) -> None:
    await kv.put("a", b"a value")
    async with await kv.watchall(meta_only=True) as watcher:
        (entry,) = await watcher.initial()
    assert (entry.operation, entry.value) == ("PUT", b"")


async def test_updates_only_delivers_no_initial_values(kv: KeyValue) -> None:
    await kv.put("a", b"1")
    async with await kv.watchall(updates_only=True) as watcher:
        assert await watcher.updates() is None
        await kv.put("b", b"1")
        entry = await watcher.updates()
        assert entry
        assert (entry.key, entry.revision) == ("b", 2)
        await nothing_comes(watcher, kv)


async def test_resume_from_delivers_from_that_revision(kv: KeyValue) -> None:
    for number in range(5):
        await kv.put(f"k{number % 2}", b"%d" % number)
    async with await kv.watchall(resume_from=3) as watcher:
        assert [entry.revision for entry in await watcher.initial()] == [3, 4, 5]
    async with await kv.watchall(resume_from=6) as watcher:
        assert await watcher.updates() is None
        await nothing_comes(watcher, kv)


async def test_a_watcher_may_have_several_filters(kv: KeyValue) -> None:
    for key in ("a.1", "b.1", "c.1.x"):
        await kv.put(key, b"")
    async with await kv.watch(["a.*", "c.>"]) as watcher:
        assert [entry.key for entry in await watcher.initial()] == ["a.1", "c.1.x"]
    async with await kv.watch("") as watcher:
        assert len(await watcher.initial()) == 3
    with pytest.raises(ValueError, match="where to start"):
        await kv.watch("a", include_history=True, updates_only=True)


async def test_stopping_ends_the_iteration_and_its_consumer(kv: KeyValue, js: JetStream, name: str) -> None:
    watcher = await kv.watchall()
    received: list[Any] = []

    async def listen() -> None:
        async for entry in watcher:
            received.append(entry)

    listening = asyncio.create_task(listen())
    await kv.put("a", b"")
    while len(received) < 2:
        await asyncio.sleep(0)
    await watcher.stop()
    await watcher.stop()
    await asyncio.wait_for(listening, 90)
    assert [entry and entry.key for entry in received] == [None, "a"]
    assert (await js.stream_info(f"KV_{name}")).state.consumer_count == 0


async def test_waiting_has_an_end(kv: KeyValue) -> None:
    async with await kv.watchall() as watcher:
        await watcher.updates()
        with pytest.raises(errors.NoAnswer):
            await watcher.updates(timeout=0.01)
        with pytest.raises(nats.errors.TimeoutError):
            await watcher.updates(timeout=0.01)


async def test_a_watcher_delivers_thousands_of_keys_in_order(kv: KeyValue, js: JetStream, name: str) -> None:
    """More than a watcher buffers, with changes during the initial values."""
    for first in range(0, 2000, 200):  # each publish has a timeout of some seconds
        await asyncio.gather(*(js.publish(f"$KV.{name}.k{n}", b"x") for n in range(first, first + 200)))
    async with await kv.watchall() as watcher:
        writing = asyncio.gather(*(kv.put(f"k{n}", b"y") for n in range(0, 2000, 20)))
        initial = await watcher.initial()
        assert {entry.key for entry in initial} == {f"k{n}" for n in range(2000)}
        await writing
    revisions = [entry.revision for entry in initial]
    assert revisions == sorted(set(revisions))


async def test_a_bucket_that_is_gone(js: JetStream, name: str) -> None:
    kv = await js.create_key_value(bucket=name)
    await js.delete_key_value(name)
    with pytest.raises(errors.StreamNotFound):
        await kv.watchall()
