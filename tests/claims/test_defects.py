"""One test, or more, for each defect of the design that this claim check was built from (B1 to B24)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from claims.faults import Faulty
from claims.world import LARGE, THRESHOLD, World, reference_of
from headrace.claims import (
    PRESETS,
    ClaimConfig,
    ClaimError,
    ConfigError,
    Corrupt,
    Disagreement,
    Expired,
    Forbidden,
    MemoryStore,
    NotFound,
    Received,
    TooLarge,
    Ttl,
    Unavailable,
    register_reader,
)
from headrace.claims.producer import headers_size
from headrace.claims.reference import Reference, check, key_of, new_id, topic_of
from headrace.claims.stores import Denied, StoreError
from headrace.claims.stores import lifecycle as lifecycles

AT_ACK = PRESETS["aggressive"]


async def nothing(_: Received) -> None:
    """A handler that is content."""


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
async def test_b1_compressed_claims_verify_on_both_sides(world: World, compression: str) -> None:
    claims = await world.claims(compression=compression)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE, content_type="text/plain")
    assert sent.reference
    assert (sent.reference.stored_size == len(LARGE)) == (compression == "none")
    assert (sent.reference.stored_checksum == sent.reference.checksum) == (compression == "none")
    received = await claims.consumer.read(await world.next(stream, "c"))
    assert received.data == LARGE
    assert received.content_type == "text/plain"
    assert "prism-claim-check" not in received.headers
    metadata = (await claims.store.head(sent.reference.object_key)).metadata
    assert metadata["prism-checksum"] == sent.reference.checksum
    assert metadata["prism-original-size"] == str(len(LARGE))


async def test_b2_whether_and_when_are_two_questions(world: World) -> None:
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


@pytest.mark.parametrize(("preset", "days"), [("aggressive", 1), ("conservative", 2), ("redelivery", 1)])
def test_b3_lifecycle_days_are_never_zero(preset: str, days: int) -> None:
    assert ClaimConfig("ns", ttl=PRESETS[preset]).lifecycle_days == days


async def test_b4_nothing_is_deleted_before_the_ack_is_confirmed(world: World) -> None:
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


async def test_b4_an_ack_without_an_answer_releases_nothing(world: World, monkeypatch: Any) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    message = await world.next(stream, "c")
    await world.wire.api(f"CONSUMER.DELETE.{stream}.c")
    assert not await claims.consumer.ack(message, timeout_s=0.2)
    assert sent.reference
    assert await claims.store.exists(sent.reference.object_key)


async def test_b5_a_planned_deletion_survives_its_planner(world: World) -> None:
    """The reader is gone; another program with nothing in memory finds the timer in the registry."""
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


async def test_b6_a_consumer_that_starts_beyond_a_claim_does_not_keep_it(world: World) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "first")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    await world.consumer(stream, "late", deliver_policy="new")
    await claims.consumer.handle(await world.next(stream, "first"), nothing)
    assert not await claims.store.exists(sent.reference.object_key)


async def test_b6_a_work_queue_needs_no_floors(world: World) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream(retention="workqueue")
    await world.consumer(stream, "workers")
    for number in range(3):
        await claims.producer.publish(f"{stream}.{number}", LARGE)
    messages = [await world.next(stream, "workers") for _ in range(3)]
    for message in reversed(messages):
        await claims.consumer.handle(message, nothing)
    assert [page async for page in claims.store.list(f"{world.name}/")] == []


async def test_b7_rules_of_others_stay(world: World) -> None:
    lifecycle = MemoryStore().lifecycle
    foreign = {"id": "theirs", "prefix": "logs/", "days": 30}
    await lifecycle.write([foreign])
    assert await lifecycles.ensure(lifecycle, "one", 1)
    assert await lifecycles.ensure(lifecycle, "two", 2)
    assert not await lifecycles.ensure(lifecycle, "one", 1), "nothing to do"
    assert await lifecycles.ensure(lifecycle, "one", 3)
    rules = await lifecycle.read()
    assert foreign in rules
    assert sorted((rule["id"], rule["days"]) for rule in rules if rule is not foreign) == [
        ("headrace-claims-one", 3),
        ("headrace-claims-two", 2),
        ("theirs", 30),
    ]


async def test_b7_rules_that_do_not_stick_are_noticed() -> None:
    class Forgetful(type(MemoryStore().lifecycle)):  # type: ignore[misc]
        async def write(self, rules: Any) -> None:
            """Answers 200 and forgets."""

    with pytest.raises(StoreError, match="does not show them"):
        await lifecycles.ensure(Forgetful(), "ns", 1)


async def test_b8_nothing_young_is_swept(world: World) -> None:
    ttl = Ttl(max_age=7200, grace_period=7200, retention_after_read=0)
    claims = await world.claims(ttl=ttl)
    stream = await world.stream()
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE)
    await world.wire.api(f"STREAM.PURGE.{stream}")
    await world.advance(7000)
    report = await claims.collector.collect()
    assert (report.removed, report.released) == (0, 0)
    with pytest.raises(ConfigError, match=r"ttl\.grace_period"):
        ClaimConfig("ns", ttl=Ttl(max_age=10, grace_period=11, retention_after_read=0))


async def test_b9_claims_shorter_than_redelivery_are_an_error(world: World) -> None:
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


async def test_b9_messages_that_outlive_their_claims_are_a_warning(world: World) -> None:
    claims = await world.claims()
    kept = await world.stream("kept", allow_msg_ttl=False)
    aged = await world.stream("aged", allow_msg_ttl=False, max_age=3600 * 10**9)
    timed = await world.stream("timed")
    found = [item.about for item in await claims.lint([kept, aged, timed]) if "outlive" in item.text]
    assert found == [f"stream {kept}"]
    sent = await claims.producer.publish(f"{kept}.a", LARGE)
    assert sent.reference, "it works there too, only without the TTL"


def test_b10_errors_are_types() -> None:
    config = ClaimConfig("ns")
    good = _reference()
    check(good, config, good.created_at * 10**9)
    with pytest.raises(Expired) as raised:
        check(good, config, (good.created_at + 25 * 3600) * 10**9)
    assert isinstance(raised.value, ClaimError)
    assert raised.value.claim_id == good.claim_id


async def test_b11_what_may_return_is_retried_and_what_may_not_is_given_up(world: World) -> None:
    faulty = Faulty(MemoryStore())
    claims = await world.claims(objects=faulty, backend="memory")
    stream = await world.stream()
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE)
    faulty.fail("get", Denied("403"))
    message = await world.next(stream, "c")
    with pytest.raises(Unavailable) as raised:
        await claims.consumer.read(message)
    assert raised.value.retryable
    faulty.heal()
    assert (await claims.consumer.read(message)).data == LARGE
    assert not NotFound("").retryable


@pytest.mark.parametrize("over", [0, 1])
async def test_b12_headers_count_towards_the_threshold(world: World, over: int) -> None:
    claims = await world.claims()
    stream = await world.stream()
    headers = {"Trace": "abc"}
    payload = b"x" * (THRESHOLD - headers_size(headers) + over)
    sent = await claims.producer.publish(f"{stream}.a", payload, headers=headers)
    assert (sent.reference is not None) == bool(over)


async def test_b12_the_servers_limit_counts_too(world: World) -> None:
    claims = await world.claims(threshold=64 * 1024 * 1024)
    assert claims.producer.inline_max == world.connection.max_payload


@pytest.mark.parametrize(
    "change",
    [
        {"bucket": "other"},
        {"object_key": "other/t/2026010100/{id}"},
        {"object_key": "ns/../other/{id}"},
        {"object_key": "ns/t/2026010100/another"},
        {"object_key": "ns/t/{id}"},
    ],
    ids=str,
)
def test_b13_a_message_does_not_decide_what_is_read(change: dict[str, str]) -> None:
    good = _reference()
    bad = replace(good, **{key: value.format(id=good.claim_id) for key, value in change.items()})
    with pytest.raises(Forbidden):
        check(bad, ClaimConfig("ns"), good.created_at * 10**9)


def test_b13_a_subject_cannot_leave_its_segment() -> None:
    for subject in ("a/../../b", "a.b", "ä b", "..", "a" * 400):
        topic = topic_of(subject)
        assert "/" not in topic
        assert "." not in topic
        assert len(topic) <= 200
    assert topic_of("a" * 400) != topic_of("a" * 401)


async def test_b13_sizes_are_bounded(world: World) -> None:
    small = await world.claims(max_size=1000, namespace=f"{world.name}s")
    stream = await world.stream()
    await world.consumer(stream, "c")
    await small.producer.publish(f"{stream}.a", LARGE)
    with pytest.raises(TooLarge):
        await small.consumer.read(await world.next(stream, "c"))


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
async def test_b13_a_bomb_does_not_explode(world: World, compression: str) -> None:
    claims = await world.claims(compression=compression)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", b"\0" * 50_000_000)
    assert sent.reference
    assert sent.reference.stored_size < 100_000
    lie = replace(sent.reference, original_size=70_000)
    headers = {"prism-claim-check": "true"}
    await world.wire.publish(f"{stream}.a", lie.encode(), headers)
    await world.next(stream, "c")
    with pytest.raises(TooLarge):
        await claims.consumer.read(await world.next(stream, "c"))


async def test_b14_a_refused_publish_removes_the_object(world: World) -> None:
    claims = await world.claims()
    with pytest.raises(ClaimError, match="no stream takes"):
        await claims.producer.publish(f"{world.name}.nowhere", LARGE)
    assert [page async for page in claims.store.list(f"{world.name}/")] == []
    assert [page async for page in claims.registry.scan(world.name) if page] == []


async def test_b14_a_retry_after_everything_was_done_leaves_nothing(world: World) -> None:
    """The first attempt was read and deleted; the retry of a producer that never heard of it is a duplicate."""
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1")
    await claims.consumer.handle(await world.next(stream, "c"), nothing)
    again = await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1")
    assert again.duplicate
    message = await world.wire.message(stream, 1)
    assert message is not None
    keys = [info.key async for page in claims.store.list(f"{world.name}/") for info in page]
    assert len(keys) <= 1, "the same object again at most"


@pytest.mark.parametrize(("late_s", "is_error"), [(59, False), (61, True)])
def test_b15_clocks_may_differ_a_little(late_s: int, is_error: bool) -> None:
    reference, config = _reference(), ClaimConfig("ns")
    now_ns = (reference.expires_at + late_s) * 10**9
    if not is_error:
        check(reference, config, now_ns)
        return
    with pytest.raises(Expired):
        check(reference, config, now_ns)


async def test_b16_what_age_removes_is_counted_as_expired(world: World) -> None:
    claims = await world.claims(ttl=PRESETS["conservative"])
    stream = await world.stream()
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    await world.pass_ttl(claims, sent, 86401)
    await claims.collector.collect()
    value = claims.metrics.registry.get_sample_value
    labels = {"namespace": world.name}
    assert value("claim_check_claims_created_total", labels) == 1
    assert value("claim_check_claims_deleted_total", labels) == 0
    assert value("claim_check_claims_expired_total", labels) == 1


async def test_b17_orphans_are_found_by_listing(world: World) -> None:
    claims = await world.claims()
    expired = int(world.clock.now_ns() / 1e9) - 10
    from headrace.claims.stores import Plain

    await claims.store.put(key_of(world.name, "a.b", expired, "lost"), b"x", Plain())
    await world.advance(3 * 3600)
    report = await claims.collector.collect(dry_run=True)
    assert report.orphans == 1
    gauge = claims.metrics.registry.get_sample_value("claim_check_orphaned_claims", {"namespace": world.name})
    assert gauge == 1


async def test_b18_live_bytes_are_a_gauge(world: World) -> None:
    claims = await world.claims()
    stream = await world.stream()
    for number in range(3):
        await claims.producer.publish(f"{stream}.{number}", LARGE)
    await claims.collector.collect()
    value = claims.metrics.registry.get_sample_value
    assert value("claim_check_live_bytes", {"namespace": world.name}) == 3 * len(LARGE)
    assert value("claim_check_live_claims", {"namespace": world.name}) == 3


def test_b19_a_key_says_when_it_is_due() -> None:
    assert key_of("ns", "orders.eu", 1_767_261_600, "id") == "ns/orders=2Eeu/2026010110/id"


async def test_b19_only_due_prefixes_are_looked_at(world: World) -> None:
    store = Faulty(MemoryStore(clock=world.clock))
    claims = await world.claims(objects=store, backend="memory")
    stream = await world.stream()
    for number in range(3):
        await claims.producer.publish(f"{stream}.a", LARGE)
        await world.advance(3600 * (number + 1))
    store.calls.clear()
    await claims.collector.collect()
    assert store.calls.count("head") == 0
    assert store.calls.count("list") == 1


def test_b20_the_backends_are_those_that_exist() -> None:
    with pytest.raises(ConfigError, match=r"claim_check\.backend"):
        ClaimConfig("ns", backend="floppy")
    assert ClaimConfig("ns", backend="minio").lifecycle_days == 2, "whole days there as everywhere"


def test_b21_azure_gets_names_that_it_allows() -> None:
    from headrace.claims.stores.azure import AzureStore

    assert AzureStore.to_vendor("prism-created-at") == "prism_created_at"
    assert AzureStore.from_vendor("prism_created_at") == "prism-created-at"


async def test_b22_removals_are_counted_once(world: World) -> None:
    claims = await world.claims(ttl=PRESETS["redelivery"])
    stream = await world.stream()
    await world.consumer(stream, "c")
    for number in range(20):
        await claims.producer.publish(f"{stream}.{number}", LARGE)
        await claims.consumer.handle(await world.next(stream, "c"), nothing)
    await world.advance(3 * 3600)
    others = [await world.claims(ttl=PRESETS["redelivery"]) for _ in range(3)]
    reports = await asyncio.gather(*(other.collector.collect() for other in others))
    assert sum(report.removed for report in reports) == 20


def test_b23_ids_do_not_depend_on_the_content() -> None:
    assert new_id("ns") != new_id("ns")
    assert new_id("ns", "m1") == new_id("ns", "m1")
    assert new_id("ns", "m1") != new_id("other", "m1")
    assert new_id("ns", "m1", subject="a") != new_id("ns", "m1", subject="b")


async def test_b23_two_messages_with_the_same_payload_share_nothing(world: World) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE)
    await claims.producer.publish(f"{stream}.a", LARGE)
    await claims.consumer.handle(await world.next(stream, "c"), nothing)
    assert (await claims.consumer.read(await world.next(stream, "c"))).data == LARGE


async def test_b24_readers_that_never_ack_have_a_floor_of_their_own(world: World) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "c")
    await register_reader(claims.wire, stream, "spark", 0)
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    await claims.consumer.handle(await world.next(stream, "c"), nothing)
    assert await claims.store.exists(sent.reference.object_key)
    await register_reader(claims.wire, stream, "spark", sent.seq)
    await world.advance(60)
    await world.fire(claims, sent.reference.claim_id)
    assert (await claims.collector.collect()).collected == 1


async def test_two_programs_that_disagree_find_out(world: World) -> None:
    await world.claims(ttl=Ttl(max_age=7200))
    with pytest.raises(Disagreement, match="max_age is 3600 here and 7200 there"):
        await world.claims(ttl=Ttl(max_age=3600))
    with pytest.raises(Disagreement, match="bucket"):
        await world.claims(ttl=Ttl(max_age=7200), bucket="other")
    other = await world.claims(ttl=Ttl(max_age=7200, delete_after_read=False))
    assert any("delete_after_read" in item.text for item in await other.lint())


async def test_the_message_has_the_fields_and_the_ttl(world: World) -> None:
    claims = await world.claims(ttl=Ttl(max_age=7200))
    stream = await world.stream()
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE, msg_id="m1", headers={"Trace": "abc"})
    message = await world.next(stream, "c")
    assert message.headers
    assert message.headers["prism-claim-check"] == "true"
    assert message.headers["Nats-TTL"] == "7200s"
    assert message.headers["Nats-Msg-Id"] == "m1"
    fields = reference_of(message)
    assert {"claim_id", "bucket", "object_key", "original_size", "compression", "checksum"} <= fields.keys()
    assert fields["expires_at"] - fields["created_at"] == 7200
    assert (await claims.consumer.read(message)).headers["Trace"] == "abc"


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"claim_id": 7}', b"\xff"])
async def test_a_broken_reference_is_corrupt(world: World, payload: bytes) -> None:
    claims = await world.claims()
    stream = await world.stream()
    await world.consumer(stream, "c")
    await world.wire.publish(f"{stream}.a", payload, {"prism-claim-check": "true"})
    with pytest.raises(Corrupt):
        await claims.consumer.read(await world.next(stream, "c"))


def _reference() -> Reference:
    fields = {
        "claim_id": "c1",
        "bucket": "claims",
        "object_key": "ns/t/2026010110/c1",
        "original_size": 10,
        "compression": "none",
        "checksum": "0",
        "stored_size": 10,
        "stored_checksum": "0",
        "created_at": 1_767_261_600 - 86400,
        "expires_at": 1_767_261_600,
    }
    return Reference(**json.loads(json.dumps(fields)))
