"""Claims audited and collected by Spark: needed claims stay, leaks are found, every removal is reported."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import pytest
from pyspark.sql import SparkSession

from claims.claims_harness import wait_until_stored
from headrace.claims import ClaimConfig, Claims, Ttl
from headrace.claims.jetstream_client import RequestTimeout
from headrace.claims.reference import make_key
from headrace.claims.stores import StaticAttributes
from headrace.reader.blocking_connection import ServerAddress
from headrace.reader.options import OptionError
from headrace.reader.stream_admin import StreamError
from headrace.spark import jobs
from headrace.spark.jobs.audit_claims import claim_lifetimes
from headrace.spark.jobs.collect_claims import _CollectTask, _JoinedRow
from spark.conftest import TIMEOUT_S, Broker

LARGE = b"x" * 5000
RETENTION_S = 1


def claimed(broker: Broker, config: ClaimConfig, work: Callable[[Claims], Awaitable[Any]]) -> Any:
    """Use claims on a separate connection."""

    async def done() -> Any:
        connection = await nats.connect(broker.url, connect_timeout=TIMEOUT_S)
        try:
            async with await Claims.open(connection, config, timeout_s=TIMEOUT_S) as claims:
                found = await work(claims)
                await wait_until_stored(connection)
                return found
        finally:
            await connection.close()

    return asyncio.run(done())


@pytest.fixture
def config(name: str, tmp_path: Path) -> ClaimConfig:
    store = {"path": str(tmp_path / "claims"), "sync": False}
    return ClaimConfig(name, threshold=1000, store=store, ttl=Ttl(3600, True, RETENTION_S, 0))


def objects(config: ClaimConfig) -> set[str]:
    root = Path(config.store["path"]) / config.bucket / config.namespace
    return {path.name for path in root.rglob("*") if path.is_file()}


def test_what_nobody_needs_is_collected(
    broker: Broker, spark: SparkSession, name: str, config: ClaimConfig, tmp_path: Path
) -> None:
    broker.create(name, allow_msg_ttl=True)
    consumer = {"durable_name": "c", "ack_policy": "explicit"}
    broker.api(f"CONSUMER.DURABLE.CREATE.{name}.c", {"stream_name": name, "config": consumer})

    async def live(claims: Claims) -> list[str]:
        """Three claims: one read, one whose message is removed, one unread; and two orphaned objects."""
        ids = []
        for each in ("read", "removed", "waiting"):
            sent = await claims.producer.publish(f"{name}.{each}", LARGE)
            assert sent.reference is not None
            ids.append(sent.reference.claim_id)
        await claims.jetstream.api_request(f"STREAM.MSG.DELETE.{name}", {"seq": 2})
        stream = claims.jetstream.connection.jetstream()
        (message,) = await (await stream.pull_subscribe_bind("c", name)).fetch(1, timeout=TIMEOUT_S)
        assert await claims.consumer.handle(message, _nothing)
        await claims.store.put(f"{name}/old/2020010100/old", b"x", StaticAttributes())
        await claims.store.put(f"{name}/new/2999010100/new", b"x", StaticAttributes())
        return ids

    read, removed, waiting = claimed(broker, config, live)
    over_s = time.monotonic() + RETENTION_S + 0.1
    source = {"servers": broker.url}
    dry = jobs.claims_collect(spark, source, config=config, dry_run=True)
    if "collected" not in dry.actions:  # on a fast machine
        time.sleep(max(over_s - time.monotonic(), 0))
        dry = jobs.claims_collect(spark, source, config=config, dry_run=True)
    assert dry.removed == dry.actions["collected"] + dry.actions["orphan"] == 2
    assert dry.actions == {"collected": 1, "released": 1, "live": 2, "orphan": 1}
    assert objects(config) == {read, removed, waiting, "old", "new"}, "a dry run deletes nothing"
    done = jobs.claims_collect(spark, source, config=config, target=str(tmp_path / "done"))
    over_s = time.monotonic() + RETENTION_S + 0.1
    assert done.actions == dry.actions
    assert done.freed_bytes == len(LARGE) + 1
    told = {row.claim_id: row.action for row in spark.read.parquet(str(tmp_path / "done")).collect()}
    assert told == {read: "collected", removed: "released", waiting: "live", "old": "orphan", "new": "live"}
    assert objects(config) == {removed, waiting, "new"}
    time.sleep(max(over_s - time.monotonic(), 0))
    again = jobs.claims_collect(spark, source, config=config, streams=[name])
    assert again.actions == {"collected": 1, "orphan": 1, "live": 1}, (
        "the caller guarantees that the named streams are all"
    )
    assert objects(config) == {waiting}

    async def events(claims: Claims) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        async for event in claims.audit.events(name):
            found.setdefault(event.claim_id, set()).add(event.event)
        return found

    trail = claimed(broker, config, events)
    assert trail[read] >= {"created", "retrieved", "released", "collected"}
    assert "collected" in trail[removed]
    assert trail[waiting] == {"created"}
    assert trail["old"] == {"expired"}

    summary = jobs.claims_audit(spark, source, str(tmp_path / "audit"), configs=[config])
    assert (summary.claims, summary.live, summary.ended, summary.leaks) == (5, 1, 4, 0)
    assert summary.live_bytes == len(LARGE)


def test_records_that_nobody_of_ours_wrote_delete_nothing_and_fail_no_job(
    broker: Broker, spark: SparkSession, name: str, config: ClaimConfig, tmp_path: Path
) -> None:
    broker.create(name, allow_msg_ttl=True)
    end, hour, claim_id = 1_700_000_000, "2023111422", "f0" * 16
    own = make_key(name, "a", end, claim_id)
    good = {
        "claim_id": claim_id,
        "namespace": name,
        "subject": "a",
        "bucket": config.bucket,
        "object_key": own,
        "original_size": 1,
        "stored_size": 1,
        "created_ns": 1,
        "expires_at": end,
    }
    victim, other = f"{name}/a/{hour}/{'0f' * 16}", "other-team/report.csv"
    broken: list[Any] = [
        {**good, "object_key": other},
        {**good, "object_key": victim},
        {**good, "bucket": "backups"},
        {**good, "places": {"X\r\nPUB injected 0\r\n": [1, "a"], "a b": [1, "a"]}},
        {**good, "created_ns": "yesterday"},
        {**good, "claim_id": 7},
        [],
        "junk",
    ]

    async def forged(claims: Claims) -> None:
        for key in (
            own,
            victim,
            other,
            f"{name}/a/notanhour/x",
            f"{name}/a/9999999999/x",
            f"{name}/x y/{hour}/z",
        ):
            await claims.store.put(key, b"precious", StaticAttributes())
        for number, document in enumerate(broken):
            subject = claim_id if number == 2 else f"{number:032x}"
            text = json.dumps(document).encode() if document != "junk" else b"\xffjunk"
            await claims.jetstream.publish(f"$CLAIMS.claim.{name}.{subject}", text)
        for text in (b"junk", b"[]", b'{"key":"x"}', b'{"expires_at":%d}' % 10**18, b'{"size":"many"}'):
            event = f"$CLAIMS.audit.{name}.{len(text):032x}.created"
            await claims.jetstream.publish(event, text)

    claimed(broker, config, forged)
    source = {"servers": broker.url}
    done = jobs.claims_collect(spark, source, config=config, target=str(tmp_path / "done"))
    told = spark.read.parquet(str(tmp_path / "done")).collect()
    assert done.actions["rejected"] == len(broken), [row.asDict() for row in told]
    left = objects(config)
    assert {claim_id, "0f" * 16, "z"} <= left, "facts name it, or no producer made it"
    assert (Path(config.store["path"]) / config.bucket / other).exists()
    summary = jobs.claims_audit(spark, source, str(tmp_path / "audit"), configs=[config])
    assert summary.claims >= 5


def test_a_claim_that_nobody_can_be_asked_about_fails_no_task(
    broker: Broker, name: str, config: ClaimConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(name, allow_msg_ttl=True)
    end, hidden, far = 200_000_000_000, "f0" * 16, "0f" * 16
    rows: list[_JoinedRow] = []

    async def collected(claims: Claims) -> dict[str, str]:
        for claim_id, stream in ((hidden, "SILENT"), (far, name)):
            own = make_key(name, "a", end, claim_id)
            facts = {
                "claim_id": claim_id,
                "namespace": name,
                "subject": "a",
                "bucket": config.bucket,
                "object_key": own,
                "original_size": 1,
                "stored_size": 1,
                "created_ns": 1,
                "expires_at": end,
                "state": "live",
                "places": {stream: [99, "a"]},
            }
            text, subject = json.dumps(facts).encode(), f"$CLAIMS.claim.{name}.{claim_id}"
            stored = await claims.jetstream.publish(subject, text)
            rows.append(_JoinedRow(own, text, subject, int(stored["seq"]), 1, 1, None))
        api = claims.jetstream.api_request

        async def answered(verb: str, body: Any = None) -> dict[str, Any]:
            if verb.endswith(".SILENT"):
                raise RequestTimeout("this user may not ask")
            return await api(verb, body)

        monkeypatch.setattr(claims.jetstream, "api_request", answered)
        worker = _CollectTask(
            ServerAddress(servers=(broker.url,)), config, streams_complete=False, dry_run=False
        )
        batch = await worker._collect(claims, rows)
        return dict(zip(batch["claim_id"].to_pylist(), batch["action"].to_pylist(), strict=True))

    assert claimed(broker, config, collected) == {hidden: "live", far: "released"}


async def _nothing(_: Any) -> None:
    """Succeed without doing anything."""


def publish(broker: Broker, config: ClaimConfig, subject: str) -> str:
    """Publish a claim; return its id."""

    async def published(claims: Claims) -> str:
        sent = await claims.producer.publish(subject, LARGE)
        assert sent.reference is not None
        return sent.reference.claim_id

    found: str = claimed(broker, config, published)
    return found


def test_what_only_later_consumers_have_passed_is_kept(
    ours: Broker, spark: SparkSession, name: str, config: ClaimConfig
) -> None:
    ours.create(name, allow_msg_ttl=True)
    publish(ours, config, f"{name}.a")
    consumer = {"durable_name": "tail", "ack_policy": "explicit", "deliver_policy": "new"}
    ours.api(f"CONSUMER.DURABLE.CREATE.{name}.tail", {"stream_name": name, "config": consumer})
    done = jobs.claims_collect(spark, {"servers": ours.url}, config=config, dry_run=True)
    assert done.actions == {"live": 1}


def test_a_stream_that_is_named_must_exist(
    ours: Broker, spark: SparkSession, name: str, config: ClaimConfig
) -> None:
    ours.create(name)
    claim = publish(ours, config, f"{name}.a")

    async def forgotten(claims: Claims) -> None:
        """Leave the state after two concurrent attempts of which one was undone."""
        await claims.jetstream.api_request("STREAM.PURGE.CLAIMS", {"filter": f"$CLAIMS.claim.{name}.*"})

    claimed(ours, config, forgotten)
    streams = [f"{name}s"]
    with pytest.raises(StreamError, match=streams[0]):
        jobs.claims_collect(spark, {"servers": ours.url}, config=config, streams=streams)
    assert objects(config) == {claim}


def test_a_domain_is_refused_where_claims_are_collected(spark: SparkSession, config: ClaimConfig) -> None:
    with pytest.raises(OptionError, match="domain"):
        jobs.claims_collect(spark, {"servers": "nats://127.0.0.1:1", "domain": "hub"}, config=config)


def test_the_life_of_each_claim_is_reported(
    ours: Broker,
    spark: SparkSession,
    pipeline: Callable[..., str],
    name: str,
    config: ClaimConfig,
    tmp_path: Path,
) -> None:
    """Every state once, from events and objects; on the command line, as a page without external resources."""

    async def stored(claims: Claims) -> None:
        future, past = "2999010100", "2020010100"
        for hour, claim in ((future, "live"), (past, "overdue"), (past, "undeleted"), (past, "orphan")):
            await claims.store.put(f"{name}/topic/{hour}/{claim}", b"x" * 100, StaticAttributes())
        for claim in ("live", "overdue", "undeleted", "ended", "vanished"):
            hour, end = (future, 32503680000) if claim in ("live", "vanished") else (past, 1577836800)
            facts = {"key": f"{name}/topic/{hour}/{claim}", "size": 200, "stored": 100, "expires_at": end}
            await claims.audit.record(name, claim, "created", **facts)
        for claim in ("undeleted", "ended"):
            await claims.audit.record(name, claim, "retrieved")
            await claims.audit.record(name, claim, "collected")

    claimed(ours, config, stored)
    settings = tmp_path / "claims.yaml"
    check = {"store": dict(config.store), "ttl": {"max_age": 3600, "grace_period": 0}}
    settings.write_text(json.dumps({"namespace": name, "claim_check": check}))
    target = tmp_path / "audit"
    told = pipeline("claims-audit", str(target), "-c", str(settings), "-s", ours.url)
    assert "6 claims: 1 live, 1 ended, 3 leaked (300 bytes), 1 vanished" in told
    told = pipeline("claims-collect", "-c", str(settings), "-s", ours.url, "--dry-run")
    assert told == "1 live, 3 orphan; would free 300 bytes\n"
    rows = {row.claim_id: row for row in spark.read.parquet(str(target / "claims")).collect()}
    assert {claim: row.status for claim, row in rows.items()} == {name: name for name in rows}
    assert (rows["ended"].ended_by, rows["ended"].reads, rows["ended"].original_size) == ("collected", 1, 200)
    assert rows["overdue"].topic == rows["orphan"].topic == "topic"
    assert rows["live"].lifetime_s >= 0
    page = (target / "report.html").read_text()
    assert page.count("<svg") == 4
    links = set(re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')\s>]*)""", page))
    assert not links, "nothing is loaded"
    assert json.loads((target / "summary.json").read_text())["leaks"] == 3


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_the_hour_of_a_key_is_utc_whatever_the_session_says(
    ours: Broker, spark: SparkSession, name: str, config: ClaimConfig, zone: str
) -> None:
    async def stored(claims: Claims) -> None:
        """Two orphaned objects, an upload in progress and an overdue one."""
        now = int(time.time())
        for end, claim in ((now + 5 * 3600, "young"), (now - 3 * 3600, "old")):
            await claims.store.put(make_key(name, f"{name}.x", end, claim), b"x", StaticAttributes())

    claimed(ours, config, stored)
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        lives = claim_lifetimes(spark, {"servers": ours.url}, [config]).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert {row.claim_id: row.status for row in lives} == {"young": "live", "old": "orphan"}
