"""Codecs of the client: typed payloads when publishing and consuming, and typed values of keys, on both servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client as NatsClient

from headrace.client import Codec, ConsumedMessage, JetStream, Message, codecs, errors, jetstream

LIMIT_S = 90


class Order(msgspec.Struct):
    fruit: str
    count: int


@dataclass
class Price:
    cents: int


CODECS = pytest.mark.parametrize("codec", [codecs.json(Order), codecs.msgpack(Order)], ids=repr)


@pytest.fixture
async def js(nc: NatsClient, name: str) -> AsyncIterator[JetStream]:
    js = jetstream(nc)
    await js.add_stream(name=name, subjects=[f"{name}.>"], allow_atomic=True, allow_batched=True)
    yield js
    await js.delete_stream(name)


async def take(messages: AsyncIterator[ConsumedMessage], count: int) -> list[Any]:
    """Take and acknowledge messages; return their values."""
    values = []
    async with asyncio.timeout(LIMIT_S):
        while len(values) < count:
            message = await anext(messages)
            values.append(message.value)
            await message.ack()
    return values


@CODECS
async def test_values_are_published_and_consumed(js: JetStream, name: str, codec: Codec) -> None:
    orders = [Order("pear", number) for number in range(5)]
    await js.publish(f"{name}.x", orders[0], codec=codec, headers={"A": "b"})
    async with js.publisher(name, codec=codec) as publisher:
        await publisher.publish(f"{name}.x", orders[1], msg_id="1")
    async with js.batch(codec=codec) as batch:
        await batch.publish(f"{name}.x", orders[2])
        await batch.publish(f"{name}.x", orders[3])
    await js.publish_batch([(f"{name}.x", orders[4])], codec=codec)
    async with js.consume(name, "worker", codec=codec) as messages:
        first = await anext(messages)
        assert first.headers == {"A": "b", "Content-Type": codec.content_type}
        assert (first.value, first.data) == (orders[0], codec.encode(orders[0]))
        await first.ack()
        assert await take(messages, 4) == orders[1:]


async def test_any_value_and_other_types(js: JetStream, name: str) -> None:
    await js.publish(f"{name}.x", {"a": [1, None]}, codec=codecs.json())
    await js.publish(f"{name}.x", Price(420), codec=codecs.json())
    async with js.consume(name, codec=codecs.json(dict[str, Any])) as messages:
        assert await take(messages, 2) == [{"a": [1, None]}, {"cents": 420}]
    async with js.consume(name, codec=codecs.json(Price), deliver_policy="last") as messages:
        assert await take(messages, 1) == [Price(420)]
    async with js.consume(name) as messages:
        assert await take(messages, 1) == [b'{"a":[1,null]}']


async def test_a_message_that_does_not_decode_is_terminated(
    js: JetStream, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    for payload in (
        b'{"fruit":"pear","count":1}',
        b"not json",
        b'{"fruit":"fig"}',
        b'{"fruit":"fig","count":2}',
    ):
        await js.publish(f"{name}.x", payload)
    async with js.consume(name, "worker", ack_wait=1.0, codec=codecs.json(Order)) as messages:
        assert await take(messages, 2) == [Order("pear", 1), Order("fig", 2)]
        async with asyncio.timeout(LIMIT_S):
            while (await js.consumer_info(name, "worker")).ack_floor.stream_seq != 4:
                await asyncio.sleep(0.02)
    assert f"the message on '{name}.x' does not decode: Object missing required field `count`" in caplog.text
    assert "it is b'not json'; the message is terminated" in caplog.text


async def test_a_payload_that_is_nested_too_deeply_stops_no_consumer(js: JetStream, name: str) -> None:
    await js.publish(f"{name}.x", b"[" * 100_000)
    await js.publish(f"{name}.x", b"1")
    async with js.consume(name, "worker", codec=codecs.json()) as messages:
        assert await take(messages, 1) == [1]


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_callback_gets_messages_that_do_not_decode(js: JetStream, name: str, is_async: bool) -> None:
    seen: list[tuple[bytes, str]] = []

    def on_error(message: ConsumedMessage, error: errors.DecodeFailed) -> None:
        seen.append((message.data, error.reason))

    async def on_error_async(message: ConsumedMessage, error: errors.DecodeFailed) -> None:
        on_error(message, error)
        await message.ack()

    await js.publish(f"{name}.x", b"[]")
    await js.publish(f"{name}.x", Order("pear", 1), codec=codecs.json())
    values: list[Order] = []
    async with js.consume(
        name, "worker", codec=codecs.json(Order), on_decode_error=on_error_async if is_async else on_error
    ) as messages:

        async def handle(message: ConsumedMessage) -> None:
            values.append(message.value)
            messages.drain()

        async with asyncio.timeout(LIMIT_S):
            await messages.process(handle)
    assert values == [Order("pear", 1)]
    assert seen == [(b"[]", "Expected `object`, got `array`")]


async def test_an_error_of_the_callback_returns_the_message(js: JetStream, name: str) -> None:
    def fail(message: ConsumedMessage, error: errors.DecodeFailed) -> None:
        raise error

    async def consume() -> None:
        async with js.consume(name, "worker", codec=codecs.json(), on_decode_error=fail) as messages:
            await anext(messages)

    await js.publish(f"{name}.x", b"{")
    with pytest.raises(errors.DecodeFailed):
        await consume()
    async with js.consume(name, "worker") as messages, asyncio.timeout(LIMIT_S):
        assert (await anext(messages)).metadata.num_delivered == 2


async def test_payloads_that_are_not_bytes_need_a_codec(js: JetStream, name: str) -> None:
    with pytest.raises(TypeError, match=r"bytes, not dict: use a codec, for example codec=codecs.json\(\)"):
        await js.publish(f"{name}.x", {})
    with pytest.raises(TypeError, match=r"bytes, not str: use text.encode\(\)"):
        await js.publish_batch([Message(f"{name}.x", "text")])  # type: ignore[arg-type]
    async with js.publisher(name) as publisher:
        with pytest.raises(TypeError, match="bytes, not int"):
            await publisher.publish(f"{name}.x", 5)
    with pytest.raises(TypeError, match="object"):
        await js.publish(f"{name}.x", object(), codec=codecs.json())
    with pytest.raises(TypeError, match=r"codec=json is not a codec: use for example codecs.json\(\)"):
        await js.publish(f"{name}.x", {}, codec=codecs.json)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="codec=Order is not a codec"):
        js.consume(name, codec=Order)  # type: ignore[arg-type]
    assert (await js.stream_info(name)).state.messages == 0


@CODECS
async def test_keys_have_typed_values(js: JetStream, name: str, codec: Codec) -> None:
    kv = await js.create_key_value(bucket=name, history=5, allow_atomic=True, codec=codec)
    revision = await kv.create("a", Order("pear", 1))
    await kv.update("a", Order("pear", 2), last=revision)
    await kv.put_many({"b": Order("fig", 3), "c": Order("fig", 4)})
    assert (await kv.get("a")).value == Order("pear", 2)
    assert [entry.value for entry in await kv.history("a")] == [Order("pear", 1), Order("pear", 2)]
    assert sorted(await kv.keys()) == ["a", "b", "c"]
    await kv.delete("c")
    async with await kv.watchall() as watcher:
        values = {entry.key: entry.value for entry in await watcher.initial()}
    assert values == {"a": Order("pear", 2), "b": Order("fig", 3), "c": None}
    plain = await js.key_value(name)
    assert (await plain.get("b")).value == codec.encode(Order("fig", 3))
    reader = await js.key_value_reader(name, codec=codec)
    assert (await reader.get("b")).value == Order("fig", 3)
    await js.delete_key_value(name)


async def test_a_value_that_does_not_decode_is_an_error_when_it_is_read(js: JetStream, name: str) -> None:
    plain = await js.create_key_value(bucket=name)
    await plain.put("bad", b"not json")
    await plain.put("good", b"5")
    kv = await js.key_value(name, codec=codecs.json(int))
    entry = await kv.get("bad")
    with pytest.raises(
        errors.DecodeFailed, match=f"key 'bad' of bucket '{name}', revision 1, does not decode"
    ):
        _ = entry.value
    assert entry.data == b"not json"
    assert "not json" in repr(entry)
    async with asyncio.timeout(LIMIT_S), await kv.watchall() as watcher:
        entries = await watcher.initial()
        assert entries[1].value == 5
        await kv.put("good", 6)
        update = await anext(watcher)
        assert update is not None
        assert update.value == 6
    with pytest.raises(TypeError, match="bytes, not str"):
        await plain.put("text", "x")
    await js.delete_key_value(name)
