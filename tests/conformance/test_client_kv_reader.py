"""`js.key_value_reader`: a bucket to read from, for users that may not write, and on mirrors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client as NatsClient

from conformance.conftest import Launch
from conformance.servers import Setup
from headrace.client import JetStream, KeyValue, KeyValueReader, StreamSource, connect, errors, jetstream

LIMIT_S = 90
WRITES = {
    "put",
    "create",
    "update",
    "delete",
    "purge",
    "put_many",
    "update_many",
    "create_many",
    "purge_deletes",
}


@pytest.fixture
async def js(nc: NatsClient) -> JetStream:
    return jetstream(nc)


@pytest.fixture
async def kv(js: JetStream, name: str) -> AsyncIterator[KeyValue]:
    yield await js.create_key_value(bucket=name, history=3)
    await js.delete_key_value(name)


async def check_reads(reader: KeyValueReader, kv: KeyValue) -> None:
    """Read keys in every way while they change."""
    assert (await reader.get("a")).value == b"2"
    assert [entry.value for entry in await reader.history("a")] == [b"1", b"2"]
    assert sorted(await reader.keys()) == ["a", "b.c"]
    assert (await reader.status()).values == 3
    async with asyncio.timeout(LIMIT_S), await reader.watch("b.>") as watcher:
        assert [entry.key for entry in await watcher.initial()] == ["b.c"]
        await kv.put("b.d", b"4")
        entry = await anext(watcher)
        assert entry is not None
        assert (entry.key, entry.value) == ("b.d", b"4")
    with pytest.raises(errors.KeyNotFound):
        await reader.get("none")


async def fill(kv: KeyValue) -> None:
    for key, value in (("a", b"1"), ("a", b"2"), ("b.c", b"3")):
        await kv.put(key, value)


async def test_a_reader_reads(js: JetStream, kv: KeyValue, name: str) -> None:
    await fill(kv)
    reader = await js.key_value_reader(name)
    assert (reader.bucket, reader.is_mirror) == (name, False)
    await check_reads(reader, kv)
    assert not WRITES & set(dir(reader))
    assert isinstance(kv, KeyValueReader)
    with pytest.raises(errors.BucketNotFound):
        await js.key_value_reader(f"{name}none")


async def wait_for_copy(js: JetStream, bucket: str, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await js.stream_info(f"KV_{bucket}")).state.messages < count:
            await asyncio.sleep(0.02)


async def test_a_mirror_and_a_mirror_of_it_are_read(js: JetStream, kv: KeyValue, name: str) -> None:
    await fill(kv)
    await js.create_key_value(bucket=f"{name}m", mirror=name, history=3)
    await wait_for_copy(js, f"{name}m", 3)
    await js.create_key_value(bucket=f"{name}mm", mirror=f"{name}m", history=3)
    await wait_for_copy(js, f"{name}mm", 3)
    reader = await js.key_value_reader(f"{name}mm")
    assert reader.is_mirror
    await check_reads(reader, kv)
    assert (await (await js.key_value_reader(f"{name}m")).get("b.d")).value == b"4"
    for bucket in (f"{name}mm", f"{name}m"):
        await js.delete_key_value(bucket)


async def test_an_empty_mirror_is_read_later(js: JetStream, kv: KeyValue, name: str) -> None:
    await js.create_key_value(bucket=f"{name}m", mirror=StreamSource(name=name), history=3)
    reader = await js.key_value_reader(f"{name}m")
    await fill(kv)
    await wait_for_copy(js, f"{name}m", 3)
    await check_reads(reader, kv)
    await js.delete_key_value(f"{name}m")


USERS = """
authorization {
  users: [
    {user: writer, password: x}
    {user: reader, password: x, permissions: {
      publish: {allow: [
        "$JS.API.STREAM.INFO.KV_prices", "$JS.API.DIRECT.GET.KV_prices.>", "$JS.API.CONSUMER.CREATE.KV_prices",
        "$JS.API.CONSUMER.INFO.KV_prices.*", "$JS.API.CONSUMER.DELETE.KV_prices.*", "$JS.FC.KV_prices.>"EXTRA
      ]},
      subscribe: {allow: "_INBOX.>"}
    }}
  ]
}
"""


@pytest.mark.parametrize("allowed", [True, False])
async def test_a_reader_of_a_mirror_needs_one_more_permission(launch: Launch, allowed: bool) -> None:
    """Without it the names of the keys are unknown, so the bucket is not opened instead of found empty."""
    extra = ', "$JS.API.DIRECT.GET.KV_prices"' if allowed else ""
    server = launch(Setup(config=USERS.replace("EXTRA", extra)))
    async with (
        await connect(server.url, user="writer", password="x") as writing,
        await connect(server.url, user="reader", password="x", error_cb=ignore_error) as reading,
    ):
        js = writing.jetstream()
        kv = await js.create_key_value(bucket="origin", history=3)
        await fill(kv)
        for bucket, upstream in (("copy", "origin"), ("prices", "copy")):
            await js.create_key_value(bucket=bucket, mirror=upstream, history=3)
            await wait_for_copy(js, bucket, 3)
        if allowed:
            reader = await reading.jetstream().key_value_reader("prices")
            await check_reads(reader, kv)
            assert (await reader.get("a", revision=1)).value == b"1"
        else:
            with pytest.raises(errors.NoAnswer, match="permissions"):
                await reading.jetstream(timeout=3).key_value_reader("prices")


async def ignore_error(error: Exception) -> None:
    """The server reports each permission that is missing."""


async def test_the_permissions_in_the_documentation_are_enough(launch: Launch) -> None:
    server = launch(Setup(config=USERS.replace("EXTRA", "")))
    refused: list[Exception] = []

    async def on_error(error: Exception) -> None:
        refused.append(error)

    async with (
        await connect(server.url, user="writer", password="x") as writing,
        await connect(server.url, user="reader", password="x", error_cb=on_error) as reading,
    ):
        kv = await writing.jetstream().create_key_value(bucket="prices", history=3)
        await fill(kv)
        await check_reads(await reading.jetstream().key_value_reader("prices"), kv)
        assert not refused
        writable = await reading.jetstream(timeout=5).key_value("prices")
        with pytest.raises(errors.NoAnswer, match="permissions"):
            await writable.put("a", b"5")
        assert (await kv.get("a")).value == b"2"
