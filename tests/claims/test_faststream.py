"""FastStream with claims: large payloads through a real `NatsBroker`, on both servers."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.js.api import ConsumerConfig

from claims.claims_harness import LARGE, THRESHOLD, TIMEOUT_S, ClaimsHarness
from headrace.claims import PRESETS, ClaimConfig, Claims
from headrace.client import errors

faststream_nats = pytest.importorskip("faststream.nats", reason="needs faststream[nats]: run make setup")
from faststream import AckPolicy  # noqa: E402

from headrace.claims.faststream import ClaimsMiddleware  # noqa: E402

NatsBroker, PullSub, NatsMessage = (
    faststream_nats.NatsBroker,
    faststream_nats.PullSub,
    faststream_nats.NatsMessage,
)
AT_ACK = PRESETS["aggressive"]


class Application:
    """A broker with claims, and what its handlers have received."""

    def __init__(self, world: ClaimsHarness, **settings: Any) -> None:
        settings = {"threshold": THRESHOLD, "ttl": AT_ACK, **settings}
        settings.setdefault("store", {"path": str(world.folder), "sync": False})
        self.claims = ClaimsMiddleware(
            ClaimConfig(world.name, **settings), clock=world.clock, timeout_s=TIMEOUT_S
        )
        self.broker = NatsBroker(world.url, middlewares=[self.claims], connect_timeout=TIMEOUT_S)
        self.claims.bind(self.broker)
        self.received: asyncio.Queue[Any] = asyncio.Queue()

    async def next(self) -> Any:
        return await asyncio.wait_for(self.received.get(), TIMEOUT_S)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Claims]:
        await self.broker.start()
        claims = await self.claims.open()
        try:
            yield claims
        finally:
            await self.broker.stop()
            await self.claims.close()


def existing(stream: str) -> Any:
    """A stream that FastStream does not create or change."""
    return faststream_nats.JStream(stream, declare=False)


async def count_objects(claims: Claims) -> int:
    return sum([len(page) async for page in claims.store.list(f"{claims.config.namespace}/")])


async def wait_until_deleted(claims: Claims) -> None:
    """Wait until no claim is left: an ack is settled a moment before its claim is released."""
    async with asyncio.timeout(TIMEOUT_S):
        while await count_objects(claims):
            await asyncio.sleep(0.01)


async def remove_objects(claims: Claims) -> None:
    pages = claims.store.list(f"{claims.config.namespace}/")
    await claims.store.delete([info.key async for page in pages for info in page])


@pytest.mark.parametrize("is_pull", [True, False], ids=["pull", "push"])
async def test_a_handler_gets_large_and_small_payloads(world: ClaimsHarness, is_pull: bool) -> None:
    application, stream = Application(world), await world.stream()
    broker = application.broker

    named = {"durable": "worker", "pull_sub": True} if is_pull else {"queue": "worker"}

    @broker.subscriber(f"{stream}.>", stream=existing(stream), **named)
    async def handle(body: dict[str, str], message: NatsMessage) -> None:
        application.received.put_nowait((body, message.headers.get("Colour"), message.raw_message.subject))

    async with application.running() as claims:
        for text in ("large" * 40_000, "small"):
            await broker.publish(
                {"text": text}, f"{stream}.a", stream=stream, headers={"Colour": "red"}, timeout=TIMEOUT_S
            )
            assert await application.next() == ({"text": text}, "red", f"{stream}.a")
        await world.settled(stream, "worker")
        await wait_until_deleted(claims)
        assert claims.metrics.created.labels(world.name)._value.get() == 1


async def test_a_handlers_result_is_offloaded(world: ClaimsHarness) -> None:
    application, stream = Application(world), await world.stream()
    broker = application.broker

    @broker.subscriber(f"{stream}.in", stream=existing(stream), durable="enlarge", pull_sub=True)
    @broker.publisher(f"{stream}.out")
    async def enlarge(body: bytes) -> bytes:
        return body * len(LARGE)

    @broker.subscriber(f"{stream}.out", stream=existing(stream), durable="collect", pull_sub=True)
    async def collect(body: bytes) -> None:
        application.received.put_nowait(body)

    async with application.running():
        await broker.publish(b"x", f"{stream}.in")
        assert await application.next() == b"x" * len(LARGE)


async def test_a_batch_gets_all_payloads(world: ClaimsHarness) -> None:
    application, stream = Application(world), await world.stream()
    broker = application.broker

    @broker.subscriber(
        f"{stream}.>",
        stream=existing(stream),
        durable="worker",
        pull_sub=PullSub(3, timeout=TIMEOUT_S, batch=True),
    )
    async def handle(bodies: list[bytes]) -> None:
        application.received.put_nowait(bodies)

    await broker.connect()
    for body in (LARGE, b"small", LARGE[::-1]):
        await broker.publish(body, f"{stream}.a", stream=stream, timeout=TIMEOUT_S)
    async with application.running() as claims:
        bodies: list[bytes] = []
        while len(bodies) < 3:
            bodies += await application.next()
        assert bodies == [LARGE, b"small", LARGE[::-1]]
        await world.settled(stream, "worker")
        await wait_until_deleted(claims)


async def test_a_failed_handler_gets_the_payload_again(world: ClaimsHarness) -> None:
    application, stream = Application(world), await world.stream()
    broker = application.broker

    @broker.subscriber(
        f"{stream}.>",
        stream=existing(stream),
        durable="worker",
        pull_sub=True,
        ack_policy=AckPolicy.NACK_ON_ERROR,
    )
    async def handle(body: bytes, message: NatsMessage) -> None:
        delivered = message.raw_message.metadata.num_delivered
        application.received.put_nowait((delivered, body))
        if delivered == 1:
            raise RuntimeError("the first attempt fails")

    async with application.running():
        await broker.publish(LARGE, f"{stream}.a", stream=stream, timeout=TIMEOUT_S)
        assert [await application.next(), await application.next()] == [(1, LARGE), (2, LARGE)]


async def test_an_expired_claim_is_dead_lettered_and_the_next_message_handled(
    world: ClaimsHarness, caplog: pytest.LogCaptureFixture
) -> None:
    stream, dead = await world.stream(), await world.stream("dead")
    application = Application(world, dead_letter=f"{dead}.x")
    broker = application.broker

    @broker.subscriber(f"{stream}.>", stream=existing(stream), durable="worker", pull_sub=True)
    async def handle(body: bytes) -> None:
        application.received.put_nowait(body)

    await broker.connect()
    await broker.publish(LARGE, f"{stream}.a", stream=stream, timeout=TIMEOUT_S)
    await remove_objects(await application.claims.open())
    await world.advance(AT_ACK.max_age + 1)
    with caplog.at_level(logging.ERROR, "headrace.claims"):
        async with application.running():
            await broker.publish(b"next", f"{stream}.b", stream=stream, timeout=TIMEOUT_S)
            assert await application.next() == b"next"
            await world.settled(stream, "worker")
    assert f"message on {stream}.a is given up" in caplog.text
    letter = await world.connection.jetstream().get_msg(dead, 1)
    assert (letter.headers or {})["Claim-Error"] == "expired"


async def test_a_message_survives_a_program_that_cannot_open_its_claims(world: ClaimsHarness) -> None:
    """FastStream terminates a message by default if an error occurs; a wrong setup must not lose it."""
    stream = await world.stream()
    claims = await world.claims(ttl=AT_ACK)
    await claims.producer.publish(f"{stream}.a", LARGE)
    application = Application(world, bucket="another")

    @application.broker.subscriber(
        f"{stream}.>",
        stream=existing(stream),
        pull_sub=True,
        durable="worker",
        config=ConsumerConfig(ack_wait=3600),
    )
    async def handle(body: bytes) -> None:
        application.received.put_nowait(body)

    acks = await world.connection.subscribe(f"$JS.ACK.{stream}.worker.>")
    await application.broker.start()
    ack = await acks.next_msg(TIMEOUT_S)
    assert ack.data.startswith(b"-NAK")
    await application.broker.stop()
    assert application.received.empty()


async def test_a_large_message_without_a_stream_is_an_error(world: ClaimsHarness) -> None:
    application = Application(world)
    async with application.running() as claims:
        with pytest.raises(errors.NoStream):
            await application.broker.publish(LARGE, f"{world.name}.nowhere")
        assert await count_objects(claims) == 0


async def test_requests_and_replies_are_never_claims(world: ClaimsHarness) -> None:
    application = Application(world)
    broker = application.broker

    @broker.subscriber(f"{world.name}.double")
    async def double(body: bytes) -> bytes:
        return body * 2

    async with application.running() as claims:
        reply = await broker.request(LARGE, f"{world.name}.double", timeout=TIMEOUT_S)
        assert reply.body == LARGE * 2
        assert await count_objects(claims) == 0


async def test_publishing_without_a_broker_says_what_to_do(world: ClaimsHarness) -> None:
    broker = NatsBroker(world.url, middlewares=[ClaimsMiddleware(ClaimConfig(world.name))])
    await broker.connect()
    with pytest.raises(RuntimeError, match=r"bind\(broker\)"):
        await broker.publish(LARGE, "a")
    await broker.stop()


async def test_the_test_broker_of_faststream_needs_no_server(world: ClaimsHarness) -> None:
    application = Application(world)

    @application.broker.subscriber("a", stream="S")
    async def handle(body: bytes) -> None:
        application.received.put_nowait(body)

    async with faststream_nats.TestNatsBroker(application.broker) as broker:
        await broker.publish(LARGE, "a", stream="S")
    assert await application.next() == LARGE


def test_without_faststream_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['faststream'] = None; import headrace.claims.faststream"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'faststream[nats]'" in done.stderr
    assert done.returncode == 1
