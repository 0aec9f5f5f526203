"""Eleven scenarios that claims must survive, on both servers and every kind of store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from claims.claims_harness import LARGE, ClaimsHarness
from headrace.claims import PRESETS, ClaimNotFound, Expired, PublishUnknown, Received, Ttl
from headrace.claims.jetstream_client import RequestTimeout
from headrace.claims.stores import StaticAttributes

HOUR = 3600
RETENTION = PRESETS["redelivery"]
AT_ACK = PRESETS["aggressive"]


@pytest.fixture(params=["folder", "memory", "s3", "azure", "gcs"], autouse=True)
def _every_store(world: ClaimsHarness, request: pytest.FixtureRequest, settings_of: Any) -> None:
    """Each kind of store in turn. Tests of a real store share one bucket and use different namespaces."""
    world.backend = settings_of(request.param) if request.param != "folder" else {}


async def keep(received: Received) -> None:
    assert received.data == LARGE


async def test_s1_read_then_deleted_at_the_ack(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    assert await claims.store.exists(sent.reference.object_key)
    assert await claims.consumer.handle(await world.next(stream, "c"), keep)
    assert not await claims.store.exists(sent.reference.object_key)
    assert await claims.registry.find(world.name, sent.reference.claim_id) is None
    events = await world.events(claims, sent.reference.claim_id)
    assert events == ["created", "retrieved", "released", "deleted"]


async def test_s1_read_then_deleted_after_the_retention(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    await claims.consumer.handle(await world.next(stream, "c"), keep)
    assert await claims.store.exists(sent.reference.object_key)
    assert await world.timer(claims, sent.reference.claim_id) == ("released", 600)
    await world.advance(601)
    await world.fire(claims, sent.reference.claim_id)
    report = await claims.collector.collect()
    assert report.collected == 1
    assert not await claims.store.exists(sent.reference.object_key)
    assert (await world.events(claims, sent.reference.claim_id))[-1] == "collected"


async def test_s2_a_claim_nobody_reads_ends_with_its_age(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream()
    await world.consumer(stream, "crashed")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    await world.next(stream, "crashed")
    await world.pass_ttl(claims, sent, 2 * HOUR + 661)
    report = await claims.collector.collect()
    assert report.expired == 1
    assert not await claims.store.exists(sent.reference.object_key)
    assert await claims.registry.find(world.name, sent.reference.claim_id) is None


async def test_s3_a_slow_consumer_finds_its_claim(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream()
    await world.consumer(stream, "slow", ack_wait=3 * HOUR * 10**9)
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    message = await world.next(stream, "slow")
    await world.advance(2 * HOUR - 60)
    assert (await claims.collector.collect()).removed == 0
    assert (await claims.consumer.read(message)).data == LARGE
    assert await claims.consumer.ack(message)
    await world.advance(30)
    assert (await claims.collector.collect()).removed == 0, "retention counts from the ack"
    await world.advance(601)
    await world.fire(claims, sent.reference.claim_id)
    assert (await claims.collector.collect()).removed == 1
    assert not await claims.store.exists(sent.reference.object_key)


async def test_s4_a_redelivered_message_finds_its_claim(world: ClaimsHarness) -> None:
    """The handler fails after the read: nothing is deleted, because nothing was acknowledged."""
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE)

    async def fail(_: Received) -> None:
        raise RuntimeError("the handler failed")

    message = await world.next(stream, "c")
    with pytest.raises(RuntimeError):
        await claims.consumer.handle(message, fail)
    await message.nak()
    await claims.collector.collect()
    again = await world.next(stream, "c")
    assert again.metadata.num_delivered == 2
    assert await claims.consumer.handle(again, keep)


async def test_s4_an_ack_that_was_lost_is_no_loss_within_the_retention(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream()
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE)
    message = await world.next(stream, "c")
    assert await claims.consumer.handle(message, keep)
    await world.advance(300)
    await claims.collector.collect()
    assert (await claims.consumer.read(message)).data == LARGE


async def test_s5_a_producer_that_dies_before_its_publish_leaves_no_orphan(
    world: ClaimsHarness, monkeypatch: Any
) -> None:
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream()
    monkeypatch.setattr(claims.producer._publisher, "publish", _die)
    with pytest.raises(asyncio.CancelledError):
        await claims.producer.publish(f"{stream}.a", LARGE)
    (entry,) = await _entries(claims)
    assert await claims.store.exists(entry.object_key)
    await world.advance(2 * HOUR + 601)
    await claims.collector.collect()
    assert not await claims.store.exists(entry.object_key)
    assert not await _entries(claims)


async def test_s5_nor_one_that_dies_before_the_registry_knows(world: ClaimsHarness, monkeypatch: Any) -> None:
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream()
    monkeypatch.setattr(claims.registry, "register", _die)
    with pytest.raises(asyncio.CancelledError):
        await claims.producer.publish(f"{stream}.a", LARGE)
    (key,) = await _keys(claims)
    await world.advance(2 * HOUR)
    assert (await claims.collector.collect()).removed == 0, (
        "not due before its hour and the grace have passed"
    )
    await world.advance(HOUR + 601)
    report = await claims.collector.collect()
    assert (report.expired, report.orphans) == (1, 1)
    assert not await claims.store.exists(key)


async def test_s6_an_unknown_outcome_keeps_the_object_and_a_retry_reuses_it(
    world: ClaimsHarness, monkeypatch: Any
) -> None:
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream()
    await world.consumer(stream, "c")
    real = claims.jetstream.publish

    async def stored_but_unanswered(subject: str, *rest: Any) -> Any:
        answer = await real(subject, *rest)
        if subject.startswith(stream):
            raise RequestTimeout("the answer was lost")
        return answer

    monkeypatch.setattr(claims.jetstream, "publish", stored_but_unanswered)
    with pytest.raises(PublishUnknown):
        await claims.producer.publish(f"{stream}.a", LARGE, msg_id="order-1")
    (key,) = await _keys(claims)
    monkeypatch.setattr(claims.jetstream, "publish", real)
    again = await claims.producer.publish(f"{stream}.a", LARGE, msg_id="order-1")
    assert again.duplicate
    assert await _keys(claims) == [key], "no second object"
    assert await claims.consumer.handle(await world.next(stream, "c"), keep)


async def test_s7_the_last_of_several_consumers_ends_the_claim(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "first")
    await world.consumer(stream, "second")
    await world.consumer(stream, "elsewhere", filter_subject=f"{stream}.other")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    await claims.consumer.handle(await world.next(stream, "first"), keep)
    await world.advance(60)
    await world.fire(claims, sent.reference.claim_id)
    await claims.collector.collect()
    assert await claims.store.exists(sent.reference.object_key), "the second has not read it"
    await claims.consumer.handle(await world.next(stream, "second"), keep)
    assert not await claims.store.exists(sent.reference.object_key)


async def test_s8_a_replay_finds_claim_and_message_together_or_neither(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=PRESETS["conservative"])
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    await claims.consumer.handle(await world.next(stream, "c"), keep)
    await world.advance(12 * HOUR)
    await claims.collector.collect()
    await world.consumer(stream, "replay")
    message = await world.next(stream, "replay")
    assert (await claims.consumer.read(message)).data == LARGE
    await world.pass_ttl(claims, sent, 14 * HOUR + 61)
    with pytest.raises(Expired):
        await claims.consumer.read(message)
    info = await world.wire.api_request(f"STREAM.INFO.{stream}")
    assert info["state"]["messages"] == 0
    await claims.collector.collect()
    assert await _keys(claims) == []


async def test_s9_a_message_that_is_given_up_ends_in_the_dead_letters(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=RETENTION, dead_letter=f"{world.name}dead.letters")
    stream, dead = await world.stream(), await world.stream("dead")
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    await claims.store.put(sent.reference.object_key, b"other bytes", StaticAttributes(), replace=True)
    assert not await claims.consumer.handle(await world.next(stream, "c"), keep)
    letter = await world.wire.get_message(dead, 1)
    assert letter is not None
    await world.settled(stream, "c")  # terminated: it is not delivered again
    await world.pass_ttl(claims, sent, 2 * HOUR + 1)
    await claims.collector.collect()
    assert await _entries(claims) == []


async def test_s9_a_claim_whose_message_was_terminated_is_collected(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    await (await world.next(stream, "c")).term()
    await world.settled(stream, "c")
    await world.advance(RETENTION.grace_period + 1)
    assert (await claims.collector.collect()).released == 1
    await world.advance(RETENTION.retention_after_read + 1)
    await world.fire(claims, sent.reference.claim_id)
    assert (await claims.collector.collect()).collected == 1
    assert not await claims.store.exists(sent.reference.object_key)


@pytest.mark.parametrize("how", ["purge", "limit"])
async def test_s10_a_message_that_was_removed_takes_its_claim_along(world: ClaimsHarness, how: str) -> None:
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream(max_msgs=1)
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    if how == "purge":
        await world.wire.api_request(f"STREAM.PURGE.{stream}")
    else:
        await claims.producer.publish(f"{stream}.a", b"small")
    assert (await claims.collector.collect()).released == 0, "too young to be judged an orphan"
    await world.advance(RETENTION.grace_period + 1)
    assert (await claims.collector.collect()).released == 1
    await world.advance(RETENTION.retention_after_read + 1)
    await world.fire(claims, sent.reference.claim_id)
    assert (await claims.collector.collect()).collected == 1
    assert not await claims.store.exists(sent.reference.object_key)


async def test_s11_a_collector_that_was_down_for_hours_catches_up(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream()
    await world.consumer(stream, "c")
    for number in range(5):
        await claims.producer.publish(f"{stream}.{number}", LARGE)
        if number < 3:
            await claims.consumer.handle(await world.next(stream, "c"), keep)
    await world.advance(9 * HOUR)
    report = await claims.collector.collect()
    assert report.removed == 5
    assert await _keys(claims) == []
    assert await _entries(claims) == []
    assert (await claims.collector.collect()).removed == 0


@pytest.mark.single_server("A purge reaches the replicas later than its reply the client")
async def test_s11_markers_that_are_gone_do_not_matter(world: ClaimsHarness) -> None:
    """The collector was down for longer than markers live: records, and the hours in keys, are enough."""
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream()
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    await world.wire.api_request("STREAM.PURGE.CLAIMS", {"filter": f"$CLAIMS.*.{world.name}.*"})
    assert sent.reference
    assert await claims.registry.find(world.name, sent.reference.claim_id) is None
    await world.advance(4 * HOUR)
    assert (await claims.collector.collect()).expired == 1
    assert await _keys(claims) == []


async def test_a_missing_object_is_not_found(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=Ttl())
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    await claims.store.delete([sent.reference.object_key])
    with pytest.raises(ClaimNotFound):
        await claims.consumer.read(await world.next(stream, "c"))


async def _die(*_: Any, **__: Any) -> Any:
    raise asyncio.CancelledError


async def _keys(claims: Any) -> list[str]:
    prefix = f"{claims.config.namespace}/"
    return [info.key async for page in claims.store.list(prefix) for info in page]


async def _entries(claims: Any) -> list[Any]:
    return [entry async for page in claims.registry.scan(claims.config.namespace) for entry in page]
