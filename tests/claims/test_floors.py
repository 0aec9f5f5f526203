"""Who still needs a claim: every consumer and reader that may come to its message, in every stream that has it."""

from __future__ import annotations

from claims.world import LARGE, World
from headrace.claims import PRESETS, Received

AT_ACK = PRESETS["aggressive"]


async def nothing(_: Received) -> None:
    """A handler that is content."""


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
