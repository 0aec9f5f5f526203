"""Who still needs a claim: every consumer and reader that may read its message, in every stream with the message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from claims.claims_harness import LARGE, TIMEOUT_S, ClaimsHarness, wait_until_stored
from headrace.claims import (
    PRESETS,
    Claims,
    Received,
    Ttl,
    register_reader,
)
from headrace.claims.ack_floors import Floors, list_reader_leases
from headrace.claims.clock import format_rfc3339, parse_rfc3339_ns
from headrace.claims.jetstream_client import RequestTimeout
from headrace.claims.registry import STREAM
from headrace.errors import RequestError

AT_ACK = PRESETS["aggressive"]
LONG = Ttl(86400, True, 300, 3600)


async def nothing(_: Received) -> None:
    """Succeed without doing anything."""


MANY = 1100  # more than a server returns in one reply


@pytest.fixture
async def leased(world: ClaimsHarness) -> AsyncIterator[str]:
    """A stream with many readers that have read nothing; they are removed at the end, because tests share the server."""
    await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    for start in range(0, MANY, 100):
        names = [f"r{number}" for number in range(start, start + 100)]
        await asyncio.gather(*(register_reader(world.wire, stream, name, 0) for name in names))
    yield stream
    await world.wire.api_request(f"STREAM.PURGE.{STREAM}", {"filter": f"$CLAIMS.reader.{stream}.*"})


@pytest.fixture
async def mirrored(world: ClaimsHarness) -> AsyncIterator[tuple[str, str]]:
    """A stream and its mirror.

    The mirror is removed before later tests advance the clock by weeks, because it polls all the time.
    """
    stream = await world.stream()
    mirror = f"{stream}m"
    await world.wire.api_request(f"STREAM.CREATE.{mirror}", {"name": mirror, "mirror": {"name": stream}})
    yield stream, mirror
    await world.wire.api_request(f"STREAM.DELETE.{mirror}")


async def test_a_consumer_of_the_same_name_in_another_stream_is_asked(
    world: ClaimsHarness, mirrored: tuple[str, str]
) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream, mirror = mirrored
    await world.consumer(stream, "worker")
    await world.consumer(mirror, "worker")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    await wait_until_stored(world.connection)
    await world.advance(5)
    assert sent.reference
    assert await claims.consumer.handle(await world.next(mirror, "worker"), nothing)
    assert await claims.store.exists(sent.reference.object_key)
    assert await claims.consumer.handle(await world.next(stream, "worker"), nothing)
    assert not await claims.store.exists(sent.reference.object_key)


async def test_every_lease_protects_however_many_there_are(world: ClaimsHarness, leased: str) -> None:
    claims = await world.claims(ttl=AT_ACK)
    await world.consumer(leased, "c")
    sent = await claims.producer.publish(f"{leased}.a", LARGE)
    assert len(await list_reader_leases(claims.jetstream, leased)) == MANY
    assert await claims.consumer.handle(await world.next(leased, "c"), nothing)
    assert sent.reference
    assert await claims.store.exists(sent.reference.object_key)


async def test_a_lease_that_is_over_leaves_nothing(world: ClaimsHarness) -> None:
    claims = await world.claims()
    stream = await world.stream()
    await register_reader(claims.jetstream, stream, "brief", 0, lease_s=1)
    await world.advance(2)
    async with asyncio.timeout(TIMEOUT_S):
        while await world.wire.get_last(STREAM, f"$CLAIMS.reader.{stream}.brief"):
            await asyncio.sleep(0.05)  # nats-server runs in real time


async def test_markers_of_leases_that_are_over_are_no_leases(world: ClaimsHarness, leased: str) -> None:
    """Leases of earlier versions leave one marker each, for days."""
    marker = {"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "1h"}
    for number in range(MANY):
        await world.wire.publish_nowait(f"$CLAIMS.reader.{leased}.r{number}", b"", marker)
    await register_reader(world.wire, leased, "lasting", 0)
    assert [floor.name for floor in await list_reader_leases(world.wire, leased)] == ["reader lasting"]


async def test_a_get_of_many_that_is_refused_is_not_taken_for_none(world: ClaimsHarness, leased: str) -> None:
    with pytest.raises(RequestError) as caught:
        await world.wire.get_last_per_subject(STREAM, [f"$CLAIMS.reader.{leased}.*"])
    assert caught.value.code == 413


async def test_nobody_is_passed_over_when_consumers_go_and_come_between_two_pages(
    world: ClaimsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = await world.claims()
    stream = await world.stream()
    names = [f"c{number:04d}" for number in range(300)]
    for name in names:
        await world.consumer(stream, name)
    api, pages = claims.jetstream.api_request, 0

    async def changing(verb: str, body: Any = None) -> Any:
        nonlocal pages
        answer = await api(verb, body)
        pages += verb.startswith("CONSUMER.LIST")  # leases are listed at the same time
        if pages == 1 and verb.startswith("CONSUMER.LIST"):
            await api(f"CONSUMER.DELETE.{stream}.{names[0]}")
            await world.consumer(stream, "later")  # so that the number stays the same
        return answer

    monkeypatch.setattr(claims.jetstream, "api_request", changing)
    found = {floor.name for floor in await Floors(claims.jetstream).get(stream) or ()}
    assert found == {*names[1:], "later"}


class Cluster:
    """A server whose list of consumers is set by the test."""

    def __init__(self, *pages: dict[str, Any]) -> None:
        self._pages = list(pages)

    async def api_request(self, verb: str, body: Any = None) -> Any:
        return self._pages.pop(0) if len(self._pages) > 1 else self._pages[0]

    async def get_all(self, *_: Any) -> list[Any]:
        return []

    async def get_message(self, *_: Any) -> dict[str, Any]:
        return {"seq": 1}


@pytest.mark.parametrize("silent", [{"missing": ["slow"]}, {"offline": {"slow": "needs a newer server"}}])
async def test_a_consumer_that_a_cluster_could_not_ask_may_need_everything(silent: dict[str, Any]) -> None:
    floors: Any = Floors(Cluster({"total": 1, "consumers": [], **silent}))  # type: ignore[arg-type]
    assert await floors.find_blocking_consumer("S", "s.a", 1) == "slow"


async def test_a_list_that_never_holds_still_is_no_answer() -> None:
    floors = Floors(Cluster({"total": 2, "consumers": [], "missing": ["a"]}))  # type: ignore[arg-type]
    with pytest.raises(RequestTimeout):
        await floors.get("S")


async def swept(world: ClaimsHarness, claims: Claims, sent: Any) -> bool:
    """Return whether a claim is deleted shortly after its grace period, long before its max_age."""
    await wait_until_stored(world.connection)
    await world.advance(3700)
    await claims.collector.collect()
    await world.advance(400)
    await world.fire(claims, sent.reference.claim_id)
    await claims.collector.collect()
    return not await claims.store.exists(sent.reference.object_key)


def began_later(policy: str, now_ns: int) -> dict[str, Any]:
    """Return the configuration of a consumer that starts after the first message."""
    start = {
        "by_start_sequence": {"opt_start_seq": 2},
        "by_start_time": {"opt_start_time": format_rfc3339(now_ns + 5 * 10**9)},
        "last_per_subject": {"filter_subject": ">"},
    }
    return {"deliver_policy": policy, **start.get(policy, {})}


@pytest.mark.parametrize("policy", ["new", "last", "last_per_subject", "by_start_sequence", "by_start_time"])
async def test_who_began_later_has_read_nothing(world: ClaimsHarness, policy: str) -> None:
    claims = await world.claims(ttl=LONG)
    stream = await world.stream()
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    await claims.producer.publish(f"{stream}.a", b"small")
    await world.consumer(stream, "tail", **began_later(policy, world.clock.now_ns()))
    assert not await swept(world, claims, sent)


async def test_who_began_in_time_and_acknowledged_has_read_it(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=LONG, clock_skew=0)
    stream = await world.stream()
    await world.consumer(stream, "tail", deliver_policy="new")
    await world.advance(5)
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    await (await world.next(stream, "tail")).ack_sync(timeout=TIMEOUT_S)
    await world.settled(stream, "tail")
    assert await swept(world, claims, sent)


@pytest.mark.parametrize(
    ("terms", "goes"),
    [
        ({}, False),
        ({"start": 2}, False),
        ({"start": 1}, True),
        ({"start": 1, "filters": ["*.b"]}, False),
        ({"start": 1, "filters": ["*.b", "*.a"]}, True),
    ],
)
async def test_a_reader_under_a_lease_has_read_from_its_start_on(
    world: ClaimsHarness, terms: dict[str, Any], goes: bool
) -> None:
    claims = await world.claims(ttl=LONG)
    stream = await world.stream()
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    await register_reader(claims.jetstream, stream, "spark", sent.seq, 86400, **terms)
    assert await swept(world, claims, sent) is goes


@pytest.mark.parametrize(
    "text",
    ["2026-01-31T12:00:00.25Z", "2026-01-31T14:00:00.250+02:00", "2026-01-31T07:00:00.250000000-05:00"],
)
def test_times_of_any_zone_are_understood(text: str) -> None:
    assert parse_rfc3339_ns(text) == parse_rfc3339_ns("2026-01-31T12:00:00Z") + 250_000_000


@pytest.mark.parametrize("retention_s", [0, 60])
async def test_the_origin_counts_though_the_note_of_it_was_lost(
    world: ClaimsHarness, mirrored: tuple[str, str], monkeypatch: pytest.MonkeyPatch, retention_s: int
) -> None:
    """The producer dies after its publish, and a consumer of a mirror acks first."""
    claims = await world.claims(ttl=Ttl(3600, True, retention_s, 300))
    stream, mirror = mirrored
    await world.consumer(stream, "slow")
    await world.consumer(mirror, "quick")

    async def lost(*_: Any) -> None:
        """Drop the message."""

    with monkeypatch.context() as patch:
        patch.setattr(claims.registry, "update_nowait", lost)
        sent = await claims.producer.publish(f"{stream}.a", LARGE)
    await world.advance(5)
    assert sent.reference
    assert await claims.consumer.handle(await world.next(mirror, "quick"), nothing)
    await world.advance(120)
    await world.fire(claims, sent.reference.claim_id)
    await claims.collector.collect()
    assert await claims.store.exists(sent.reference.object_key)
    assert await claims.consumer.handle(await world.next(stream, "slow"), nothing)
    await world.advance(120)
    await world.fire(claims, sent.reference.claim_id)
    await claims.collector.collect()
    assert not await claims.store.exists(sent.reference.object_key)


async def test_a_consumer_that_starts_beyond_a_claim_does_not_keep_it(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "first")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    await world.consumer(stream, "late", deliver_policy="new")
    await claims.consumer.handle(await world.next(stream, "first"), nothing)
    assert not await claims.store.exists(sent.reference.object_key)


async def test_a_work_queue_needs_no_floors(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream(retention="workqueue")
    await world.consumer(stream, "workers")
    for number in range(3):
        await claims.producer.publish(f"{stream}.{number}", LARGE)
    messages = [await world.next(stream, "workers") for _ in range(3)]
    for message in reversed(messages):
        await claims.consumer.handle(message, nothing)
    assert [page async for page in claims.store.list(f"{world.name}/")] == []


async def test_readers_that_never_ack_have_a_floor_of_their_own(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "c")
    await register_reader(claims.jetstream, stream, "spark", 0)
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    await claims.consumer.handle(await world.next(stream, "c"), nothing)
    assert await claims.store.exists(sent.reference.object_key)
    await register_reader(claims.jetstream, stream, "spark", sent.seq)
    await world.advance(60)
    await world.fire(claims, sent.reference.claim_id)
    assert (await claims.collector.collect()).collected == 1
