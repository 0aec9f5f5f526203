"""Lifecycle rules of buckets: on a real S3 server, and on emulators and fakes as far as they support them."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError

from claims.claims_harness import LARGE, ClaimsHarness
from claims.object_stores import GcsEmulator, Weed
from headrace.claims import (
    PRESETS,
    ClaimConfig,
    Claims,
    MemoryStore,
    Received,
    Ttl,
    open_store,
)
from headrace.claims.stores import AccessDenied, ObjectStoreError, StaticAttributes
from headrace.claims.stores import lifecycle as lifecycles
from headrace.claims.stores.azure import AzureLifecycle
from headrace.claims.stores.s3 import S3Store


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
    assert await lifecycles.ensure_rules(store.lifecycle, "one", 1)
    assert await lifecycles.ensure_rules(store.lifecycle, "two", 2)
    assert not await lifecycles.ensure_rules(store.lifecycle, "one", 1)
    rules = {rule["ID"]: rule for rule in await store.lifecycle.read()}
    assert rules["logs"]["Expiration"]["Days"] == 30
    assert rules["headrace-claims-one"]["Expiration"]["Days"] == 1
    assert rules["headrace-claims-two"]["Expiration"]["Days"] == 2
    assert rules["headrace-uploads-two"]["AbortIncompleteMultipartUpload"]["DaysAfterInitiation"] == 1
    await store.close()


async def test_s3_the_bucket_rule_removes_what_everybody_missed(weed: Weed) -> None:
    """Run lifecycle rules on demand; a date in the past stands for days that have passed."""
    store = await s3(weed)
    await store.put("ns/t/2026010100/old", b"x", StaticAttributes())
    await store.put("other/t/2026010100/kept", b"x", StaticAttributes())
    (rule, _) = store.lifecycle.make_rules("ns", 1)
    await store.lifecycle.write([{**rule, "Expiration": {"Date": datetime(2026, 1, 1, tzinfo=UTC)}}])
    said = await asyncio.to_thread(weed.run_lifecycle)
    assert not await store.exists("ns/t/2026010100/old"), said
    assert await store.exists("other/t/2026010100/kept")
    await store.close()


async def test_s3_days_that_pass_end_what_no_collector_saw(weed: Weed, world: ClaimsHarness) -> None:
    """Nobody collects: after three days the bucket's rules remove the claim and the interrupted upload, nothing else.

    The next collector then removes the records from the registry.
    """
    since = time.time()
    settings = {"backend": "s3", "bucket": bucket_name(), "store": weed.settings}
    claims = await world.claims(ttl=PRESETS["aggressive"], **settings)
    other = await world.claims(ttl=Ttl(max_age=10 * 86400), namespace=f"{world.name}other", **settings)
    stream = await world.stream()
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    kept = await other.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    assert kept.reference
    store: Any = claims.store
    half = f"{world.name}/t/2026010100/half"
    await store.call_admin("create_multipart_upload", Bucket=store.bucket, Key=half)
    await asyncio.to_thread(weed.age, store.bucket, 3, since)
    said = await asyncio.to_thread(weed.run_lifecycle)
    assert not await store.exists(sent.reference.object_key), said
    assert not await store.uploads()
    assert await store.exists(kept.reference.object_key), "its namespace keeps claims for longer"
    await world.pass_ttl(claims, sent, 2 * 3600)
    assert (await claims.collector.collect()).expired == 1
    assert await claims.registry.find(world.name, sent.reference.claim_id) is None


@pytest.mark.parametrize("world", ["nats-server"], indirect=True)  # its time starts with the store's
async def test_s3_uploads_that_were_cut_off_are_swept_by_their_true_age(
    weed: Weed, world: ClaimsHarness
) -> None:
    since = time.time()
    settings = {"backend": "s3", "bucket": bucket_name(), "store": weed.settings}
    claims = await world.claims(ttl=PRESETS["aggressive"], **settings)
    store: Any = claims.store
    for key in ("ours", "young"):
        await store.call_admin(
            "create_multipart_upload", Bucket=store.bucket, Key=f"{world.name}/t/2026010100/{key}"
        )
    await store.call_admin("create_multipart_upload", Bucket=store.bucket, Key="theirs/t/2026010100/old")
    assert (await claims.collector.collect()).uploads == 0, "all are young"
    await world.advance(3601)
    assert (await claims.collector.collect(dry_run=True)).uploads == 2
    assert len(await store.uploads()) == 3
    assert (await claims.collector.collect()).uploads == 2
    assert [upload.key for upload in await store.uploads()] == ["theirs/t/2026010100/old"]
    assert time.time() - since < 3600


async def test_s3_abandoned_uploads_are_known_with_their_age(weed: Weed) -> None:
    store = await s3(weed)
    await store.call_admin("create_multipart_upload", Bucket=store.bucket, Key="ns/t/2026010100/half")
    (upload,) = await store.uploads()
    assert upload.key == "ns/t/2026010100/half"
    age_s = datetime.now(UTC).timestamp() - upload.initiated_ns / 1e9
    assert -5 < age_s < 60
    assert upload.belongs_to("ns")
    assert not upload.belongs_to("n")
    await store.abort(upload)
    await store.abort(upload)
    assert not await store.uploads()
    await store.close()


@pytest.mark.parametrize("name", ["s3", "azure", "gcs", "memory"])
async def test_claims_on_a_real_store(
    world: ClaimsHarness, settings_of: Callable[[str], dict[str, Any]], name: str
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


async def test_s3_objects_carry_their_end_as_a_tag(weed: Weed, world: ClaimsHarness) -> None:
    claims = await world.claims(backend="s3", bucket=bucket_name(), store=weed.settings)
    stream = await world.stream()
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    assert sent.reference
    store: Any = claims.store
    answer = await store.call_admin("get_object_tagging", Bucket=store.bucket, Key=sent.reference.object_key)
    assert answer["TagSet"] == [{"Key": "expires-at", "Value": str(sent.reference.expires_at)}]


@pytest.mark.parametrize("name", ["s3", "azure"])
async def test_wrong_credentials_are_named_and_a_start_with_them_fails(
    world: ClaimsHarness, settings_of: Callable[[str], dict[str, Any]], name: str
) -> None:
    """A producer that cannot store or clean up must not start; a reader may succeed later."""
    settings = settings_of(name)
    secret = {
        "s3": {"secret_access_key": "wrong"},
        "azure": {"access_key": b64encode(b"wrong" * 13).decode()},
    }
    settings["store"] = {**settings["store"], **secret[name], "retries": 0}
    with pytest.raises(ObjectStoreError):
        await world.claims(bucket=bucket_name(), **settings)
    store = open_store(ClaimConfig("ns", bucket=bucket_name(), **settings))
    with pytest.raises(AccessDenied):
        await store.put("ns/t/2026010100/x", b"x", StaticAttributes())
    with pytest.raises(AccessDenied):
        await store.get("ns/t/2026010100/x")
    await store.close()


async def test_lint_looks_at_the_bucket_and_its_rules(weed: Weed, world: ClaimsHarness) -> None:
    settings = {"backend": "s3", "bucket": bucket_name(), "store": {**weed.settings, "retries": 0}}
    config = ClaimConfig(world.name, **settings)
    claims = Claims(world.connection, config)
    world.opened.append(claims)
    await claims.registry.ensure()

    async def errors() -> list[str]:
        return [item.text for item in await claims.lint() if item.level == "error"]

    assert any("does not exist" in text for text in await errors())
    await claims.set_up()
    assert await errors() == []
    lifecycle: Any = claims.store.lifecycle
    for rules in ([], lifecycle.make_rules(world.name, 7)):
        if rules:
            await lifecycle.write(rules)
        else:
            await claims.store.call_admin("delete_bucket_lifecycle", Bucket=config.bucket)  # type: ignore[attr-defined]
        assert any("missing or not 2 days" in text for text in await errors())
    await claims.set_up()
    assert await errors() == [], "a start repairs it"
    away = {**settings, "store": {**settings["store"], "endpoint": "http://127.0.0.1:1"}}
    lost = Claims(world.connection, ClaimConfig(world.name, **away))
    world.opened.append(lost)
    assert any("cannot be reached" in item.text for item in await lost.lint())


async def test_gcs_buckets_and_rules_on_an_emulator(gcs: GcsEmulator) -> None:
    """Google's library with an emulator of its JSON API."""
    store: Any = open_store(ClaimConfig("ns", backend="gcs", bucket=bucket_name(), store=gcs.settings))
    assert not await store.bucket_exists()
    await store.ensure_bucket()
    assert await store.bucket_exists()
    theirs = {"action": {"type": "Delete"}, "condition": {"age": 400}}
    await store.lifecycle.write([theirs])
    assert await lifecycles.ensure_rules(store.lifecycle, "one", 1)
    assert await lifecycles.ensure_rules(store.lifecycle, "two", 2)
    assert not await lifecycles.ensure_rules(store.lifecycle, "one", 1), "nothing to do"
    assert await lifecycles.ensure_rules(store.lifecycle, "one", 3)
    rules = await store.lifecycle.read()
    assert theirs in rules
    ages = {
        tuple(rule["condition"].get("matchesPrefix", ())): rule["condition"]["age"]
        for rule in rules
        if rule["action"]["type"] == "Delete"
    }
    assert ages == {(): 400, ("one/",): 3, ("two/",): 2}
    await store.delete_bucket()
    assert not await store.bucket_exists()


class Management(BaseHTTPRequestHandler):
    """A fake of Azure's management API, as far as lifecycle policies need it: the API exists only in the cloud.

    Keeps the documents that it receives.
    """

    protocol_version = "HTTP/1.1"
    server: Any

    def do_GET(self) -> None:
        missing = {"error": {"code": "ManagementPolicyNotFound", "message": "there is none"}}
        found = self.server.documents.get(urlsplit(self.path).path)
        self._answer(200 if found else 404, found or missing)

    def do_PUT(self) -> None:
        document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for rule in document["properties"]["policy"]["rules"]:
            if not rule["name"].isalnum() or "baseBlob" not in rule["definition"]["actions"]:
                return self._answer(400, {"error": {"code": "InvalidRequest", "message": rule["name"]}})
        self.server.documents[urlsplit(self.path).path] = document
        self._answer(200, document)

    def _answer(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def management() -> Iterator[Any]:
    """Azure's own library with a fake service."""
    from azure.core.credentials import AccessToken
    from azure.core.pipeline.policies import SansIOHTTPPolicy
    from azure.mgmt.storage import StorageManagementClient

    class Credential:
        def get_token(self, *_: str, **__: Any) -> AccessToken:
            return AccessToken("none", 2**40)

    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Management)
    server.daemon_threads = True
    server.documents = {}
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    base_url = f"http://127.0.0.1:{server.server_address[1]}"
    client = StorageManagementClient(
        Credential(),
        "subscription",
        base_url=base_url,
        authentication_policy=SansIOHTTPPolicy(),
        retry_total=0,
    )
    yield client.management_policies
    client.close()
    server.shutdown()
    server.server_close()
    thread.join()


async def test_azure_rules_are_merged_by_azures_library_on_a_fake_service(management: Any) -> None:
    lifecycle = AzureLifecycle(management, {"resource_group": "g", "account": "a"}, "claims")
    theirs = {
        "name": "logs",
        "enabled": True,
        "type": "Lifecycle",
        "definition": {
            "actions": {"baseBlob": {"delete": {"daysAfterModificationGreaterThan": 400}}},
            "filters": {"blobTypes": ["blockBlob"], "prefixMatch": ["logs/"]},
        },
    }
    assert await lifecycle.read() == []
    await lifecycle.write([theirs])
    for namespace, days in (("one", 1), ("a-b", 2), ("ab", 3)):
        assert await lifecycles.ensure_rules(lifecycle, namespace, days)
        assert not await lifecycles.ensure_rules(lifecycle, namespace, days), "nothing to do"
    rules = await lifecycle.read()
    assert theirs in rules
    found = {
        rule["definition"]["filters"]["prefixMatch"][0]: rule["definition"]["actions"]["baseBlob"]["delete"]
        for rule in rules
    }
    assert {prefix: item["daysAfterModificationGreaterThan"] for prefix, item in found.items()} == {
        "logs/": 400,
        "claims/one/": 1,
        "claims/a-b/": 2,
        "claims/ab/": 3,
    }
    assert len({rule["name"] for rule in rules}) == 4


async def test_azures_refusal_is_a_store_error(management: Any) -> None:
    lifecycle = AzureLifecycle(management, {"resource_group": "g", "account": "a"}, "claims")
    with pytest.raises(ObjectStoreError, match="lifecycle policy"):
        await lifecycle.write([{"name": "not-allowed"}])


class Bucketless:
    """Administration of an S3 without a bucket; records the bucket that is created."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}

    def head_bucket(self, **_: Any) -> Any:
        raise ClientError({"Error": {"Code": "404"}}, "HeadBucket")

    def create_bucket(self, **given: Any) -> None:
        self.made = given

    def close(self) -> None:
        """Do nothing: nothing is open."""


@pytest.mark.parametrize(
    ("settings", "region"),
    [
        ({"region": "eu-central-1"}, "eu-central-1"),
        ({"region": "eu-west-1", "endpoint": "https://s3.eu-west-1.amazonaws.com"}, "eu-west-1"),
        ({}, ""),
        ({"region": "us-east-1"}, ""),
        ({"region": "here", "endpoint": "http://127.0.0.1:9000"}, ""),
    ],
)
async def test_s3_amazon_receives_the_region_of_a_bucket(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], region: str
) -> None:
    administration = Bucketless()
    monkeypatch.setattr("boto3.client", lambda *_, **__: administration)
    await S3Store("claims", None, settings).ensure_bucket()
    told = administration.made.get("CreateBucketConfiguration", {})
    assert told.get("LocationConstraint", "") == region


class Busy:
    """Administration of an S3 with more uploads in progress than one reply lists."""

    def list_multipart_uploads(self, *, KeyMarker: str = "", **_: Any) -> dict[str, Any]:
        begun = datetime(2020, 1, 1, tzinfo=UTC)
        keys = [
            key for key in (*(f"aaa/{n:04d}" for n in range(1000)), "mine/t/2026010100/x") if key > KeyMarker
        ]
        page = [{"Key": key, "UploadId": f"id of {key}", "Initiated": begun} for key in keys[:1000]]
        last = page[-1]
        more = {"NextKeyMarker": last["Key"], "NextUploadIdMarker": last["UploadId"]}
        return {"Uploads": page, "IsTruncated": len(keys) > 1000, **more}


async def test_s3_all_pages_of_uploads_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boto3.client", lambda *_, **__: Busy())
    found = await S3Store("claims", None, {}).uploads()
    assert len(found) == 1001
    assert found[-1].belongs_to("mine")


@pytest.mark.parametrize(("preset", "days"), [("aggressive", 1), ("conservative", 2), ("redelivery", 1)])
def test_lifecycle_days_are_never_zero(preset: str, days: int) -> None:
    assert ClaimConfig("ns", ttl=PRESETS[preset]).lifecycle_days == days


def test_lifecycle_days_last_as_long_as_consumers_may_read() -> None:
    ttl = Ttl(24 * 3600, True, 0, 0)
    assert ClaimConfig("ns", ttl=ttl, clock_skew=3600).lifecycle_days == 2
    assert ClaimConfig("ns", ttl=ttl, clock_skew=0).lifecycle_days == 1


async def test_rules_of_others_stay(world: ClaimsHarness) -> None:
    lifecycle = MemoryStore().lifecycle
    foreign = {"id": "theirs", "prefix": "logs/", "days": 30}
    await lifecycle.write([foreign])
    assert await lifecycles.ensure_rules(lifecycle, "one", 1)
    assert await lifecycles.ensure_rules(lifecycle, "two", 2)
    assert not await lifecycles.ensure_rules(lifecycle, "one", 1), "nothing to do"
    assert await lifecycles.ensure_rules(lifecycle, "one", 3)
    rules = await lifecycle.read()
    assert foreign in rules
    assert sorted((rule["id"], rule["days"]) for rule in rules if rule is not foreign) == [
        ("headrace-claims-one", 3),
        ("headrace-claims-two", 2),
        ("theirs", 30),
    ]


async def test_rules_that_do_not_stick_are_noticed() -> None:
    class Forgetful(type(MemoryStore().lifecycle)):  # type: ignore[misc]
        async def write(self, rules: Any) -> None:
            """Accept a document and discard it."""

    with pytest.raises(ObjectStoreError, match="are not in the bucket"):
        await lifecycles.ensure_rules(Forgetful(), "ns", 1)
