"""Handlers that take long, headers of restored messages, and what is logged about deletions that fail."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from claims.claims_harness import LARGE, ClaimsHarness
from claims.faulty_store import Faulty
from headrace.claims import MemoryStore, PublishFailed, Received, Ttl, ack_keep_alive
from headrace.claims.ack_floors import Floor, parse_floor
from headrace.claims.reference_publisher import _parse_ttl_s
from headrace.claims.stores import ObjectStoreError

HOUR = 3600
TTL = Ttl(2 * HOUR, True, 0, 600)
MESSAGE_END = 2 * HOUR + 600 + 60
#: Longer than a busy machine stalls: in-progress acks are sent after a part of it.
ACK_WAIT_S = 10


async def keep(_: Received) -> None:
    """Succeed without doing anything."""


@pytest.mark.parametrize("world", ["nats-server"], indirect=True)
@pytest.mark.parametrize("waits", [{"ack_wait": ACK_WAIT_S * 10**9}, {"backoff": [ACK_WAIT_S * 10**9] * 2}])
async def test_a_handler_longer_than_ack_wait_runs_once(world: ClaimsHarness, waits: dict[str, Any]) -> None:
    """Real time, as on nats-server: the message is not delivered again while its handler runs."""
    claims = await world.claims(ttl=TTL)
    stream = await world.stream()
    await world.consumer(stream, "c", max_deliver=5, **waits)
    await claims.producer.publish(f"{stream}.a", LARGE)
    runs: list[int] = []

    async def work(received: Received) -> None:
        runs.append(received.message.metadata.num_delivered)
        assert await world.wire.pull(stream, "c", 1, expires_s=1.5 * ACK_WAIT_S) == []

    assert await claims.consumer.handle(await world.next(stream, "c"), work)
    assert runs == [1]


async def test_a_message_is_kept_although_the_program_may_not_ask_for_ack_wait(
    world: ClaimsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ack_keep_alive, "_FIRST_S", 0)
    claims = await world.claims(ttl=TTL)
    stream = await world.stream()
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE)
    message = await world.next(stream, "c")
    sent = asyncio.Event()

    async def refuse(*_: Any) -> Any:
        raise ack_keep_alive.RequestTimeout("no reply")

    async def in_progress() -> None:
        sent.set()

    monkeypatch.setattr(claims.jetstream, "api_request", refuse)
    monkeypatch.setattr(message, "in_progress", in_progress)
    keep_alive = ack_keep_alive.AckKeepAlive(claims.jetstream, HOUR)
    async with keep_alive.keep(message), asyncio.timeout(30):
        await sent.wait()


async def test_restored_messages_have_the_headers_that_were_sent(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=TTL)
    stream = await world.stream()
    await world.consumer(stream, "c")
    for headers in (
        {},
        {"A": "1"},
        {"Content-Type": "text/plain"},
        {"Nats-TTL": "1h"},
        {"Nats-TTL": "never"},
    ):
        await claims.producer.publish(f"{stream}.a", LARGE, headers=headers)
        message = await world.next(stream, "c")
        received = await claims.consumer.read(message)
        assert received.headers == headers
        assert received.content_type == headers.get("Content-Type", "application/octet-stream")
        await message.ack()
    await claims.producer.publish(f"{stream}.a", LARGE, msg_id="take-1")
    assert (await claims.consumer.read(await world.next(stream, "c"))).headers == {"Nats-Msg-Id": "take-1"}


async def test_messages_without_a_claim_keep_their_headers(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=TTL)
    stream = await world.stream()
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", b"small", headers={"Nats-TTL": "1h"})
    assert (await claims.consumer.read(await world.next(stream, "c"))).headers == {"Nats-TTL": "1h"}


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("60", "60"),
        ("1h", "1h"),
        ("48h", f"{MESSAGE_END}s"),
        ("never", f"{MESSAGE_END}s"),
        ("172800", f"{MESSAGE_END}s"),
    ],
)
async def test_no_message_outlives_its_claim_because_of_the_senders_ttl(
    world: ClaimsHarness, sent: str, stored: str
) -> None:
    claims = await world.claims(ttl=TTL)
    stream = await world.stream()
    await claims.producer.publish(f"{stream}.a", LARGE, headers={"Nats-TTL": sent})
    found = await world.wire.get_last(stream, f"{stream}.a")
    assert found is not None
    assert found.headers["Nats-TTL"] == stored


async def test_a_senders_ttl_on_a_stream_without_ttls_is_rejected(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=TTL)
    stream = await world.stream(allow_msg_ttl=False)
    with pytest.raises(PublishFailed):
        await claims.producer.publish(f"{stream}.a", LARGE, headers={"Nats-TTL": "1h"})
    await claims.producer.publish(f"{stream}.a", LARGE)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1h30m", 5400), ("1.5h", 5400), ("500ms", 0.5), ("never", float("inf")), ("soon", None)],
)
def test_ttls_are_durations_as_in_go(text: str, seconds: float | None) -> None:
    assert _parse_ttl_s(text) == seconds


async def test_deletions_that_fail_are_logged(world: ClaimsHarness, caplog: pytest.LogCaptureFixture) -> None:
    faulty = Faulty(MemoryStore(clock=world.clock))
    claims = await world.claims(ttl=TTL, backend="memory", objects=faulty)
    stream = await world.stream()
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    faulty.fail("delete", ObjectStoreError("the disk is on fire"))
    await world.pass_ttl(claims, sent, 3 * HOUR)
    with caplog.at_level(logging.WARNING, "headrace.claims"):
        assert (await claims.collector.collect()).failed
    assert sent.reference.claim_id in caplog.text
    assert "the disk is on fire" in caplog.text


async def test_an_object_that_stays_after_a_failed_publish_is_logged(
    world: ClaimsHarness, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = Faulty(MemoryStore(clock=world.clock))
    claims = await world.claims(ttl=TTL, backend="memory", objects=faulty)
    faulty.fail("delete", ObjectStoreError("the disk is on fire"))
    with caplog.at_level(logging.WARNING, "headrace.claims"), pytest.raises(PublishFailed):
        await claims.producer.publish(f"{world.name}nowhere.a", LARGE)
    assert "the disk is on fire" in caplog.text


@pytest.mark.parametrize(("policy", "is_read"), [("explicit", True), ("all", True), ("none", False)])
async def test_a_delivery_without_ack_is_not_a_read(world: ClaimsHarness, policy: str, is_read: bool) -> None:
    stream = await world.stream()
    for _ in range(2):
        await world.wire.publish(f"{stream}.a", b"")
    await world.consumer(stream, "c", ack_policy=policy)
    message = await world.next(stream, "c")
    if policy != "none":
        await message.ack_sync()
    await world.settled(stream, "c")
    floor = parse_floor(await world.wire.api_request(f"CONSUMER.INFO.{stream}.c"))
    assert floor.has_read(f"{stream}.a", 1, 1) is is_read
    assert not floor.needs(f"{stream}.a", 1)
    assert floor.needs(f"{stream}.a", 2), "it has not been delivered"
    assert isinstance(floor, Floor)


async def test_the_linter_looks_at_every_page_of_consumers(
    world: ClaimsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = await world.claims(ttl=TTL)
    stream = await world.stream()
    for name in ("a", "b", "c"):
        await world.consumer(stream, name, max_deliver=-1)
    real = claims.jetstream.api_request

    async def one_at_a_time(call: str, body: Any = None) -> Any:
        response = await real(call, body)
        if call.startswith("CONSUMER.LIST."):
            response["consumers"] = response["consumers"][:1]
        return response

    monkeypatch.setattr(claims.jetstream, "api_request", one_at_a_time)
    found = {finding.about for finding in await claims.lint([stream])}
    assert {f"consumer {stream}/{name}" for name in ("a", "b", "c")} <= found
