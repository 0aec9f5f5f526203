"""When the object of a claim is deleted: after a confirmed ack, or when its retention ends."""

from __future__ import annotations

from typing import Any

from claims.claims_harness import LARGE, ClaimsHarness
from headrace.claims import (
    PRESETS,
    CollectReport,
    Received,
    Ttl,
)
from headrace.claims.claim_deletion import ClaimDeleter
from headrace.claims.registry import STREAM, claim_subject

AT_ACK = PRESETS["aggressive"]


async def nothing(_: Received) -> None:
    """Succeed without doing anything."""


async def test_whether_and_when_are_two_questions(world: ClaimsHarness) -> None:
    for delete, retention, expected in ((True, 600, ("released", 600)), (False, 0, ("pending", 7200))):
        ttl = Ttl(7200, delete, retention, 600)
        name = f"{world.name}{'d' if delete else 'k'}"
        claims = await world.claims(ttl=ttl, namespace=name)
        stream = await world.stream(name[-1])
        await world.consumer(stream, "c")
        sent = await claims.producer.publish(f"{stream}.a", LARGE)
        assert sent.reference
        await claims.consumer.handle(await world.next(stream, "c"), nothing)
        assert await world.timer(claims, sent.reference.claim_id) == expected
        assert await claims.store.exists(sent.reference.object_key)


async def test_nothing_is_deleted_before_the_ack_is_confirmed(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    message = await world.next(stream, "c")

    async def look(received: Received) -> None:
        assert received.data == LARGE
        await claims.collector.collect()
        assert await claims.store.exists(sent.reference.object_key)  # type: ignore[union-attr]

    assert await claims.consumer.handle(message, look)
    assert not await claims.store.exists(sent.reference.object_key)


async def test_an_ack_without_an_answer_releases_nothing(world: ClaimsHarness, monkeypatch: Any) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    message = await world.next(stream, "c")
    await world.wire.api_request(f"CONSUMER.DELETE.{stream}.c")
    assert not await claims.consumer.ack(message, timeout_s=0.2)
    assert sent.reference
    assert await claims.store.exists(sent.reference.object_key)


async def test_a_planned_deletion_survives_its_planner(world: ClaimsHarness) -> None:
    """The reader is gone; another program, with nothing in memory, finds the timer in the registry."""
    claims = await world.claims(ttl=PRESETS["redelivery"])
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    await claims.consumer.handle(await world.next(stream, "c"), nothing)
    await claims.close()
    other = await world.claims(ttl=PRESETS["redelivery"])
    await world.advance(601)
    await world.fire(other, sent.reference.claim_id)
    assert (await other.collector.collect(sweep=False)).collected == 1
    assert not await other.store.exists(sent.reference.object_key)


async def test_a_record_that_a_replica_still_has_deletes_nothing(world: ClaimsHarness) -> None:
    """A replica that has not applied a purge returns the record; the leader rejects what is based on it."""
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    claim_id, key = sent.reference.claim_id, sent.reference.object_key
    stale = await claims.registry.find(claims.config.namespace, claim_id)
    assert stale
    subject = claim_subject(claims.config.namespace, claim_id)
    await world.wire.api_request(f"STREAM.PURGE.{STREAM}", {"filter": subject})
    deleter = ClaimDeleter(claims.config, claims.store, claims.registry, claims.audit, claims.metrics)
    report = CollectReport()
    deleted, failed = await deleter.delete([(stale, "collected")], stale.expires_ns, report)
    assert (deleted, failed, report.collected) == ([], [stale], 0)
    assert await claims.store.exists(key)
    assert await claims.registry.compare_and_set(stale, 60) is None
