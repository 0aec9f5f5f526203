"""`publisher` of a wrapped context: payloads of any size, in order, stored or reported once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from claims.claims_harness import LARGE, TIMEOUT_S, ClaimsHarness
from claims.faulty_store import Faulty
from claims.test_wrap import count_objects, open_wrapped
from conformance.servers import KINDS, Server
from headrace.claims import ClaimConfig, Claims, MemoryStore, StoreUnavailable
from headrace.claims.stores import ObjectStoreError
from headrace.client import codecs, connect, errors, sync

SMALL = b"small"


async def read_all(js: Any, stream: str, count: int) -> list[bytes]:
    """Return the payloads of a stream in their order, and acknowledge them."""
    found: list[bytes] = []
    async with asyncio.timeout(TIMEOUT_S), js.consume(stream, "reader") as messages:
        while len(found) < count:
            message = await anext(messages)
            found.append(message.data)
            await message.ack()
    return found


def make_payloads(count: int) -> list[bytes]:
    """Return payloads of which every third one is large; all are different."""
    return [b"%d" % number + (LARGE if number % 3 == 1 else SMALL) for number in range(count)]


@pytest.mark.parametrize("config", [{}, {"allow_batched": True}], ids=["single messages", "fast ingest"])
async def test_large_payloads_become_claims_and_the_order_stays(
    world: ClaimsHarness, config: dict[str, Any]
) -> None:
    claims, js = await open_wrapped(world)
    stream = await world.stream(**config)
    payloads = make_payloads(30)
    async with js.publisher(stream) as publisher:
        assert publisher.uses_fast_ingest == bool(config)
        for payload in payloads:
            await publisher.publish(f"{stream}.a", payload)
        await publisher.flush()
        assert (publisher.stored, publisher.failed, publisher.pending) == (30, 0, 0)
        assert await count_objects(claims) == 10
        await publisher.publish_many([(f"{stream}.b", LARGE), (f"{stream}.b", SMALL, {"Colour": "red"})])
    assert await read_all(js, stream, 32) == [*payloads, LARGE, SMALL]
    await world.settled(stream, "reader")


async def test_a_payload_larger_than_a_message_is_published(world: ClaimsHarness) -> None:
    _, js = await open_wrapped(world)
    stream = await world.stream()
    payload = bytes(2 * world.connection.max_payload)
    async with js.publisher() as publisher:
        await publisher.publish(f"{stream}.a", payload, {"Colour": "red"}, msg_id="one")
        await publisher.publish(f"{stream}.a", payload, msg_id="one")
        await publisher.flush()
    assert (await js.stream_info(stream)).state.messages == 1
    found = await js.get_msg(stream, 1)
    assert (found.data, found.headers) == (payload, {"Colour": "red", "Nats-Msg-Id": "one"})


async def test_options_of_a_message_apply_to_claims(world: ClaimsHarness) -> None:
    _, js = await open_wrapped(world)
    stream = await world.stream()
    codec = codecs.json()
    async with js.publisher(stream, codec=codec) as publisher:
        await publisher.publish(f"{stream}.a", {"text": "large" * 40_000}, ttl="2m")
    headers = (await js.plain.get_msg(stream, 1)).headers or {}
    assert headers["Nats-TTL"] == "2m"
    async with js.consume(stream, "reader", codec=codec) as messages:
        message: Any = await anext(messages)
        assert message.value == {"text": "large" * 40_000}


async def test_a_claim_that_is_not_stored_is_raised_once(world: ClaimsHarness) -> None:
    claims, js = await open_wrapped(world)
    stream = await world.stream()
    async with js.publisher(stream) as publisher:
        await publisher.publish(f"{stream}.a", SMALL)
        with pytest.raises(errors.MessagesNotStored) as raised:
            await publisher.publish(f"{stream}.a", LARGE, expect_last_sequence=7)
        (failure,) = raised.value.failures
        assert isinstance(failure.error, errors.WrongLastSequence)
        assert failure.message.payload == LARGE
        await publisher.publish(f"{stream}.a", LARGE)
        assert (publisher.stored, publisher.failed) == (2, 1)
    assert await count_objects(claims) == 1
    assert await read_all(js, stream, 2) == [SMALL, LARGE]


async def test_a_store_that_fails_is_reported_to_the_callback(world: ClaimsHarness) -> None:
    store = Faulty(MemoryStore(clock=world.clock))
    _, js = await open_wrapped(world, objects=store)
    stream = await world.stream()
    store.fail("put", ObjectStoreError("full"), 1)
    failures: list[Any] = []
    async with js.publisher(stream, on_error=failures.append) as publisher:
        for payload in (SMALL, LARGE, SMALL):
            await publisher.publish(f"{stream}.a", payload)
    (failure,) = failures
    assert isinstance(failure.error, StoreUnavailable)
    assert failure.message.payload == LARGE
    assert await read_all(js, stream, 2) == [SMALL, SMALL]


async def test_the_blocking_publisher_stores_claims_in_order(world: ClaimsHarness) -> None:
    stream = await world.stream()
    claims, js = await open_wrapped(world)
    payloads = make_payloads(12)

    def work() -> tuple[int, int]:
        with sync.connect(world.url, timeout=TIMEOUT_S) as client:
            opened = client.run(Claims.open(client.nc, claims.config, clock=world.clock))
            with opened.wrap(client).publisher(stream) as publisher:
                for payload in payloads[:6]:
                    publisher.publish(f"{stream}.a", payload)
                publisher.publish_many((f"{stream}.a", payload) for payload in payloads[6:])
                publisher.flush()
                counts = (publisher.stored, publisher.failed)
            client.run(opened.close())
            return counts

    assert await asyncio.to_thread(work) == (12, 0)
    assert await read_all(js, stream, 12) == payloads


@pytest.mark.parametrize("kind", KINDS)
async def test_claims_are_stored_once_through_kills_of_the_server(kind: str, tmp_path: Path) -> None:
    payloads = make_payloads(60)
    with Server(kind) as server:
        async with await connect(server.url, reconnect_time_wait=0.02, max_reconnect_attempts=-1) as nc:
            plain = nc.jetstream()
            await plain.add_stream(name="S", subjects=["s.>"], allow_msg_ttl=True)
            config = ClaimConfig("n", threshold=65536, store={"path": str(tmp_path), "sync": False})
            async with await Claims.open(nc, config, timeout_s=10) as claims:
                js = claims.wrap(plain)

                async def publish() -> None:
                    async with js.publisher("S") as publisher:
                        for number, payload in enumerate(payloads):
                            # A claim has an ID; without one, a message whose reply was lost is stored again.
                            msg_id = None if payload.endswith(LARGE) else str(number)
                            await publisher.publish("s.a", payload, msg_id=msg_id)
                            await asyncio.sleep(0.01)

                task = asyncio.create_task(publish())
                for _ in range(3):
                    await asyncio.sleep(0.2)
                    server.kill()
                    await asyncio.to_thread(server.start)
                async with asyncio.timeout(90):
                    await task
                assert await read_all(js, "S", len(payloads)) == payloads
                assert (await plain.stream_info("S")).state.messages == len(payloads)
