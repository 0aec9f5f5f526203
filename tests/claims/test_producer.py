"""What a producer sends as a claim, with which fields, and what remains after a failure."""

from __future__ import annotations

import pytest

from claims.claims_harness import LARGE, THRESHOLD, ClaimsHarness, reference_of
from headrace.claims import (
    PRESETS,
    ClaimError,
    Received,
    Ttl,
)
from headrace.claims.producer import get_headers_size

AT_ACK = PRESETS["aggressive"]


async def nothing(_: Received) -> None:
    """Succeed without doing anything."""


@pytest.mark.parametrize("over", [0, 1])
async def test_headers_count_towards_the_threshold(world: ClaimsHarness, over: int) -> None:
    claims = await world.claims()
    stream = await world.stream()
    headers = {"Trace": "abc"}
    payload = b"x" * (THRESHOLD - get_headers_size(headers) + over)
    sent = await claims.producer.publish(f"{stream}.a", payload, headers=headers)
    assert (sent.reference is not None) == bool(over)


async def test_the_servers_limit_counts_too(world: ClaimsHarness) -> None:
    claims = await world.claims(threshold=64 * 1024 * 1024)
    assert claims.producer.inline_max == world.connection.max_payload


async def test_a_refused_publish_removes_the_object(world: ClaimsHarness) -> None:
    claims = await world.claims()
    with pytest.raises(ClaimError, match="no stream has subject"):
        await claims.producer.publish(f"{world.name}.nowhere", LARGE)
    assert [page async for page in claims.store.list(f"{world.name}/")] == []
    assert [page async for page in claims.registry.scan(world.name) if page] == []


async def test_two_messages_with_the_same_payload_share_nothing(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE)
    await claims.producer.publish(f"{stream}.a", LARGE)
    await claims.consumer.handle(await world.next(stream, "c"), nothing)
    assert (await claims.consumer.read(await world.next(stream, "c"))).data == LARGE


async def test_the_message_has_the_fields_and_the_ttl(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=Ttl(max_age=7200))
    stream = await world.stream()
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1", headers={"Trace": "abc"})
    message = await world.next(stream, "c")
    assert message.headers
    assert message.headers["prism-claim-check"] == "true"
    assert message.headers["Nats-TTL"] == "10860s"
    assert message.headers["Nats-Msg-Id"] == "m1"
    fields = reference_of(message)
    assert {"claim_id", "bucket", "object_key", "original_size", "compression", "checksum"} <= fields.keys()
    assert fields["expires_at"] - fields["created_at"] == 7200
    assert (await claims.consumer.read(message)).headers["Trace"] == "abc"
