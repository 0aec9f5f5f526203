"""The same message published again.

No attempt uses another's object, reading does not delete a payload that a later attempt refers to, and a different
message with the same id has its own payload.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from claims.claims_harness import LARGE, ClaimsHarness, wait_until_stored
from claims.faulty_store import Faulty
from headrace.claims import (
    PRESETS,
    ClaimError,
    ClaimNotFound,
    FakeClock,
    MemoryStore,
    PublishFailed,
    PublishUnknown,
    Received,
    StoreUnavailable,
)
from headrace.claims import reference as references
from headrace.claims.jetstream_client import RequestTimeout
from headrace.claims.stores import AccessDenied, ObjectStoreError

AT_ACK = PRESETS["aggressive"]
WINDOW_NS = 200_000_000
OTHER = b"fedcba9876543210" * 8192


async def nothing(_: Received) -> None:
    """Succeed without doing anything."""


async def test_two_attempts_at_once_leave_the_message_its_object(world: ClaimsHarness) -> None:
    late = FakeClock(world.clock.now_ns() + 10**9)  # another second, another reference
    one, two = await world.claims(), await world.claims(clock=late)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await asyncio.gather(
        *(claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1") for claims in (one, two))
    )
    assert sorted(each.duplicate for each in sent) == [False, True]
    assert (await one.consumer.read(await world.next(stream, "c"))).data == LARGE


async def test_a_retry_that_the_stream_does_not_know_any_more_has_its_payload(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream(duplicate_window=WINDOW_NS)
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1")
    while (await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1")).duplicate:
        await world.advance(0.1)
    assert await claims.consumer.handle(await world.next(stream, "c"), nothing)
    await claims.collector.collect()
    assert await claims.consumer.handle(await world.next(stream, "c"), nothing)


async def test_what_is_about_to_go_stays_if_a_retry_uses_it(world: ClaimsHarness, monkeypatch: Any) -> None:
    """A collector has decided to delete; before it does, the claim is published again."""
    claims, other = await world.claims(ttl=AT_ACK), await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    sent = await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1")
    assert sent.reference is not None
    judged = await claims.registry.find(world.name, sent.reference.claim_id)
    assert judged is not None
    publish = other.jetstream.publish
    removed: list[Any] = []

    async def publish_while_collected(subject: str, *rest: Any) -> Any:
        if subject.startswith(stream):
            removed.extend(await claims.registry.remove([judged]))
        return await publish(subject, *rest)

    monkeypatch.setattr(other.jetstream, "publish", publish_while_collected)
    await other.producer.publish(f"{stream}.a", LARGE, msg_id="m1")
    assert removed == [], "only the winner may delete, and the retry has won"


async def test_an_unknown_earlier_attempt_is_a_claim_error(world: ClaimsHarness, monkeypatch: Any) -> None:
    claims = await world.claims()
    stream = await world.stream()

    async def silent(*_: Any) -> Any:
        raise RequestTimeout("no answer")

    monkeypatch.setattr(claims.jetstream, "get_last", silent)
    with pytest.raises(PublishUnknown) as caught:
        await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1")
    assert isinstance(caught.value, ClaimError)
    assert caught.value.retryable


async def test_an_object_whose_deletion_was_tried_is_not_used_again(world: ClaimsHarness) -> None:
    """If a store did not confirm a deletion, it may still carry it out later."""
    objects = Faulty(world.memory)
    claims = await world.claims(ttl=AT_ACK, objects=objects, backend="memory")
    objects.fail("delete", ObjectStoreError("timed out"))
    with pytest.raises(PublishFailed):
        await claims.producer.publish(f"{world.name}.a", LARGE, msg_id="m1")
    objects.heal()
    (late,) = [info.key async for page in objects.list(f"{world.name}/") for info in page]
    stream = await world.stream()
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1")
    await objects.delete([late])
    assert (await claims.consumer.read(await world.next(stream, "c"))).data == LARGE


async def test_one_message_id_in_two_streams_is_two_payloads(world: ClaimsHarness) -> None:
    claims = await world.claims()
    video, audio = await world.stream("v"), await world.stream("a")
    await world.consumer(audio, "c")
    await claims.producer.publish(f"{video}.x", LARGE, msg_id="1")
    assert not (await claims.producer.publish(f"{audio}.x", OTHER, msg_id="1")).duplicate
    assert (await claims.consumer.read(await world.next(audio, "c"))).data == OTHER


@pytest.mark.parametrize("kind", ["bytes", "file", "iterator"])
async def test_a_message_id_that_comes_again_for_another_payload_has_that_payload(
    world: ClaimsHarness, tmp_path: Path, kind: str
) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream(duplicate_window=WINDOW_NS)
    await world.consumer(stream, "c")
    path = tmp_path / "other"
    path.write_bytes(OTHER)

    async def pieces() -> AsyncIterator[bytes]:
        yield OTHER

    def other() -> Any:
        return {"bytes": OTHER, "file": path, "iterator": pieces()}[kind]

    await claims.producer.publish(f"{stream}.a", LARGE, msg_id="state")
    while (await claims.producer.publish(f"{stream}.a", other(), msg_id="state")).duplicate:
        await world.advance(0.1)
    received: list[bytes] = []

    async def take(message: Received) -> None:
        received.append(message.data)

    for _ in range(2):
        assert await claims.consumer.handle(await world.next(stream, "c"), take)
    assert received == [LARGE, OTHER]
    assert not [page async for page in claims.store.list(f"{world.name}/")]


async def test_a_payload_that_is_published_again_beside_another_of_its_id_is_stored_once(
    world: ClaimsHarness,
) -> None:
    claims = await world.claims()
    stream = await world.stream(duplicate_window=WINDOW_NS)
    await claims.producer.publish(f"{stream}.a", LARGE, msg_id="state")
    while (first := await claims.producer.publish(f"{stream}.a", OTHER, msg_id="state")).duplicate:
        await world.advance(0.1)
    await wait_until_stored(world.connection)
    again = await claims.producer.publish(f"{stream}.a", OTHER, msg_id="state")
    assert first.reference
    assert again.reference == first.reference


async def test_claims_whose_ids_know_no_subject_are_read_retried_and_collected(
    world: ClaimsHarness, monkeypatch: Any
) -> None:
    """Earlier versions created such claims."""
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "c")
    new_id = references.make_claim_id
    with monkeypatch.context() as patch:
        patch.setattr(references, "make_claim_id", lambda *given, subject="": new_id(*given))
        sent = await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1")
    assert sent.reference
    assert sent.reference.claim_id == new_id(world.name, "m1")
    assert (await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1")).duplicate
    received: list[bytes] = []

    async def take(message: Received) -> None:
        received.append(message.data)

    assert await claims.consumer.handle(await world.next(stream, "c"), take)
    assert received == [LARGE]
    assert not [page async for page in claims.store.list(f"{world.name}/")]


async def test_what_may_return_is_retried_and_what_may_not_is_given_up(world: ClaimsHarness) -> None:
    faulty = Faulty(MemoryStore())
    claims = await world.claims(objects=faulty, backend="memory")
    stream = await world.stream()
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE)
    faulty.fail("get", AccessDenied("403"))
    message = await world.next(stream, "c")
    with pytest.raises(StoreUnavailable) as raised:
        await claims.consumer.read(message)
    assert raised.value.retryable
    faulty.heal()
    assert (await claims.consumer.read(message)).data == LARGE
    assert not ClaimNotFound("").retryable


async def test_a_retry_after_everything_was_done_leaves_nothing(world: ClaimsHarness) -> None:
    """The first attempt was read and deleted; the retry of a producer that got no reply is a duplicate."""
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1")
    await claims.consumer.handle(await world.next(stream, "c"), nothing)
    again = await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1")
    assert again.duplicate
    message = await world.wire.get_message(stream, 1)
    assert message is not None
    keys = [info.key async for page in claims.store.list(f"{world.name}/") for info in page]
    assert len(keys) <= 1, "the same object again at most"
