"""Payloads move to another store while messages are in flight, and a message is not given up before its claim ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from claims.claims_harness import LARGE, ClaimsHarness
from claims.faulty_store import Faulty
from headrace.claims import (
    ClaimConfig,
    ClaimError,
    ConfigConflict,
    ConfigError,
    FolderStore,
    MemoryStore,
    Received,
    StoreUnavailable,
    Ttl,
    consumer,
    from_mapping,
    open_store,
    published_config,
)
from headrace.claims.stores import (
    AccessDenied,
    CombinedStore,
    ObjectMissing,
    ObjectStore,
    ObjectStoreError,
    StaticAttributes,
)

HOUR = 3600
TTL = Ttl(2 * HOUR, True, 0, 600)


@pytest.fixture(autouse=True)
def redeliver_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer, "_RETRY_S", 0.05)


async def keep(_: Received) -> None:
    """Succeed without doing anything."""


def make_settings(folder: Path, name: str, *others: str) -> dict[str, Any]:
    """Return the settings of a namespace in a folder store, which also reads from others."""
    store = {"path": str(folder), "sync": False}
    return {"bucket": name, "store": store, "read_from": [{"bucket": other} for other in others]}


async def test_stores_change_while_messages_are_in_flight(world: ClaimsHarness) -> None:
    """The documented procedure: read from both, write to the new one, remove the old one when it is empty."""
    stream = await world.stream()
    await world.consumer(stream, "c")
    old = await world.claims(ttl=TTL, **make_settings(world.folder, "old"))
    first = await old.producer.publish(f"{stream}.a", LARGE)
    both = await world.claims(ttl=TTL, **make_settings(world.folder, "old", "new"))
    moved = await world.claims(ttl=TTL, **make_settings(world.folder, "new", "old"))
    await published_config.publish(moved.jetstream, moved.config)
    again = await world.claims(ttl=TTL, **make_settings(world.folder, "old", "new"))
    second = await moved.producer.publish(f"{stream}.a", LARGE)
    third = await again.producer.publish(f"{stream}.a", LARGE)
    assert [sent.reference.bucket for sent in (first, second, third) if sent.reference] == [
        "old",
        "new",
        "old",
    ]
    for reader in (moved, both, moved):
        assert await reader.consumer.handle(await world.next(stream, "c"), keep)
    for bucket in ("old", "new"):
        left = FolderStore(world.folder, bucket, sync=False)
        assert [page async for page in left.list(f"{world.name}/")] == []
    assert any("remove it" in str(finding) for finding in await moved.lint())
    with pytest.raises(ConfigConflict):
        await world.claims(ttl=TTL, **make_settings(world.folder, "old"))


async def test_a_collector_empties_both_stores(world: ClaimsHarness) -> None:
    stream = await world.stream()
    old = await world.claims(ttl=TTL, **make_settings(world.folder, "old"))
    await old.producer.publish(f"{stream}.a", LARGE)
    moved = await world.claims(ttl=TTL, **make_settings(world.folder, "new", "old"))
    await moved.producer.publish(f"{stream}.a", LARGE)
    key = f"{world.name}/orphan/2020010100/orphan"
    await old.store.put(key, b"orphan", StaticAttributes())
    (path,) = (world.folder / "old").glob(f"{world.name}/orphan/*/*")
    os.utime(path, (0, 0))
    await world.advance(4 * HOUR)
    await moved.collector.collect()
    for store in (old.store, moved.store):
        assert [page async for page in store.list(f"{world.name}/")] == []


async def test_a_message_is_redelivered_while_its_claim_has_time_left(world: ClaimsHarness) -> None:
    """The consumer has the configuration of another store: the claim is missing there."""
    stream = await world.stream()
    await world.consumer(stream, "c")
    claims = await world.claims(ttl=TTL, dead_letter=f"{world.name}dead.letters")
    dead = await world.stream("dead")
    await claims.producer.publish(f"{stream}.a", LARGE)
    elsewhere = await world.claims(ttl=TTL, dead_letter=f"{world.name}dead.letters", objects=MemoryStore())
    message = await world.next(stream, "c")
    assert not await elsewhere.consumer.handle(message, keep)
    await world.advance(1)
    assert (await world.wire.api_request(f"STREAM.INFO.{dead}"))["state"]["messages"] == 0
    again = await world.next(stream, "c")
    assert again.metadata.num_delivered == 2
    assert await claims.consumer.handle(again, keep)


async def test_a_message_in_another_bucket_is_redelivered(world: ClaimsHarness) -> None:
    stream = await world.stream()
    await world.consumer(stream, "c")
    old = await world.claims(ttl=TTL, **make_settings(world.folder, "old"))
    await old.producer.publish(f"{stream}.a", LARGE)
    config = ClaimConfig(world.name, threshold=100, ttl=TTL, **make_settings(world.folder, "new"))
    await published_config.publish(world.wire, config)
    moved = await world.claims(ttl=TTL, **make_settings(world.folder, "new"))
    assert not await moved.consumer.handle(await world.next(stream, "c"), keep)
    await world.advance(1)
    again = await world.next(stream, "c")
    assert again.metadata.num_delivered == 2
    repaired = await world.claims(ttl=TTL, **make_settings(world.folder, "new", "old"))
    assert await repaired.consumer.handle(again, keep)


async def test_a_claim_that_was_collected_is_given_up_at_once(world: ClaimsHarness) -> None:
    stream = await world.stream()
    await world.consumer(stream, "c")
    claims = await world.claims(ttl=TTL)
    await claims.producer.publish(f"{stream}.a", LARGE)
    assert await claims.consumer.handle(await world.next(stream, "c"), keep)
    await world.consumer(stream, "replay")
    assert not await claims.consumer.handle(await world.next(stream, "replay"), keep)
    await world.settled(stream, "replay")


async def test_a_forged_reference_is_given_up_at_once(world: ClaimsHarness) -> None:
    stream = await world.stream()
    await world.consumer(stream, "c")
    claims = await world.claims(ttl=TTL)
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    message = await world.next(stream, "c")
    assert await claims.consumer.handle(message, keep)
    assert sent.reference
    forged = message.data.replace(b'"bucket":"claims"', b'"bucket":"others"')
    await world.wire.publish(f"{stream}.a", forged, {"prism-claim-check": "true"})
    assert not await claims.consumer.handle(await world.next(stream, "c"), keep)
    await world.settled(stream, "c")


async def test_a_store_that_fails_is_not_taken_for_one_without_the_object() -> None:
    old, new = MemoryStore("old"), MemoryStore("new")
    await old.ensure_bucket()
    faulty = Faulty(old)
    faulty.fail("get", ObjectStoreError("down"))
    combined = CombinedStore(new, [faulty])  # type: ignore[list-item]
    with pytest.raises(ObjectStoreError) as caught:
        await combined.get("a")
    assert type(caught.value) is ObjectStoreError


@pytest.mark.parametrize("denying", [0, 1])
async def test_a_store_that_denies_access_is_named_and_hides_no_object(denying: int) -> None:
    """S3 denies access to missing objects too, if the credentials do not allow listing the bucket."""
    stores = [Faulty(MemoryStore("old")), Faulty(MemoryStore("new"))]
    for each in stores:
        await each.ensure_bucket()
    store = CombinedStore(stores[0], [stores[1]])  # type: ignore[arg-type, list-item]
    for operation in ("get", "head", "exists"):
        stores[denying].fail(operation, AccessDenied("'a/key': the credentials do not allow it"))
    name = ("old", "new")[denying]
    for read in (store.get, store.head, store.exists):
        with pytest.raises(AccessDenied, match=rf"bucket '{name}': 'a/key': the credentials"):
            await read("a/key")
    await stores[1 - denying].put("a/key", b"x", StaticAttributes())
    assert b"".join([bytes(chunk) async for chunk in await store.get("a/key")]) == b"x"
    assert (await store.head("a/key")).size == 1
    assert await store.exists("a/key")
    stores[denying].heal()
    assert not await store.exists("a/other")
    with pytest.raises(ObjectMissing):
        await store.get("a/other")


async def test_a_claim_is_read_from_the_store_that_does_not_deny_access(world: ClaimsHarness) -> None:
    stream = await world.stream()
    await world.consumer(stream, "c")
    old, new = Faulty(MemoryStore("old", world.clock)), Faulty(MemoryStore("new", world.clock))
    sender = await world.claims(ttl=TTL, objects=old, bucket="old", backend="memory")
    await sender.producer.publish(f"{stream}.a", LARGE)
    combined = CombinedStore(new, [old])  # type: ignore[arg-type, list-item]
    further = [{"bucket": "old"}]
    moved = await world.claims(ttl=TTL, objects=combined, bucket="new", backend="memory", read_from=further)
    new.fail("get", AccessDenied("the credentials do not allow it"))
    message = await world.next(stream, "c")
    assert (await moved.consumer.read(message)).data == LARGE
    old.fail("get", ObjectMissing("there is no such object"))
    with pytest.raises(StoreUnavailable, match="bucket 'new': the credentials do not allow it"):
        await moved.consumer.read(message)


async def test_a_combined_store_lists_in_key_order() -> None:
    stores: list[ObjectStore] = [MemoryStore("a"), MemoryStore("b"), MemoryStore("c")]
    for number in range(5000):
        store = stores[number % 3 if number < 4000 else 0]
        await store.ensure_bucket()
        await store.put(f"n/{number:05}", b"", StaticAttributes())
    combined = CombinedStore(stores[0], stores[1:])
    keys = [info.key async for page in combined.list("n/") for info in page]
    assert keys == [f"n/{number:05}" for number in range(5000)]
    assert await combined.prefixes("") == ["n/"]


def test_further_stores_are_configured_like_the_first(tmp_path: Path) -> None:
    document = {
        "namespace": "video",
        "claim_check": {
            "bucket": "new",
            "store": {"path": str(tmp_path)},
            "read_from": [{"bucket": "old"}, {"backend": "memory"}],
        },
    }
    config = from_mapping(document)
    assert config.buckets == {"new", "old"}
    first, second = config.read_configs()
    assert (first.backend, first.bucket, first.store) == ("folder", "old", {"path": str(tmp_path)})
    assert (second.backend, second.bucket, second.store) == ("memory", "new", {})
    assert isinstance(open_store(config), CombinedStore)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"bucket": "old"}, "claim_check.read_from"),
        (["old"], "claim_check.read_from.0"),
        ([{}], "claim_check.read_from.0"),
        ([{"path": "old"}], "claim_check.read_from.0.path"),
        ([{"backend": "ftp"}], "claim_check.read_from.0.backend"),
        ([{"bucket": ""}], "claim_check.read_from.0.bucket"),
    ],
)
def test_wrong_further_stores_are_rejected(value: Any, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_mapping({"namespace": "video", "claim_check": {"read_from": value}})
    assert caught.value.path == path
    assert isinstance(caught.value, ClaimError)
