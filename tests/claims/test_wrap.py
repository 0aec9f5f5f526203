"""A wrapped JetStream context: payloads of any size through `publish`, `consume`, `fetch` and `subscribe`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pytest
from nats.aio.msg import Msg
from nats.js import api

from claims.claims_harness import LARGE, TIMEOUT_S, ClaimsHarness
from claims.faulty_store import Faulty
from headrace.claims import (
    PRESETS,
    ClaimJetStream,
    Claims,
    Expired,
    FolderStore,
    MemoryStore,
    ResolvedMessage,
    StoreUnavailable,
    ack_keep_alive,
)
from headrace.claims.stores import ObjectStoreError
from headrace.client import codecs, errors, jetstream, sync
from support.sockets import until

AT_ACK = PRESETS["aggressive"]
SMALL = b"small"


async def open_wrapped(world: ClaimsHarness, **settings: Any) -> tuple[Claims, ClaimJetStream]:
    claims = await world.claims(**{"ttl": AT_ACK, **settings})
    return claims, claims.wrap(jetstream(world.connection, timeout=TIMEOUT_S))


async def count_objects(claims: Claims) -> int:
    return sum([len(page) async for page in claims.store.list(f"{claims.config.namespace}/")])


async def next_of(messages: Any) -> Msg:
    async with asyncio.timeout(TIMEOUT_S):
        return await anext(messages)


@pytest.mark.parametrize("backend", ["folder", "s3"])
async def test_the_program_never_sees_a_reference(
    world: ClaimsHarness, backend: str, settings_of: Any
) -> None:
    world.backend = settings_of(backend) if backend != "folder" else {}
    claims, js = await open_wrapped(world, compression="zstd")
    stream = await world.stream()
    ack = await js.publish(f"{stream}.a", LARGE, headers={"Colour": "red"})
    assert (ack.stream, ack.seq) == (stream, 1)
    await js.publish(f"{stream}.b", SMALL)
    async with js.consume(stream, "worker") as messages:
        first, second = await next_of(messages), None
        assert (first.data, first.headers, first.subject) == (LARGE, {"Colour": "red"}, f"{stream}.a")
        assert first.metadata.sequence.stream == 1
        assert await count_objects(claims) == 1
        await first.ack()
        second = await next_of(messages)
        assert (second.data, second.headers) == (SMALL, None)
        await second.ack()
    await world.settled(stream, "worker")
    await wait_until_deleted(claims)


async def test_an_unacknowledged_message_comes_again_with_its_payload(world: ClaimsHarness) -> None:
    claims, js = await open_wrapped(world)
    stream = await world.stream()
    await js.publish(f"{stream}.a", LARGE)
    async with js.consume(stream, "worker") as messages:
        await (await next_of(messages)).nak()
        again = await next_of(messages)
        assert (again.data, again.metadata.num_delivered, again.is_acked) == (LARGE, 2, False)
        await again.ack_sync(TIMEOUT_S)
        assert again.is_acked
        with pytest.raises(nats.errors.MsgAlreadyAckdError):
            await again.ack()
    assert await count_objects(claims) == 0


async def test_handlers_run_concurrently_and_their_acks_release(world: ClaimsHarness) -> None:
    claims, js = await open_wrapped(world)
    stream = await world.stream()
    for number in range(4):
        await js.publish(f"{stream}.{number}", bytes([number]) * len(LARGE))
    together, seen = asyncio.Barrier(2), set()
    async with js.consume(stream, "worker") as messages:

        async def handle(message: Msg) -> None:
            async with asyncio.timeout(TIMEOUT_S):
                await together.wait()
            seen.add(message.data[0])
            if len(seen) == 4:
                messages.drain()

        await messages.process(handle, concurrency=2)
    assert seen == {0, 1, 2, 3}
    await world.settled(stream, "worker")
    await wait_until_deleted(claims)


async def test_a_failed_handler_gets_the_payload_again(world: ClaimsHarness) -> None:
    _, js = await open_wrapped(world)
    stream = await world.stream()
    await js.publish(f"{stream}.a", LARGE)
    deliveries = []
    async with js.consume(stream, "worker") as messages:

        async def handle(message: Msg) -> None:
            deliveries.append((message.metadata.num_delivered, message.data == LARGE))
            if len(deliveries) == 1:
                raise RuntimeError("the first attempt fails")
            messages.drain()

        await messages.process(handle)
    assert deliveries == [(1, True), (2, True)]


async def test_fetch_returns_payloads(world: ClaimsHarness) -> None:
    claims, js = await open_wrapped(world)
    stream = await world.stream()
    for payload in (LARGE, SMALL, LARGE[::-1]):
        await js.publish(f"{stream}.a", payload)
    worker = await js.pull_subscribe(f"{stream}.>", "worker")
    found = [*(await worker.fetch(1, TIMEOUT_S)), *(await worker.fetch(2, TIMEOUT_S))]
    assert [message.data for message in found] == [LARGE, SMALL, LARGE[::-1]]
    assert [isinstance(message, ResolvedMessage) for message in found] == [True, False, True]
    for message in found:
        await message.ack_sync(TIMEOUT_S)
    assert await count_objects(claims) == 0
    assert (await worker.consumer_info()).name == "worker"
    with pytest.raises(nats.errors.TimeoutError):
        await worker.fetch(1, 0.1)


async def test_push_subscriptions_get_payloads(world: ClaimsHarness) -> None:
    claims, js = await open_wrapped(world)
    stream = await world.stream()
    subscription = await js.subscribe(f"{stream}.>", durable="pushed", manual_ack=True)
    await js.publish(f"{stream}.a", LARGE)
    await js.publish(f"{stream}.b", LARGE)
    first = await subscription.next_msg(TIMEOUT_S)
    assert first.data == LARGE
    second = await next_of(subscription.messages)
    assert second.data == LARGE
    for message in (first, second):
        await message.ack_sync(TIMEOUT_S)
    await subscription.unsubscribe()
    assert await count_objects(claims) == 0


async def test_a_callback_gets_payloads_and_is_acknowledged(world: ClaimsHarness) -> None:
    claims, js = await open_wrapped(world)
    stream = await world.stream()
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def on_message(message: Msg) -> None:
        received.put_nowait(message.data)

    subscription = await js.subscribe(f"{stream}.>", durable="pushed", cb=on_message)
    for payload in (LARGE, SMALL):
        await js.publish(f"{stream}.a", payload)
        assert await asyncio.wait_for(received.get(), TIMEOUT_S) == payload
    await world.settled(stream, "pushed")
    await subscription.unsubscribe()
    await wait_until_deleted(claims)


async def test_an_ordered_consumer_reads_payloads_and_releases_nothing(world: ClaimsHarness) -> None:
    claims, js = await open_wrapped(world)
    stream = await world.stream()
    await js.publish(f"{stream}.a", LARGE)
    subscription = await js.subscribe(f"{stream}.>", ordered_consumer=True)
    message = await subscription.next_msg(TIMEOUT_S)
    assert message.data == LARGE
    await subscription.unsubscribe()
    assert await count_objects(claims) == 1


async def test_a_consumer_without_acks_raises_the_error(world: ClaimsHarness) -> None:
    """Nothing would deliver such a message again, so it must not be skipped."""
    claims, js = await open_wrapped(world)
    stream = await world.stream()
    await js.publish(f"{stream}.a", LARGE)
    await js.publish(f"{stream}.b", SMALL)
    await remove_objects(claims)
    async with js.consume(stream, ack_policy=api.AckPolicy.NONE) as messages:
        with pytest.raises(Exception, match="is not in the store"):
            await next_of(messages)
        assert (await next_of(messages)).data == SMALL


async def wait_until_deleted(claims: Claims) -> None:
    """Wait until no claim is left: an ack is settled a moment before its claim is released."""
    async with asyncio.timeout(TIMEOUT_S):
        while await count_objects(claims):
            await asyncio.sleep(0.01)


async def remove_objects(claims: Claims) -> None:
    pages = claims.store.list(f"{claims.config.namespace}/")
    await claims.store.delete([info.key async for page in pages for info in page])


@pytest.mark.parametrize("how", ["consume", "fetch", "callback"])
async def test_an_expired_claim_is_dead_lettered_and_the_next_message_arrives(
    world: ClaimsHarness, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = await world.stream()
    dead = await world.stream("dead")
    claims, js = await open_wrapped(world, dead_letter=f"{dead}.x")
    await world.consumer(
        stream, "worker", **({"deliver_subject": f"{stream}-in"} if how == "callback" else {})
    )
    await js.publish(f"{stream}.a", LARGE, stream=stream, expect_last_sequence=0)
    await remove_objects(claims)
    await world.advance(AT_ACK.max_age + 1)  # within the grace period, so that the message is still there
    await js.publish(f"{stream}.b", SMALL)
    with caplog.at_level(logging.ERROR, "headrace.claims"):
        assert await receive(js, stream, how) == SMALL
    assert f"message on {stream}.a is given up" in caplog.text
    letter = await js.plain.get_msg(dead, 1)
    assert (letter.headers or {})["Claim-Error"] == "expired"
    await world.settled(stream, "worker")


async def receive(js: ClaimJetStream, stream: str, how: str) -> bytes:
    if how == "consume":
        async with js.consume(stream, "worker") as messages:
            message = await next_of(messages)
            await message.ack()
            return message.data
    if how == "fetch":
        (message,) = await (await js.pull_subscribe_bind("worker", stream)).fetch(1, TIMEOUT_S)
        await message.ack()
        return message.data
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def on_message(message: Msg) -> None:
        received.put_nowait(message.data)

    info = await js.consumer_info(stream, "worker")
    subscription = await js.subscribe_bind(stream, info.config, "worker", on_message)
    try:
        return await asyncio.wait_for(received.get(), TIMEOUT_S)
    finally:
        await subscription.unsubscribe()


async def test_a_store_that_is_down_delays_a_message_and_no_other(
    world: ClaimsHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "headrace.claims")
    store = Faulty(MemoryStore(clock=world.clock))
    _, js = await open_wrapped(world, objects=store)
    stream = await world.stream()
    await js.publish(f"{stream}.a", LARGE)
    await js.publish(f"{stream}.b", SMALL)
    store.fail("get", ObjectStoreError("down"), 1)
    async with js.consume(stream, "worker") as messages:
        message = await next_of(messages)
        assert message.data == SMALL
        await message.ack()
        await until(lambda: "will be redelivered in 5 s" in caplog.text)
        await world.connection.flush()
        await world.advance(6)
        again = await next_of(messages)
        assert (again.data, again.metadata.num_delivered) == (LARGE, 2)


async def test_a_cancelled_wait_drops_no_message(world: ClaimsHarness) -> None:
    store = Faulty(MemoryStore(clock=world.clock))
    _, js = await open_wrapped(world, objects=store)
    stream = await world.stream()
    await js.publish(f"{stream}.a", LARGE)
    reading = store.block("get")
    async with js.consume(stream, "worker") as messages:
        task = asyncio.create_task(anext(messages))
        await asyncio.wait_for(reading.wait(), TIMEOUT_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        store.unblock("get")
        message = await next_of(messages)
        assert (message.data, message.metadata.num_delivered) == (LARGE, 1)


@pytest.mark.parametrize("how", ["fetch", "next_msg"])
async def test_a_cancelled_read_returns_messages_to_the_server_at_once(
    world: ClaimsHarness, how: str
) -> None:
    store = Faulty(MemoryStore(clock=world.clock))
    _, js = await open_wrapped(world, objects=store)
    stream = await world.stream()
    for payload in (LARGE, SMALL):
        await js.publish(f"{stream}.a", payload)
    push = {} if how == "fetch" else {"deliver_subject": f"{stream}-in"}
    await world.consumer(stream, "worker", **push)  # it waits for acks for an hour
    reading = store.block("get")
    if how == "fetch":
        subscription: Any = await js.pull_subscribe_bind("worker", stream)
        task = asyncio.create_task(subscription.fetch(2, TIMEOUT_S))
    else:
        config = (await js.consumer_info(stream, "worker")).config
        subscription = await js.subscribe_bind(stream, config, "worker", manual_ack=True)
        task = asyncio.create_task(subscription.next_msg(TIMEOUT_S))
    await asyncio.wait_for(reading.wait(), TIMEOUT_S)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    store.unblock("get")
    found: list[tuple[bytes, int]] = []
    async with asyncio.timeout(TIMEOUT_S):
        while len(found) < 2:
            messages = await subscription.fetch(2, 1) if how == "fetch" else [await subscription.next_msg(60)]
            found += [(message.data, message.metadata.num_delivered) for message in messages]
    expected = [(LARGE, 2), (SMALL, 2)] if how == "fetch" else [(LARGE, 2), (SMALL, 1)]
    assert sorted(found) == sorted(expected)


async def test_errors_of_the_server_are_those_of_a_small_message(world: ClaimsHarness) -> None:
    claims, js = await open_wrapped(world)
    stream = await world.stream()
    for payload in (SMALL, LARGE):
        with pytest.raises(errors.WrongLastSequence):
            await js.publish(f"{stream}.a", payload, expect_last_subject_sequence=7)
        with pytest.raises(nats.js.errors.NoStreamResponseError):
            await js.publish("nobody.stores.this", payload)
        with pytest.raises(errors.StreamMismatch):
            await js.publish(f"{stream}.a", payload, stream="OTHER")
    assert await count_objects(claims) == 0
    with pytest.raises(TypeError, match=r"text\.encode"):
        await js.publish(f"{stream}.a", LARGE.decode())  # type: ignore[arg-type]


async def test_a_timeout_includes_the_upload(world: ClaimsHarness) -> None:
    store = Faulty(MemoryStore(clock=world.clock))
    _, js = await open_wrapped(world, objects=store)
    stream = await world.stream()
    store.block("put")
    with pytest.raises(nats.errors.TimeoutError, match="including the upload"):
        await js.publish(f"{stream}.a", LARGE, timeout=0.2)


async def test_a_store_that_rejects_the_payload_fails_the_publish(world: ClaimsHarness) -> None:
    store = Faulty(MemoryStore(clock=world.clock))
    _, js = await open_wrapped(world, objects=store)
    stream = await world.stream()
    store.fail("put", ObjectStoreError("full"), 1)
    with pytest.raises(StoreUnavailable, match="full"):
        await js.publish(f"{stream}.a", LARGE)
    assert (await js.stream_info(stream)).state.messages == 0


async def test_a_retry_with_the_same_id_is_stored_once(world: ClaimsHarness) -> None:
    claims, js = await open_wrapped(world)
    stream = await world.stream()
    acks = [await js.publish(f"{stream}.a", LARGE, msg_id="order-1") for _ in range(2)]
    assert [(ack.seq, bool(ack.duplicate)) for ack in acks] == [(1, False), (1, True)]
    assert await count_objects(claims) == 1
    found = await js.get_msg(stream, 1)
    assert (found.data, found.headers) == (LARGE, {"Nats-Msg-Id": "order-1"})


async def test_a_ttl_is_that_of_the_sender(world: ClaimsHarness) -> None:
    _, js = await open_wrapped(world)
    stream = await world.stream()
    await js.publish(f"{stream}.a", LARGE, ttl="2m")
    assert ((await js.plain.get_msg(stream, 1)).headers or {})["Nats-TTL"] == "2m"
    await js.publish(f"{stream}.b", LARGE)
    ends_s = AT_ACK.max_age + AT_ACK.grace_period + 60
    assert ((await js.plain.get_msg(stream, 2)).headers or {})["Nats-TTL"] == f"{ends_s}s"


async def test_async_publishes_complete(world: ClaimsHarness) -> None:
    claims, js = await open_wrapped(world)
    stream = await world.stream()
    futures = [await js.publish_async(f"{stream}.a", payload) for payload in [LARGE, SMALL] * 5]
    assert js.publish_async_pending() > 0
    await js.publish_async_completed()
    assert js.publish_async_pending() == 0
    assert sorted(future.result().seq for future in futures) == list(range(1, 11))
    assert await count_objects(claims) == 5
    with pytest.raises(errors.NoStream):
        await (await js.publish_async("nobody.stores.this", LARGE))


async def test_files_and_iterators_are_published(world: ClaimsHarness, tmp_path: Path) -> None:
    _, js = await open_wrapped(world)
    stream = await world.stream()
    (tmp_path / "take").write_bytes(LARGE)

    async def pieces() -> AsyncIterator[bytes]:
        yield LARGE
        yield SMALL

    await js.publish(f"{stream}.file", tmp_path / "take")
    await js.publish(f"{stream}.pieces", pieces())
    worker = await js.pull_subscribe(f"{stream}.>", "worker")
    found = await worker.fetch(2, TIMEOUT_S)
    assert [message.data for message in found] == [LARGE, LARGE + SMALL]


async def test_buckets_keep_their_values(world: ClaimsHarness) -> None:
    """Values are read without acks, so they are never claims, whatever their size."""
    claims, js = await open_wrapped(world)
    kv = await js.create_key_value(bucket=world.name)
    await kv.put("key", LARGE)
    assert (await kv.get("key")).value == LARGE
    assert await count_objects(claims) == 0
    await js.delete_key_value(world.name)


async def test_headers_without_payload_are_no_broken_claim(world: ClaimsHarness) -> None:
    _, js = await open_wrapped(world)
    stream = await world.stream()
    await js.publish(f"{stream}.a", LARGE, headers={"Colour": "red"})
    async with js.consume(stream, "headers", headers_only=True) as messages:
        message = await next_of(messages)
        assert (message.data, (message.headers or {})["Colour"]) == (b"", "red")


async def test_a_plain_nats_py_context_can_be_wrapped(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=AT_ACK)
    plain = world.connection.jetstream(timeout=7)
    js = claims.wrap(plain)
    assert (js.plain, js.timeout) == (plain, 7)
    with pytest.raises(ValueError, match="wrapped already"):
        claims.wrap(js)
    with pytest.raises(TypeError, match=r"nc\.jetstream\(\)"):
        claims.wrap(world.connection)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="domain"):
        claims.wrap(world.connection.jetstream(domain="hub"))
    other = await nats.connect(world.url, connect_timeout=TIMEOUT_S)
    with pytest.raises(ValueError, match="another connection"):
        claims.wrap(other.jetstream())
    await other.close()


async def test_get_msg_raises_what_is_wrong_with_a_claim(world: ClaimsHarness) -> None:
    claims, js = await open_wrapped(world)
    stream = await world.stream()
    await js.publish(f"{stream}.a", LARGE)
    assert (await js.get_msg(stream, subject=f"{stream}.a", direct=False)).data == LARGE
    await world.advance(AT_ACK.max_age + 1)
    await remove_objects(claims)
    with pytest.raises(Expired):
        await js.get_msg(stream, 1)


async def test_the_blocking_client_can_be_wrapped(world: ClaimsHarness) -> None:
    stream = await world.stream()
    config = (await world.claims(ttl=AT_ACK)).config

    def work() -> tuple[list[bytes], bool]:
        with sync.connect(world.url, timeout=TIMEOUT_S) as client:
            claims = client.run(Claims.open(client.nc, config, clock=world.clock))
            wrapped = claims.wrap(client)
            wrapped.publish(f"{stream}.a", LARGE)
            wrapped.publish(f"{stream}.b", SMALL)
            found = []
            with wrapped.consume(stream, "worker") as messages:
                for message in messages:
                    found.append(message.data)
                    message.ack()
                    if len(found) == 2:
                        break
            client.run(claims.close())
            return found, isinstance(claims.store, FolderStore)

    assert await asyncio.to_thread(work) == ([LARGE, SMALL], True)


@pytest.mark.parametrize("how", ["consume", "fetch", "callback"])
async def test_the_server_waits_while_a_payload_is_read(
    world: ClaimsHarness, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_keep_alive, "_FIRST_S", 0)
    store = Faulty(MemoryStore(clock=world.clock))
    _, js = await open_wrapped(world, objects=store)
    stream = await world.stream()
    deliver = {"deliver_subject": f"{stream}-in"} if how == "callback" else {}
    await world.consumer(stream, "worker", ack_wait=10**9, max_deliver=1, **deliver)
    await js.publish(f"{stream}.a", LARGE)
    acks = await world.connection.subscribe(f"$JS.ACK.{stream}.worker.>")
    store.block("get")
    receiving = asyncio.create_task(receive(js, stream, how))
    assert (await acks.next_msg(TIMEOUT_S)).data == Msg.Ack.Progress
    store.unblock("get")
    assert await receiving == LARGE
    await acks.unsubscribe()


async def test_codecs_encode_and_decode_whole_payloads(world: ClaimsHarness) -> None:
    claims, js = await open_wrapped(world)
    stream = await world.stream()
    codec = codecs.json()
    for text in ("large" * 40_000, "small"):
        await js.publish(f"{stream}.a", {"text": text}, codec=codec)
    async with js.consume(stream, "worker", codec=codec) as messages:
        for text in ("large" * 40_000, "small"):
            message: Any = await next_of(messages)
            assert message.value == {"text": text}
            await message.ack()
    await world.settled(stream, "worker")
    assert await count_objects(claims) == 0
