"""Who still needs a claim: every consumer and reader that may come to its message, in every stream that has it."""

from __future__ import annotations

import asyncio

import pytest

from claims.world import LARGE, World
from headrace.claims import PRESETS, Claims, Received, register_reader
from headrace.claims.floors import readers
from headrace.claims.registry import STREAM
from headrace.errors import RequestError

AT_ACK = PRESETS["aggressive"]


async def nothing(_: Received) -> None:
    """A handler that is content."""


async def lease(claims: Claims, stream: str, count: int, **terms: int) -> None:
    """So many readers that have read nothing yet."""
    for start in range(0, count, 100):
        names = [f"r{number}" for number in range(start, min(start + 100, count))]
        await asyncio.gather(*(register_reader(claims.wire, stream, name, 0, **terms) for name in names))


async def mirrored(world: World) -> tuple[str, str]:
    """A stream and its mirror."""
    stream = await world.stream()
    mirror = f"{stream}m"
    await world.wire.api(f"STREAM.CREATE.{mirror}", {"name": mirror, "mirror": {"name": stream}})
    return stream, mirror


async def test_a_consumer_of_the_same_name_in_another_stream_is_asked(world: World) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream, mirror = await mirrored(world)
    await world.consumer(stream, "worker")
    await world.consumer(mirror, "worker")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    await world.connection.flush()
    await world.advance(5)
    assert sent.reference
    assert await claims.consumer.handle(await world.next(mirror, "worker"), nothing)
    assert await claims.store.exists(sent.reference.object_key)
    assert await claims.consumer.handle(await world.next(stream, "worker"), nothing)
    assert not await claims.store.exists(sent.reference.object_key)


async def test_every_lease_protects_however_many_there_are(world: World) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    await lease(claims, stream, 1100)
    assert len(await readers(claims.wire, stream)) == 1100
    assert await claims.consumer.handle(await world.next(stream, "c"), nothing)
    assert sent.reference
    assert await claims.store.exists(sent.reference.object_key)


async def test_a_lease_that_is_over_leaves_nothing(world: World) -> None:
    claims = await world.claims()
    stream = await world.stream()
    await lease(claims, stream, 1, lease_s=1)
    await world.advance(2)
    async with asyncio.timeout(10):
        while await world.wire.last(STREAM, f"$CLAIMS.reader.{stream}.r0"):
            await asyncio.sleep(0.05)  # nats-server's time is real


async def test_markers_of_leases_that_are_over_are_no_leases(world: World) -> None:
    """Leases of earlier versions leave one each, for days."""
    claims = await world.claims()
    stream = await world.stream()
    marker = {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "1h"}
    for number in range(1100):
        await world.wire.send(f"$CLAIMS.reader.{stream}.over{number}", b"", marker)
    await register_reader(claims.wire, stream, "lasting", 0)
    assert [floor.name for floor in await readers(claims.wire, stream)] == ["reader lasting"]


async def test_a_get_of_many_that_is_refused_is_not_taken_for_none(world: World) -> None:
    claims = await world.claims()
    stream = await world.stream()
    await lease(claims, stream, 1100)
    with pytest.raises(RequestError) as caught:
        await claims.wire.last_of(STREAM, [f"$CLAIMS.reader.{stream}.*"])
    assert caught.value.code == 413
