"""What the collector removes, what it keeps, and its counters."""

from __future__ import annotations

import asyncio

import pytest

from claims.claims_harness import LARGE, ClaimsHarness
from claims.faulty_store import Faulty
from headrace.claims import (
    PRESETS,
    ClaimConfig,
    ConfigError,
    MemoryStore,
    Received,
    Ttl,
)
from headrace.claims.reference import make_key


async def nothing(_: Received) -> None:
    """Succeed without doing anything."""


async def test_nothing_young_is_swept(world: ClaimsHarness) -> None:
    ttl = Ttl(max_age=7200, grace_period=7200, retention_after_read=0)
    claims = await world.claims(ttl=ttl)
    stream = await world.stream()
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE)
    await world.wire.api_request(f"STREAM.PURGE.{stream}")
    await world.advance(7000)
    report = await claims.collector.collect()
    assert (report.removed, report.released) == (0, 0)
    with pytest.raises(ConfigError, match=r"ttl\.grace_period"):
        ClaimConfig("ns", ttl=Ttl(max_age=10, grace_period=11, retention_after_read=0))


async def test_orphans_are_found_by_listing(world: ClaimsHarness) -> None:
    claims = await world.claims()
    expired = int(world.clock.now_ns() / 1e9) - 10
    from headrace.claims.stores import StaticAttributes

    await claims.store.put(make_key(world.name, "a.b", expired, "lost"), b"x", StaticAttributes())
    await world.advance(3 * 3600)
    report = await claims.collector.collect(dry_run=True)
    assert report.orphans == 1
    gauge = claims.metrics.registry.get_sample_value("claim_check_orphaned_claims", {"namespace": world.name})
    assert gauge == 1


async def test_only_due_prefixes_are_looked_at(world: ClaimsHarness) -> None:
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


async def test_removals_are_counted_once(world: ClaimsHarness) -> None:
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
