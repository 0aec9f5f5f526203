"""The same message published again: no attempt takes another one's object, no reading what a later one carries."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from claims.world import LARGE, World
from headrace.claims import PRESETS, ClaimError, FakeClock, PublishUnknown, Received
from headrace.claims.wire import NoAnswer

AT_ACK = PRESETS["aggressive"]
WINDOW_NS = 200_000_000


async def nothing(_: Received) -> None:
    """A handler that is content."""


async def test_two_attempts_at_once_leave_the_message_its_object(world: World) -> None:
    late = FakeClock(world.clock.now_ns() + 10**9)  # another second, another reference
    one, two = await world.claims(), await world.claims(clock=late)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await asyncio.gather(
        *(claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1") for claims in (one, two))
    )
    assert sorted(each.duplicate for each in sent) == [False, True]
    assert (await one.consumer.read(await world.next(stream, "c"))).data == LARGE


async def test_a_retry_that_the_stream_does_not_know_any_more_has_its_payload(world: World) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream(duplicate_window=WINDOW_NS)
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1")
    while (await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1")).duplicate:
        await world.advance(0.1)
    assert await claims.consumer.handle(await world.next(stream, "c"), nothing)
    await claims.collector.collect()
    assert await claims.consumer.handle(await world.next(stream, "c"), nothing)


async def test_what_is_about_to_go_stays_if_a_retry_uses_it(world: World, monkeypatch: Any) -> None:
    """A collector has judged; before it acts the claim is published once more."""
    claims, other = await world.claims(ttl=AT_ACK), await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    sent = await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1")
    assert sent.reference is not None
    judged = await claims.registry.find(world.name, sent.reference.claim_id)
    assert judged is not None
    publish = other.wire.publish
    removed: list[Any] = []

    async def publish_while_collected(subject: str, *rest: Any) -> Any:
        if subject.startswith(stream):
            removed.extend(await claims.registry.remove([judged]))
        return await publish(subject, *rest)

    monkeypatch.setattr(other.wire, "publish", publish_while_collected)
    await other.producer.publish(f"{stream}.a", LARGE, msg_id="m1")
    assert removed == [], "whoever wins may delete, and the retry has won"


async def test_an_earlier_attempt_that_nobody_knows_of_is_a_claim_error(
    world: World, monkeypatch: Any
) -> None:
    claims = await world.claims()
    stream = await world.stream()

    async def silent(*_: Any) -> Any:
        raise NoAnswer("no answer")

    monkeypatch.setattr(claims.wire, "last", silent)
    with pytest.raises(PublishUnknown) as caught:
        await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1")
    assert isinstance(caught.value, ClaimError)
    assert caught.value.retryable
