"""Faults in the middle of an operation: no loss, no early deletion, no orphans after a collection."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import pytest

from claims.claims_harness import LARGE, TIMEOUT_S, ClaimsHarness, wait_until_stored
from claims.faulty_proxy import Proxy
from claims.faulty_store import Faulty
from claims.object_stores import Weed
from headrace import Server
from headrace.claims import (
    PRESETS,
    ChecksumMismatch,
    ClaimConfig,
    Claims,
    Corrupt,
    FakeClock,
    MemoryStore,
    PublishFailed,
    Received,
    StoreUnavailable,
    SystemClock,
    Ttl,
)
from headrace.claims.collector_service import run_until_cancelled
from headrace.claims.stores import FolderStore, ObjectStoreError, StaticAttributes

HOUR = 3600
AT_ACK = PRESETS["aggressive"]
RETENTION = PRESETS["redelivery"]


async def nothing(_: Received) -> None:
    """Succeed without doing anything."""


async def keys(claims: Any) -> list[str]:
    prefix = f"{claims.config.namespace}/"
    return [info.key async for page in claims.store.list(prefix) for info in page]


async def test_a_store_that_is_down_fails_the_publish_and_leaves_nothing(world: ClaimsHarness) -> None:
    faulty = Faulty(MemoryStore(clock=world.clock))
    claims = await world.claims(objects=faulty, backend="memory")
    stream = await world.stream()
    faulty.fail("put", ObjectStoreError("503"))
    with pytest.raises(StoreUnavailable):
        await claims.producer.publish(f"{stream}.a", LARGE)
    assert (await world.wire.api_request(f"STREAM.INFO.{stream}"))["state"]["messages"] == 0
    assert await keys(claims) == []


async def test_a_deletion_that_fails_never_fails_the_message_and_is_retried(world: ClaimsHarness) -> None:
    faulty = Faulty(MemoryStore(clock=world.clock))
    claims = await world.claims(objects=faulty, backend="memory", ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    faulty.fail("delete", ObjectStoreError("503"))
    assert await claims.consumer.handle(await world.next(stream, "c"), nothing)
    assert len(await keys(claims)) == 1
    await world.advance(60)
    await world.fire(claims, sent.reference.claim_id)
    assert (await claims.collector.collect(sweep=False)).failed == 1
    value = claims.metrics.registry.get_sample_value
    assert value("claim_check_claim_delete_failures_total", {"namespace": world.name}) == 2
    faulty.heal()
    await world.advance(60)
    assert await _eventually(claims) == 1
    assert await keys(claims) == []
    assert "failed" in await world.events(claims, sent.reference.claim_id)


async def test_an_altered_object_is_noticed(world: ClaimsHarness) -> None:
    for compression, error in (("none", ChecksumMismatch), ("zstd", (Corrupt, ChecksumMismatch))):
        claims = await world.claims(compression=compression, namespace=f"{world.name}{compression}")
        stream = await world.stream(compression)
        await world.consumer(stream, "c")
        sent = await claims.producer.publish(f"{stream}.a", LARGE)
        assert sent.reference
        path = world.folder / "claims" / sent.reference.object_key
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
        with pytest.raises(error):
            await claims.consumer.read(await world.next(stream, "c"))


async def test_a_truncated_object_is_noticed(world: ClaimsHarness) -> None:
    claims = await world.claims()
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    path = world.folder / "claims" / sent.reference.object_key
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ChecksumMismatch):
        await claims.consumer.read(await world.next(stream, "c"))


async def test_a_source_that_breaks_off_publishes_nothing(world: ClaimsHarness) -> None:
    claims = await world.claims()
    stream = await world.stream()

    async def source() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 1_000_000
        raise ValueError("the source failed")

    with pytest.raises(ValueError, match="the source failed"):
        await claims.producer.publish(f"{stream}.a", source())
    assert await keys(claims) == []
    assert (await world.wire.api_request(f"STREAM.INFO.{stream}"))["state"]["messages"] == 0


async def test_an_upload_that_takes_longer_than_a_claim_lives_is_not_published(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=Ttl(60, True, 0, 0))
    stream = await world.stream()

    async def slow() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"x" * (3 << 20)
            world.clock.advance(20)

    with pytest.raises(PublishFailed, match="max_age"):
        await claims.producer.publish(f"{stream}.a", slow())
    assert await keys(claims) == []
    assert (await world.wire.api_request(f"STREAM.INFO.{stream}"))["state"]["messages"] == 0


async def test_a_crash_between_read_and_ack_costs_nothing(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream()
    await world.consumer(stream, "c", ack_wait=10**9)
    await claims.producer.publish(f"{stream}.a", LARGE)
    message = await world.next(stream, "c")
    assert (await claims.consumer.read(message)).data == LARGE
    await world.advance(2)
    again = await world.next(stream, "c")
    assert await claims.consumer.handle(again, nothing)


async def test_a_crash_between_ack_and_release_is_made_up_for(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    await (await world.next(stream, "c")).ack_sync(timeout=TIMEOUT_S)
    await world.advance(RETENTION.grace_period + 1)
    assert (await claims.collector.collect()).released == 1
    await world.advance(RETENTION.retention_after_read + 1)
    await world.fire(claims, sent.reference.claim_id)
    assert (await claims.collector.collect()).collected == 1
    assert await keys(claims) == []


async def test_a_collector_that_dies_between_facts_and_object_is_followed_by_another(
    world: ClaimsHarness, monkeypatch: Any
) -> None:
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream()
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    await world.pass_ttl(claims, sent, 3 * HOUR)
    monkeypatch.setattr(claims.store, "delete", _die)
    with pytest.raises(asyncio.CancelledError):
        await claims.collector.collect()
    assert len(await keys(claims)) == 1
    assert [page async for page in claims.registry.scan(world.name) if page] == []
    other = await world.claims(ttl=RETENTION)
    await world.advance(HOUR)
    await other.collector.collect()
    assert await keys(other) == []


async def test_a_fast_clock_does_not_delete_early(world: ClaimsHarness) -> None:
    """The collector uses the server's time; a reader uses its own, with an allowance for clock skew."""
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    server_timed = Claims(world.connection, claims.config, store=claims.store, timeout_s=TIMEOUT_S)
    await world.fire(claims, sent.reference.claim_id)
    assert (await server_timed.collector.collect()).removed == 0
    await server_timed.close()
    skewed = FakeClock(world.clock.now_ns())
    skewed.advance(RETENTION.max_age + 30)
    reader = await world.claims(ttl=RETENTION, clock=skewed)
    assert (await reader.consumer.read(await world.next(stream, "c"))).data == LARGE


async def test_retention_is_kept_though_the_readers_clock_is_behind(world: ClaimsHarness) -> None:
    ttl = Ttl(7200, True, 50, 600)
    claims = await world.claims(ttl=ttl)
    reading = await world.claims(ttl=ttl, clock=FakeClock(world.clock.now_ns() - 55 * 10**9))
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    await wait_until_stored(world.connection)
    assert sent.reference
    assert await reading.consumer.handle(await world.next(stream, "c"), nothing)
    await claims.collector.collect()
    assert await claims.store.exists(sent.reference.object_key)
    await world.advance(60)
    await world.fire(claims, sent.reference.claim_id)
    assert (await claims.collector.collect()).collected == 1


async def test_a_producers_clock_that_is_behind_costs_no_claim(world: ClaimsHarness) -> None:
    """Its message expires by the server's clock, and consumers allow for the difference."""
    ttl = Ttl(3600, True, 0, 0)
    claims = await world.claims(ttl=ttl)
    producing = await world.claims(ttl=ttl, clock=FakeClock(world.clock.now_ns() - 55 * 10**9))
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await producing.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    await wait_until_stored(world.connection)
    await world.advance(3560)
    await world.fire(claims, sent.reference.claim_id)
    await claims.collector.collect()
    assert (await claims.consumer.read(await world.next(stream, "c"))).data == LARGE
    await world.advance(100)
    await world.fire(claims, sent.reference.claim_id)
    await claims.collector.collect()
    assert not await claims.store.exists(sent.reference.object_key)


async def test_consumers_that_are_reset_or_deleted_under_us_lose_nothing(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "ours")
    await world.consumer(stream, "theirs")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    await claims.consumer.handle(await world.next(stream, "ours"), nothing)
    assert await claims.store.exists(sent.reference.object_key)
    await world.wire.api_request(f"CONSUMER.DELETE.{stream}.theirs")
    await world.consumer(stream, "theirs")
    message = await world.next(stream, "theirs")
    assert await claims.consumer.handle(message, nothing), (
        "created again, it reads from the start and finds the claim"
    )
    await world.wire.api_request(f"CONSUMER.DELETE.CLAIMS.collectors-{world.name}")
    assert (await claims.collector.collect()).failed == 0
    assert await keys(claims) == []


async def test_a_consumer_that_is_reset_reads_again_what_is_kept(world: ClaimsHarness) -> None:
    """After a reset to the start within the retention, the claim still exists, until it is read again."""
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    assert await claims.consumer.handle(await world.next(stream, "c"), nothing)
    await world.wire.api_request(f"CONSUMER.RESET.{stream}.c", {"seq": 1})
    await world.advance(RETENTION.retention_after_read + 1)
    await world.fire(claims, sent.reference.claim_id)
    assert (await claims.collector.collect()).waiting == 1, "the floor went back: somebody needs it again"
    again = await world.next(stream, "c")
    assert (await claims.consumer.read(again)).data == LARGE
    assert await claims.consumer.ack(again)
    await world.advance(RETENTION.retention_after_read + 1)
    await world.fire(claims, sent.reference.claim_id)
    assert (await claims.collector.collect()).collected == 1
    assert await keys(claims) == []


async def test_a_message_whose_consumer_was_reset_is_acked_or_redelivered(
    world: ClaimsHarness,
) -> None:
    """The consumer is reset between read and ack: the claim is kept whatever happens to the ack."""
    claims = await world.claims(ttl=AT_ACK)
    stream = await world.stream()
    await world.consumer(stream, "c")
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    message = await world.next(stream, "c")
    await world.wire.api_request(f"CONSUMER.RESET.{stream}.c", {})
    if not await claims.consumer.ack(message, timeout_s=0.5):
        assert await claims.store.exists(sent.reference.object_key)
        assert await claims.consumer.handle(await world.next(stream, "c"), nothing)
    await claims.collector.collect()
    assert await keys(claims) == []


async def test_the_collectors_consumer_may_be_reset_or_deleted_at_any_time(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream()
    await world.consumer(stream, "c")
    name = f"collectors-{world.name}"
    for number, disturb in enumerate(("RESET", "DELETE", "DELETE")):
        sent = await claims.producer.publish(f"{stream}.{number}", LARGE)
        assert sent.reference
        assert await claims.consumer.handle(await world.next(stream, "c"), nothing)
        await world.advance(RETENTION.retention_after_read + 1)
        await world.fire(claims, sent.reference.claim_id)
        await world.wire.api_request(f"CONSUMER.{disturb}.CLAIMS.{name}", {} if disturb == "RESET" else None)
        assert (await claims.collector.collect(sweep=False)).collected == 1
    assert await keys(claims) == []


async def test_a_registry_that_does_not_answer_refuses_the_publish(
    world: ClaimsHarness, monkeypatch: Any
) -> None:
    claims = await world.claims()
    stream = await world.stream()

    async def refuse(*_: Any) -> Any:
        from headrace.errors import RequestError

        raise RequestError(503, 0, "insufficient resources")

    monkeypatch.setattr(claims.jetstream, "publish_all", refuse)
    with pytest.raises(PublishFailed, match="registered"):
        await claims.producer.publish(f"{stream}.a", LARGE)
    assert await keys(claims) == [], "nobody can refer to it"


async def test_a_connection_that_is_lost_after_the_publish_does_not_fail_it(
    world: ClaimsHarness, monkeypatch: Any
) -> None:
    """The message is in the stream: an error would make the caller publish it again. The record is updated later."""
    connection = await nats.connect(world.url, allow_reconnect=False, connect_timeout=TIMEOUT_S)
    settings = {"path": str(world.folder), "sync": False}
    config = ClaimConfig(world.name, threshold=65536, ttl=RETENTION, store=settings)
    claims = await Claims.open(connection, config, clock=world.clock, timeout_s=TIMEOUT_S)
    stream = await world.stream()
    await world.consumer(stream, "c")
    publish = claims.jetstream.publish

    async def published_and_lost(subject: str, *rest: Any) -> Any:
        answer = await publish(subject, *rest)
        if subject.startswith(stream):
            await connection.close()
        return answer

    monkeypatch.setattr(claims.jetstream, "publish", published_and_lost)
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.seq == 1
    with pytest.raises(PublishFailed):
        await claims.producer.publish(f"{stream}.b", LARGE)
    await claims.close()
    other = await world.claims(ttl=RETENTION)
    assert await other.consumer.handle(await world.next(stream, "c"), nothing)
    await world.advance(4 * HOUR)
    await other.collector.collect()
    assert await keys(other) == []


async def test_a_dry_run_tells_and_touches_nothing(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=RETENTION)
    stream = await world.stream()
    await claims.producer.publish(f"{stream}.a", LARGE)
    await world.advance(4 * HOUR)
    report = await claims.collector.collect(dry_run=True)
    assert report.expired >= 1
    assert report.lines
    assert len(await keys(claims)) == 1
    assert (await claims.collector.collect()).expired == 1


async def test_abandoned_uploads_are_swept_by_their_age(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=RETENTION)
    assert isinstance(claims.store, FolderStore)
    part = world.folder / "claims" / ".headrace" / "dead.part"
    part.write_bytes(b"half")
    os.utime(part, ns=(world.clock.now_ns(), world.clock.now_ns()))
    assert (await claims.collector.collect()).uploads == 0
    await world.advance(3 * HOUR)
    assert (await claims.collector.collect()).uploads == 1
    assert not part.exists()


@pytest.mark.parametrize("looks", [0, 1])
async def test_uploads_that_end_while_the_folder_is_looked_at_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    store = FolderStore(tmp_path)
    await store.ensure_bucket()
    path = tmp_path / "claims" / ".headrace" / "x.part"
    path.write_bytes(b"under way")
    stat, seen = Path.stat, 0

    def going(self: Path, **given: Any) -> os.stat_result:
        nonlocal seen
        found = stat(self, **given) if self != path or seen < looks else None
        if self == path and (seen := seen + 1) >= looks:
            path.unlink(missing_ok=True)
        if found is None:
            raise FileNotFoundError(path)
        return found

    monkeypatch.setattr(Path, "stat", going)
    assert len(await store.uploads()) == looks


async def test_folders_that_go_while_they_are_looked_at_are_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(tmp_path)
    await store.ensure_bucket()
    await store.put("ns/topic/2026010100/x", b"x", StaticAttributes())

    def gone(folder: Path) -> Any:
        raise FileNotFoundError(folder)

    monkeypatch.setattr(os, "scandir", gone)
    assert await store.prefixes("ns/") == ()


async def test_a_collector_survives_what_its_file_system_says(world: ClaimsHarness) -> None:
    objects = Faulty(MemoryStore())
    claims = await world.claims(objects=objects, backend="memory")
    objects.fail("uploads", OSError(5, "Input/output error"))
    watching = asyncio.create_task(run_until_cancelled(claims.collector.watch(poll_s=0.01)))
    async with asyncio.timeout(TIMEOUT_S):
        while objects.calls.count("uploads") < 2 and not watching.done():
            await asyncio.sleep(0.01)
    assert not watching.done()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_files_and_iterators_are_streamed(world: ClaimsHarness, tmp_path: Path) -> None:
    claims = await world.claims(compression="zstd")
    stream = await world.stream()
    await world.consumer(stream, "c")
    content = bytes(range(256)) * 80_000
    path = tmp_path / "payload"
    path.write_bytes(content)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 70_000):
            yield content[start : start + 70_000]

    for payload in (path, pieces(), memoryview(content)):
        await claims.producer.publish(f"{stream}.a", payload)
        got = bytearray()
        async for piece in claims.consumer.stream(await world.next(stream, "c")):
            got += piece
        assert got == content
    small = tmp_path / "small"
    small.write_bytes(b"tiny")
    sent = await claims.producer.publish(f"{stream}.a", small)
    assert sent.reference is None


@pytest.mark.slow
@pytest.mark.parametrize("server", ["nats-server", "headrace"])
async def test_once_in_real_time(request: pytest.FixtureRequest, tmp_path: Path, server: str) -> None:
    """In real time: TTLs of a second or two, markers by the server, a collector that watches."""
    if server == "headrace":
        async with Server(store_dir=tmp_path / "broker") as ours:
            await _in_real_time(ours.url, tmp_path)
    else:
        await _in_real_time(request.getfixturevalue("nats_server_url"), tmp_path)


async def _in_real_time(url: str, tmp_path: Path) -> None:
    """A claim that was read is removed before its max_age, an unread one stays, and an expired one is removed."""
    connection = await nats.connect(url, connect_timeout=TIMEOUT_S)
    world = ClaimsHarness(connection, url, None, tmp_path, f"RT{time.time_ns()}")
    lasting = await world.claims(ttl=Ttl(HOUR, True, 1, 1), clock=SystemClock())
    brief = await world.claims(ttl=Ttl(2, True, 1, 1), clock=SystemClock(), namespace=f"{world.name}brief")
    stream = await world.stream()
    await world.consumer(stream, "c", filter_subject=f"{stream}.lasting.>")
    timed = [Claims(connection, each.config, store=each.store) for each in (lasting, brief)]  # by the server
    watches = (each.collector.watch(sweep_every_s=0.5, poll_s=0.5) for each in timed)
    watching = asyncio.create_task(run_until_cancelled(*watches))
    read = await lasting.producer.publish(f"{stream}.lasting.a", LARGE)
    unread = await lasting.producer.publish(f"{stream}.lasting.b", LARGE)
    aged = await brief.producer.publish(f"{stream}.brief", LARGE)
    assert read.reference
    assert unread.reference
    assert aged.reference
    await lasting.consumer.handle(await world.next(stream, "c"), nothing)
    await _until_gone(lasting, read.reference.object_key)
    await _until_gone(brief, aged.reference.object_key)
    assert await lasting.store.exists(unread.reference.object_key)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    for each in timed:
        await each.jetstream.close()
    await world.close()
    await connection.close()


@pytest.fixture
async def wire_to_s3(weed: Weed) -> AsyncIterator[Proxy]:
    """A real S3 server behind a proxy that can fail."""
    async with Proxy(weed.endpoint) as proxy:
        yield proxy


async def on_s3(world: ClaimsHarness, weed: Weed, proxy: Proxy, **settings: Any) -> Claims:
    store = {**weed.settings, "endpoint": proxy.endpoint, "retry_timeout": 5, **settings}
    return await world.claims(ttl=AT_ACK, backend="s3", bucket="claims-faults", store=store)


async def test_5xx_responses_are_retried_and_then_reported(
    world: ClaimsHarness, weed: Weed, wire_to_s3: Proxy
) -> None:
    claims = await on_s3(world, weed, wire_to_s3, retries=2)
    stream = await world.stream()
    await world.consumer(stream, "c")
    wire_to_s3.refuse(503, times=2)
    assert (await claims.producer.publish(f"{stream}.a", LARGE)).reference, "the third attempt came through"
    message = await world.next(stream, "c")
    wire_to_s3.refuse(500)
    with pytest.raises(StoreUnavailable):
        await claims.producer.publish(f"{stream}.b", LARGE)
    with pytest.raises(StoreUnavailable):
        await claims.consumer.read(message)
    wire_to_s3.heal()
    assert (await world.wire.api_request(f"STREAM.INFO.{stream}"))["state"]["messages"] == 1, (
        "nothing half published"
    )
    assert await claims.consumer.handle(message, nothing)
    assert await keys(claims) == []


async def test_a_slow_store_ends_in_a_timeout(world: ClaimsHarness, weed: Weed, wire_to_s3: Proxy) -> None:
    claims = await on_s3(world, weed, wire_to_s3, retries=0, timeout=TIMEOUT_S)
    stream = await world.stream()
    await world.consumer(stream, "c")
    wire_to_s3.delay_s = 0.05
    assert (await claims.producer.publish(f"{stream}.a", LARGE)).reference
    message = await world.next(stream, "c")
    wire_to_s3.delay_s = 2 * TIMEOUT_S
    hasty = replace(claims.config, store={**claims.config.store, "timeout": 1})
    async with Claims(world.connection, hasty, clock=world.clock) as hurried:
        with pytest.raises(StoreUnavailable):
            await hurried.consumer.read(message)
    wire_to_s3.heal()
    assert await claims.consumer.handle(message, nothing)
    assert await keys(claims) == []


@pytest.mark.parametrize("world", ["nats-server"], indirect=True)  # its time starts with the store's
async def test_an_upload_that_is_cut_off_halfway_leaves_nothing_once_the_collector_ran(
    world: ClaimsHarness, weed: Weed, wire_to_s3: Proxy
) -> None:
    claims = await on_s3(world, weed, wire_to_s3, retries=0)
    stream = await world.stream()
    wire_to_s3.cut_after = 3_000_000  # in the middle of the first part

    async def source() -> AsyncIterator[bytes]:
        for number in range(24):
            if number == 12:
                wire_to_s3.refuse(503)  # nor can it be aborted any more
            yield b"x" * 1_000_000

    with pytest.raises(StoreUnavailable):
        await claims.producer.publish(f"{stream}.a", source())
    wire_to_s3.heal()
    assert (await world.wire.api_request(f"STREAM.INFO.{stream}"))["state"]["messages"] == 0
    assert await keys(claims) == []
    await world.advance(AT_ACK.max_age + 1)
    await claims.collector.collect()
    mine = [upload for upload in await claims.store.uploads() if upload.belongs_to(world.name)]
    assert mine == []


async def test_an_unknown_object_in_the_bucket_is_left_alone(world: ClaimsHarness) -> None:
    claims = await world.claims()
    await claims.store.put(f"{world.name}/notes", b"x", StaticAttributes())
    await claims.store.put(f"{world.name}/a/b/c", b"x", StaticAttributes())
    await world.advance(30 * 24 * HOUR)
    await claims.collector.collect()
    assert len(await keys(claims)) == 2


async def _until_gone(claims: Claims, key: str) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while await claims.store.exists(key):
            await asyncio.sleep(0.05)


async def _eventually(claims: Claims) -> int:
    """Wait for a retried deletion: at once in virtual time, soon in real time."""
    async with asyncio.timeout(TIMEOUT_S):
        while not (found := (await claims.collector.collect(sweep=False)).removed):
            await asyncio.sleep(0.02)
    return found


async def _die(*_: Any, **__: Any) -> Any:
    raise asyncio.CancelledError
