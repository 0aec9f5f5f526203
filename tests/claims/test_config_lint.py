"""`lint` reports lifetimes that contradict each other, as errors or as warnings."""

from __future__ import annotations

from claims.claims_harness import LARGE, ClaimsHarness
from headrace.claims import (
    PRESETS,
)

AT_ACK = PRESETS["aggressive"]


async def test_claims_shorter_than_redelivery_are_an_error(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "fine", ack_wait=30 * 10**9, max_deliver=5)
    await world.consumer(stream, "long", ack_wait=1800 * 10**9, max_deliver=5)
    await world.consumer(stream, "endless", max_deliver=-1)
    backoff = [10**9, 4000 * 10**9]
    await world.consumer(stream, "backoff", max_deliver=3, backoff=backoff, ack_wait=backoff[0])
    found = {(item.level, item.about) for item in await claims.lint([stream])}
    assert ("error", f"consumer {stream}/long") in found
    assert ("error", f"consumer {stream}/backoff") in found
    assert ("warning", f"consumer {stream}/endless") in found
    assert not any("fine" in about for _, about in found)


async def test_messages_that_outlive_their_claims_are_a_warning(world: ClaimsHarness) -> None:
    claims = await world.claims()
    kept = await world.stream("kept", allow_msg_ttl=False)
    aged = await world.stream("aged", allow_msg_ttl=False, max_age=3600 * 10**9)
    timed = await world.stream("timed")
    found = [item.about for item in await claims.lint([kept, aged, timed]) if "outlive" in item.text]
    assert found == [f"stream {kept}"]
    sent = await claims.producer.publish(f"{kept}.a", LARGE)
    assert sent.reference, "it works there too, only without the TTL"
