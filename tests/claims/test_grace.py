"""The grace period: a consumer that is late still reads its claim, and a claim that ends unread is counted."""

from __future__ import annotations

import logging

import pytest

from claims.claims_harness import LARGE, ClaimsHarness
from headrace.claims import Claims, Expired, Published, Received, Ttl

HOUR = 3600
MAX_AGE, GRACE = 2 * HOUR, HOUR
TTL = Ttl(MAX_AGE, True, 300, GRACE)
#: Messages stay a minute longer than their claims.
MESSAGE_END = MAX_AGE + GRACE + 60


async def keep(_: Received) -> None:
    """Succeed without doing anything."""


async def publish(world: ClaimsHarness, claims: Claims, stream: str) -> Published:
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    return sent


async def find_ttl(world: ClaimsHarness, sent: Published) -> str:
    found = await world.wire.get_last(sent.stream, f"{sent.stream}.a")
    assert found is not None
    return found.headers["Nats-TTL"]


async def pass_time(world: ClaimsHarness, claims: Claims, sent: Published, seconds: float) -> None:
    """Advance; the claim's timer expires, but not the message."""
    assert sent.reference
    await world.advance(seconds)
    await world.fire(claims, sent.reference.claim_id)


def count_unread(claims: Claims) -> float:
    found = claims.metrics.registry.get_sample_value(
        "claim_check_claims_expired_unread_total", {"namespace": claims.config.namespace}
    )
    assert found is not None
    return found


@pytest.mark.parametrize("allow_msg_ttl", [True, False])
async def test_a_late_consumer_reads_within_the_grace_period(
    world: ClaimsHarness, allow_msg_ttl: bool
) -> None:
    claims = await world.claims(ttl=TTL)
    stream = await world.stream(allow_msg_ttl=allow_msg_ttl)
    await world.consumer(stream, "late")
    sent = await publish(world, claims, stream)
    await pass_time(world, claims, sent, MAX_AGE + GRACE - 400)
    assert (await claims.collector.collect()).removed == 0
    received: list[bytes] = []

    async def take(message: Received) -> None:
        received.append(message.data)

    assert await claims.consumer.handle(await world.next(stream, "late"), take)
    assert received == [LARGE]
    await world.advance(301)
    await world.fire(claims, sent.reference.claim_id)  # type: ignore[union-attr]
    assert (await claims.collector.collect()).collected == 1
    assert count_unread(claims) == 0


async def test_a_message_ends_soon_after_its_claim(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=TTL)
    stream = await world.stream()
    assert await find_ttl(world, await publish(world, claims, stream)) == f"{MESSAGE_END}s"


@pytest.mark.parametrize("delivered", [True, False])
@pytest.mark.parametrize("sweep", [True, False])
async def test_a_claim_that_ends_unread_is_counted(
    world: ClaimsHarness, caplog: pytest.LogCaptureFixture, sweep: bool, delivered: bool
) -> None:
    claims = await world.claims(ttl=TTL)
    stream = await world.stream()
    await world.consumer(stream, "down", ack_wait=100 * HOUR * 10**9)
    sent = await publish(world, claims, stream)
    if delivered:
        await world.next(stream, "down")
    await pass_time(world, claims, sent, MAX_AGE + GRACE + 1)
    with caplog.at_level(logging.WARNING, "headrace.claims"):
        if sweep:
            await claims.collector.collect()
        else:
            await claims.collector.collect_due()
    assert count_unread(claims) == 1
    assert f"{stream}/down" in caplog.text
    assert sent.reference
    events = [event async for event in claims.audit.events(world.name, sent.reference.claim_id)]
    assert (events[-1].event, events[-1].details["unread_by"]) == ("expired", f"{stream}/down")
    await claims.collector.collect()
    assert count_unread(claims) == 1


async def test_it_is_counted_although_the_collector_was_down_and_the_message_is_gone(
    world: ClaimsHarness,
) -> None:
    claims = await world.claims(ttl=TTL)
    stream = await world.stream()
    await world.consumer(stream, "down")
    sent = await publish(world, claims, stream)
    await world.pass_ttl(claims, sent, MESSAGE_END + HOUR)
    info = await world.wire.api_request(f"STREAM.INFO.{stream}")
    assert info["state"]["messages"] == 0
    assert (await claims.collector.collect()).expired == 1
    assert count_unread(claims) == 1


async def test_a_claim_that_was_read_is_not_counted(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=Ttl(MAX_AGE, False, 0, GRACE))
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await publish(world, claims, stream)
    assert await claims.consumer.handle(await world.next(stream, "c"), keep)
    await world.settled(stream, "c")
    await pass_time(world, claims, sent, MAX_AGE + GRACE + 1)
    assert (await claims.collector.collect()).expired == 1
    assert count_unread(claims) == 0


async def test_after_the_grace_period_a_reader_gets_an_error_and_a_dead_letter(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=TTL, dead_letter=f"{world.name}dead.letters")
    stream, dead = await world.stream(), await world.stream("dead")
    await world.consumer(stream, "late")
    sent = await publish(world, claims, stream)
    await pass_time(world, claims, sent, MAX_AGE + GRACE + 1)
    assert (await claims.collector.collect()).expired == 1
    message = await world.next(stream, "late")
    with pytest.raises(Expired):
        await claims.consumer.read(message)
    assert not await claims.consumer.handle(message, keep)
    letter = await world.wire.get_last(dead, f"{dead}.letters")
    assert letter is not None
    assert letter.headers["Claim-Error"] == "expired"


async def test_a_replay_in_the_grace_period_of_a_claim_that_nobody_needed_has_expired(
    world: ClaimsHarness,
) -> None:
    claims = await world.claims(ttl=Ttl(MAX_AGE, False, 0, GRACE))
    stream = await world.stream()
    sent = await publish(world, claims, stream)
    await pass_time(world, claims, sent, MAX_AGE + 1)
    assert (await claims.collector.collect()).expired == 1
    await world.consumer(stream, "replay")
    with pytest.raises(Expired):
        await claims.consumer.read(await world.next(stream, "replay"))
