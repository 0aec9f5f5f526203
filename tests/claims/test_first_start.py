"""Many programs use a namespace, a bucket or a server for the first time at the same moment."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nats
import pytest

from claims.claims_harness import TIMEOUT_S, run_nats_server
from claims.object_stores import Weed
from conformance.servers import NATS_SERVER, OURS
from headrace.claims import ClaimConfig, ClaimError, Claims, MemoryStore
from headrace.claims.stores.lifecycle import LifecycleRule, ensure_rules, has_required_rules
from headrace.claims.stores.memory import MemoryLifecycle
from headrace.claims.stores.object_store import BucketAlreadyExists, ObjectStoreError
from headrace.claims.stores.obstore_backend import create_once
from headrace.claims.stores.s3 import make_s3_store
from headrace.testing import HostedServer

PROGRAMS = 8


async def open_at_once(url: str, configs: Sequence[ClaimConfig]) -> None:
    """Open each configuration as a program of its own, all at once."""
    connections = [await nats.connect(url, connect_timeout=TIMEOUT_S) for _ in configs]
    try:
        opened = await asyncio.gather(
            *(
                Claims.open(connection, config, timeout_s=TIMEOUT_S)
                for connection, config in zip(connections, configs, strict=True)
            )
        )
        for claims in opened:
            await claims.close()
    finally:
        for connection in connections:
            await connection.close()


@pytest.mark.parametrize("kind", [NATS_SERVER, OURS])
async def test_a_new_server_and_a_new_bucket(weed: Weed, kind: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "backend": "s3",
        "bucket": f"first-{uuid.uuid4().hex[:8]}",
        "store": weed.settings,
    }
    configs = [ClaimConfig(f"n{number % 2}", **settings) for number in range(PROGRAMS)]
    if kind == OURS:
        with HostedServer(port=-1, store_dir=tmp_path) as server:
            await open_at_once(server.url, configs)
    else:
        with run_nats_server() as url:
            await open_at_once(url, configs)
    store = make_s3_store(configs[0].bucket, configs[0].store)
    assert store.lifecycle
    for namespace in ("n0", "n1"):
        assert await has_required_rules(store.lifecycle, namespace, configs[0].lifecycle_days)
    await store.close()


class SlowLifecycle(MemoryLifecycle):
    """Rules that are read and written with a delay, so that programs overwrite each other's."""

    async def read(self) -> list[LifecycleRule]:
        found = await super().read()
        await asyncio.sleep(0.01)
        return found

    async def write(self, rules: Sequence[LifecycleRule]) -> None:
        await asyncio.sleep(0.01)
        await super().write(rules)


async def test_namespaces_of_one_bucket_keep_each_others_rules() -> None:
    lifecycle = SlowLifecycle()
    names = ["a", "b", "c"]
    await asyncio.gather(*(ensure_rules(lifecycle, name, 2) for name in names))
    for name in names:
        assert await has_required_rules(lifecycle, name, 2)


async def test_rules_that_never_stay_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    lifecycle = MemoryLifecycle()

    async def forget(_: Sequence[LifecycleRule]) -> None:
        """Store nothing."""

    monkeypatch.setattr(lifecycle, "write", forget)
    with pytest.raises(ObjectStoreError, match="another program"):
        await ensure_rules(lifecycle, "a", 2)


async def test_a_bucket_that_another_program_creates_is_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.claims.stores.obstore_backend._CREATE_PAUSE_S", 0.001)
    states = iter([False, True])

    async def conflict() -> None:
        raise ObjectStoreError("a conflicting operation is in progress")

    async def exists() -> bool:
        return next(states)

    await create_once(conflict, exists)
    assert next(states, None) is None


async def test_a_bucket_that_cannot_be_created_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.claims.stores.obstore_backend._CREATE_PAUSE_S", 0.001)

    async def conflict() -> None:
        raise BucketAlreadyExists("it belongs to another account")

    async def exists() -> bool:
        return False

    with pytest.raises(BucketAlreadyExists):
        await create_once(conflict, exists)


async def test_a_server_without_jetstream_raises_an_error_of_claims() -> None:
    with HostedServer(port=-1) as server:
        connection = await nats.connect(server.url, connect_timeout=TIMEOUT_S)
        config = ClaimConfig("video", backend="memory")
        with pytest.raises(ClaimError):
            await Claims.open(connection, config, store=MemoryStore(), timeout_s=0.2)
        await connection.close()


async def test_a_server_that_does_not_answer_raises_an_error_of_claims() -> None:
    """A server may not answer for want of permissions."""
    with HostedServer(port=-1) as server:
        connection = await nats.connect(server.url, connect_timeout=TIMEOUT_S)
        await connection.subscribe("$JS.API.>")
        await connection.flush()
        config = ClaimConfig("video", backend="memory")
        with pytest.raises(ClaimError):
            await Claims.open(connection, config, store=MemoryStore(), timeout_s=0.05)
        await connection.close()


@pytest.mark.parametrize(
    ("settings", "variables", "region"),
    [
        ({}, {}, "us-east-1"),
        ({}, {"AWS_DEFAULT_REGION": "eu-west-1"}, "eu-west-1"),
        ({}, {"AWS_REGION": "eu-central-1", "AWS_DEFAULT_REGION": "eu-west-1"}, "eu-central-1"),
        ({"region": "us-west-2"}, {"AWS_REGION": "eu-central-1"}, "us-west-2"),
    ],
)
def test_the_region_of_the_environment_is_used(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], variables: dict[str, str], region: str
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    store = make_s3_store("claims", {"access_key_id": "a", "secret_access_key": "b", **settings})
    assert store._region == region
    assert store._client.config["region"] == region
