"""The buckets' own expiry rules: on a real S3 server, and as far as emulators and fakes allow elsewhere."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from claims.objects import GcsEmulator, Weed
from claims.world import LARGE, World
from headrace.claims import PRESETS, ClaimConfig, Received, open_store
from headrace.claims.stores import Plain
from headrace.claims.stores import lifecycle as lifecycles


def bucket_name() -> str:
    return f"claims-{uuid.uuid4().hex[:12]}"


async def s3(weed: Weed) -> Any:
    store = open_store(ClaimConfig("ns", backend="s3", bucket=bucket_name(), store=weed.settings))
    await store.ensure_bucket()
    return store


async def test_s3_rules_are_merged_and_read_back(weed: Weed) -> None:
    store = await s3(weed)
    theirs = {"ID": "logs", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 30}}
    await store.lifecycle.write([theirs])
    assert await lifecycles.ensure(store.lifecycle, "one", 1)
    assert await lifecycles.ensure(store.lifecycle, "two", 2)
    assert not await lifecycles.ensure(store.lifecycle, "one", 1)
    rules = {rule["ID"]: rule for rule in await store.lifecycle.read()}
    assert rules["logs"]["Expiration"]["Days"] == 30
    assert rules["headrace-claims-one"]["Expiration"]["Days"] == 1
    assert rules["headrace-claims-two"]["Expiration"]["Days"] == 2
    assert rules["headrace-uploads-two"]["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"] == 1
    await store.close()


async def test_s3_the_bucket_rule_removes_what_everybody_missed(weed: Weed) -> None:
    """The seed's integration test: lifecycle on demand. A date in the past stands for days that have passed."""
    store = await s3(weed)
    await store.put("ns/t/2026010100/old", b"x", Plain())
    await store.put("other/t/2026010100/kept", b"x", Plain())
    (rule, _) = store.lifecycle.wanted("ns", 1)
    await store.lifecycle.write([{**rule, "Expiration": {"Date": datetime(2026, 1, 1, tzinfo=UTC)}}])
    said = await asyncio.to_thread(weed.run_lifecycle)
    assert not await store.exists("ns/t/2026010100/old"), said
    assert await store.exists("other/t/2026010100/kept")
    await store.close()


async def test_s3_abandoned_uploads_are_known_with_their_age(weed: Weed) -> None:
    store = await s3(weed)
    await store.call("create_multipart_upload", Bucket=store.bucket, Key="ns/t/2026010100/half")
    (upload,) = await store.uploads()
    assert upload.key == "ns/t/2026010100/half"
    age_s = datetime.now(UTC).timestamp() - upload.initiated_ns / 1e9
    assert -5 < age_s < 60
    assert upload.is_of("ns")
    assert not upload.is_of("n")
    await store.abort(upload)
    await store.abort(upload)
    assert not await store.uploads()
    await store.close()


@pytest.mark.parametrize("name", ["s3", "azure", "memory"])
async def test_claims_on_a_real_store(
    world: World, settings_of: Callable[[str], dict[str, Any]], name: str
) -> None:
    claims = await world.claims(
        ttl=PRESETS["aggressive"], bucket=bucket_name(), compression="zstd", **settings_of(name)
    )
    stream = await world.stream()
    await world.consumer(stream, "c")
    large = LARGE * 100
    for payload in (LARGE, large):
        sent = await claims.producer.publish(f"{stream}.a", payload, content_type="text/plain")
        assert sent.reference

        async def look(received: Received, expected: bytes = payload) -> None:
            assert received.data == expected

        assert (await claims.store.head(sent.reference.object_key)).metadata["prism-namespace"] == world.name
        assert await claims.consumer.handle(await world.next(stream, "c"), look)
        assert not await claims.store.exists(sent.reference.object_key)
    orphan = await claims.producer.publish(f"{stream}.b", LARGE)
    assert orphan.reference
    await world.advance(3 * 3600)
    assert (await claims.collector.collect()).expired == 1
    assert not await claims.store.exists(orphan.reference.object_key)
    levels = {finding.level for finding in await claims.lint() if "bucket" in finding.about}
    assert "error" not in levels


async def test_gcs_buckets_and_rules_on_an_emulator(gcs: GcsEmulator) -> None:
    """Google's library against an emulator of its JSON API. The data path has no emulator: see docs/claims.md."""
    store: Any = open_store(ClaimConfig("ns", backend="gcs", bucket=bucket_name(), store=gcs.settings))
    assert not await store.bucket_exists()
    await store.ensure_bucket()
    assert await store.bucket_exists()
    wanted = store.lifecycle.wanted("ns", 2)
    assert [store.lifecycle.is_of(rule, "ns") for rule in wanted] == [True, True]
    assert not store.lifecycle.is_of(wanted[0], "other")
    await store.delete_bucket()
    assert not await store.bucket_exists()


class Policies:
    """Azure's management plane, as far as lifecycle policies go: it exists in the cloud only."""

    def __init__(self) -> None:
        self.document: dict[str, Any] | None = None

    def get(self, *_: str) -> Any:
        from azure.core.exceptions import ResourceNotFoundError

        if self.document is None:
            raise ResourceNotFoundError("ManagementPolicyNotFound")
        return self

    def as_dict(self) -> dict[str, Any]:
        assert self.document
        return self.document

    def create_or_update(self, *arguments: Any) -> None:
        self.document = arguments[-1]


async def test_azure_rules_are_merged_on_a_fake() -> None:
    from headrace.claims.stores.azure import AzureLifecycle

    policies = Policies()
    lifecycle = AzureLifecycle(policies, {"resource_group": "g", "account": "a"}, "claims")
    assert await lifecycles.ensure(lifecycle, "one", 1)
    assert await lifecycles.ensure(lifecycle, "two", 2)
    assert not await lifecycles.ensure(lifecycle, "two", 2)
    rules = await lifecycle.read()
    assert [rule["name"] for rule in rules] == ["headraceClaimsone", "headraceClaimstwo"]
    filters = rules[0]["definition"]["filters"]
    assert filters["prefix_match"] == ["claims/one/"]


async def test_google_rules_are_merged_on_a_fake() -> None:
    from headrace.claims.stores.gcs import GcsLifecycle

    class Bucket:
        def __init__(self) -> None:
            self.lifecycle_rules: list[Any] = [{"action": {"type": "Delete"}, "condition": {"age": 400}}]

        def get_bucket(self, _: str) -> Bucket:
            return self

        def patch(self) -> None:
            """Sent at once here."""

    class Store:
        bucket = "claims"

        def __init__(self) -> None:
            self._client = Bucket()

        async def call(self, work: Callable[[Any], Any]) -> Any:
            return work(self._client)

    lifecycle = GcsLifecycle(Store())  # type: ignore[arg-type]
    assert await lifecycles.ensure(lifecycle, "one", 1)
    assert await lifecycles.ensure(lifecycle, "two", 2)
    assert not await lifecycles.ensure(lifecycle, "one", 1)
    rules = await lifecycle.read()
    assert len(rules) == 5, "two for each of ours, and theirs"
