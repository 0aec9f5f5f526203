"""References on subjects that they were not published to: copies by servers are read, forged ones end no claim."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from nats.aio.msg import Msg

from claims.claims_harness import LARGE, TIMEOUT_S, ClaimsHarness, wait_until_stored
from headrace.claims import CLAIM_HEADER, Claims, Forbidden, Published, Received, Ttl
from headrace.claims.registry import STREAM, claim_subject

AT_ONCE = Ttl(7200, True, 0, 60)


async def nothing(_: Received) -> None:
    """Succeed without doing anything."""


async def published(world: ClaimsHarness, claims: Claims, subject: str = "secret") -> Published:
    sent = await claims.producer.publish(f"{world.name}.{subject}", LARGE)
    assert sent.reference
    await wait_until_stored(world.connection)
    return sent


async def copied(world: ClaimsHarness, sent: Published, subject: str) -> None:
    """Publish the same reference again, as another client."""
    assert sent.reference
    await world.wire.publish(subject, sent.reference.encode(), {CLAIM_HEADER: "true"})


async def read_from(world: ClaimsHarness, claims: Claims, stream: str, **config: Any) -> Msg:
    await world.consumer(stream, "reader", **config)
    message = await world.next(stream, "reader")
    assert (await claims.consumer.read(message)).data == LARGE
    return message


async def is_there(claims: Claims, sent: Published) -> bool:
    assert sent.reference
    return await claims.store.exists(sent.reference.object_key)


@pytest.mark.parametrize("is_noted", [True, False])
async def test_a_copy_in_the_same_stream_ends_no_claim_that_is_needed(
    world: ClaimsHarness, is_noted: bool
) -> None:
    """A user who may publish to one subject of a stream must not end a claim of another; nor a program that forwards."""
    claims = await world.claims(ttl=AT_ONCE)
    stream = await world.stream()
    await world.consumer(stream, "secret", filter_subject=f"{stream}.secret")
    await world.consumer(stream, "public", filter_subject=f"{stream}.public")
    sent = await published(world, claims)
    assert sent.reference
    if not is_noted:
        found = await world.wire.get_last(STREAM, claim_subject(world.name, sent.reference.claim_id))
        assert found
        lost = {**json.loads(found.data), "state": "pending", "places": {}}
        await world.wire.publish(found.subject, json.dumps(lost).encode())
    await copied(world, sent, f"{stream}.public")
    assert await claims.consumer.handle(await world.next(stream, "public"), nothing)
    await claims.collector.collect()
    assert await is_there(claims, sent)
    assert await claims.consumer.handle(await world.next(stream, "secret"), nothing)
    assert not await is_there(claims, sent), "its own reader ends it"


async def test_strict_consumers_refuse_what_nobody_can_explain(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=AT_ONCE, strict_subjects=True)
    stream = await world.stream()
    await world.consumer(stream, "all")
    sent = await published(world, claims)
    await copied(world, sent, f"{stream}.public")
    first, second = await world.next(stream, "all"), await world.next(stream, "all")
    assert (await claims.consumer.read(first)).data == LARGE
    with pytest.raises(Forbidden, match="does not belong to subject"):
        await claims.consumer.read(second)
    assert not await claims.consumer.handle(second, nothing)
    assert await is_there(claims, sent)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", ["mirror", "sources"])
async def test_mirrors_and_sources_may_change_subjects(world: ClaimsHarness, kind: str, strict: bool) -> None:
    claims = await world.claims(ttl=AT_ONCE, strict_subjects=strict)
    stream = await world.stream()
    await world.consumer(stream, "first")
    transform = [{"src": f"{stream}.>", "dest": f"elsewhere.{stream}.>"}]
    origin = {"name": stream, "subject_transforms": transform}
    body: dict[str, Any] = {"mirror": origin} if kind == "mirror" else {"sources": [origin]}
    await world.wire.api_request("STREAM.CREATE.COPY" + stream, {"name": f"COPY{stream}", **body})
    sent = await published(world, claims)
    await world.advance(5)
    message = await read_from(world, claims, f"COPY{stream}")
    assert message.subject == f"elsewhere.{stream}.secret"
    assert await claims.consumer.ack(message)
    assert await is_there(claims, sent), "the first stream's consumer needs it"
    assert await claims.consumer.handle(await world.next(stream, "first"), nothing)
    await world.settled(f"COPY{stream}", "reader")
    assert not await is_there(claims, sent)
    await world.wire.api_request(f"STREAM.DELETE.COPY{stream}")


@pytest.mark.parametrize("strict", [False, True])
async def test_a_stream_may_transform_what_it_takes(world: ClaimsHarness, strict: bool) -> None:
    claims = await world.claims(ttl=AT_ONCE, strict_subjects=strict)
    stream = await world.stream(
        subject_transform={"src": f"{world.name}.>", "dest": f"{world.name}.stored.>"}
    )
    sent = await published(world, claims)
    message = await read_from(world, claims, stream)
    assert message.subject == f"{stream}.stored.secret"
    assert await claims.consumer.ack(message)
    assert not await is_there(claims, sent)


async def test_republished_messages_are_read_unless_consumers_are_strict(world: ClaimsHarness) -> None:
    """Their headers name the original subject, but any publisher can write these headers."""
    claims = await world.claims(ttl=AT_ONCE)
    stream = await world.stream(republish={"src": f"{world.name}.>", "dest": f"again.{world.name}.>"})
    await world.consumer(stream, "first")
    await world.wire.api_request(
        f"STREAM.CREATE.AGAIN{stream}",
        {"name": f"AGAIN{stream}", "subjects": [f"again.{stream}.>"], "allow_msg_ttl": True},
    )
    sent = await published(world, claims)
    message = await read_from(world, claims, f"AGAIN{stream}")
    assert message.subject == f"again.{stream}.secret"
    strict = await world.claims(ttl=AT_ONCE, strict_subjects=True)
    with pytest.raises(Forbidden):
        await strict.consumer.read(message)
    assert await claims.consumer.ack(message)
    assert await is_there(claims, sent), "the first stream's consumer needs it"


async def test_dead_letters_can_be_read_by_strict_consumers(world: ClaimsHarness) -> None:
    dead = f"dead.{world.name}"
    claims = await world.claims(ttl=AT_ONCE, strict_subjects=True, dead_letter=dead)
    await world.wire.api_request(
        f"STREAM.CREATE.DEAD{world.name}", {"name": f"DEAD{world.name}", "subjects": [dead]}
    )
    stream = await world.stream()
    await world.consumer(stream, "c")
    await published(world, claims)
    small = await world.claims(ttl=AT_ONCE, dead_letter=dead, max_size=1)
    assert not await small.consumer.handle(await world.next(stream, "c"), nothing)
    message = await read_from(world, claims, f"DEAD{world.name}")
    assert message.subject == dead
    await copied(world, await published(world, claims, "other"), dead)
    forged = await world.next(f"DEAD{world.name}", "reader")
    with pytest.raises(Forbidden):
        await claims.consumer.read(forged)


async def test_a_mapping_of_the_server_is_explained_by_the_registry(world: ClaimsHarness) -> None:
    """The position that a producer recorded is trusted, whatever subject the message has in the stream."""
    claims = await world.claims(ttl=AT_ONCE, strict_subjects=True)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await published(world, claims)
    assert sent.reference
    await copied(world, sent, f"{stream}.mapped")
    await world.next(stream, "c")
    entry = await claims.registry.find(world.name, sent.reference.claim_id)
    assert entry
    async with asyncio.timeout(TIMEOUT_S):
        while not await claims.registry.compare_and_set(
            entry.with_place(stream, 2, f"{stream}.secret"), 3600
        ):
            entry = await claims.registry.find(world.name, sent.reference.claim_id)
            assert entry
    assert (await claims.consumer.read(await world.next(stream, "c"))).data == LARGE
