"""Claims in a query: references as a column, payloads in the rows, and functions that run in the tasks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import nats
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from claims.claims_harness import wait_until_stored
from claims.object_stores import Weed
from headrace.claims import ClaimConfig, Claims, reference
from headrace.claims.ack_floors import list_reader_leases
from headrace.claims.jetstream_client import JetStreamClient
from headrace.reader import claim_reference_column
from headrace.reader.options import OptionError
from headrace.spark import resolve
from headrace.spark.jobs.object_inventory import list_objects
from headrace.spark.schema import CLAIM_TYPE
from spark.conftest import TIMEOUT_S, Broker, eventually, needs_batch_starts
from spark.test_batch_reader import Load

REFERENCE = reference.Reference("id1", "bucket", "ns/t/2026111500/id1", 5, "none", "c", 5, "s", 10, 20)


def test_the_column_is_what_a_reference_says() -> None:
    assert claim_reference_column.CLAIM_HEADER == reference.CLAIM_HEADER
    names = [name for name, _ in claim_reference_column.CLAIM_FIELDS]
    assert names == CLAIM_TYPE.names
    assert set(names) == set(asdict(REFERENCE)) - {"version"}


def test_what_is_no_reference_is_null() -> None:
    marked = [("prism-claim-check", ["true"])]
    headers = pa.array([None, marked, marked, marked], pa.map_(pa.string(), pa.list_(pa.string())))
    wrong = json.dumps({**asdict(REFERENCE), "original_size": "5"}).encode()
    found = claim_reference_column.make_claim_column(
        headers, pa.array([b"", b"junk", wrong, REFERENCE.encode()])
    ).to_pylist()
    assert found[:3] == [None, None, None]
    assert found[3]["object_key"] == "ns/t/2026111500/id1"


def test_references_are_read_by_both_paths(ours: Broker, load: Load, name: str) -> None:
    ours.create(name)
    marked = b"prism-claim-check: true\r\n"
    ours.publish(name, [(f"{name}.a", marked, REFERENCE.encode()), (f"{name}.b", b"", b"plain")])
    for options in ({}, {"path": ours.path}):
        first, second = load(ours, name, **options).select("seq", "claim").orderBy("seq").collect()
        assert (first.claim.claim_id, first.claim.original_size) == ("id1", 5)
        assert first.claim.expires_at.second == 20
        assert second.claim is None


async def published(url: str, config: ClaimConfig, stream: str, payloads: list[bytes]) -> None:
    connection = await nats.connect(url, connect_timeout=TIMEOUT_S)
    try:
        async with await Claims.open(connection, config, timeout_s=TIMEOUT_S) as opened:
            for number, payload in enumerate(payloads):
                await opened.producer.publish(f"{stream}.{number}", payload, headers={"No": str(number)})
            await wait_until_stored(connection)
    finally:
        await connection.close()


async def _floors(url: str, stream: str) -> list[int]:
    connection = await nats.connect(url, connect_timeout=TIMEOUT_S)
    try:
        wire = JetStreamClient(connection, timeout_s=TIMEOUT_S)
        try:
            return [floor.ack_floor for floor in await list_reader_leases(wire, stream)]
        finally:
            await wire.close()
    finally:
        await connection.close()


@pytest.fixture
def weed() -> Iterator[Weed]:
    running = Weed()
    yield running
    running.close()


@pytest.fixture
def config(name: str, tmp_path: Path) -> ClaimConfig:
    return ClaimConfig(name, threshold=1000, compression="gzip", store={"path": str(tmp_path / "claims")})


@pytest.fixture
def settings(config: ClaimConfig, tmp_path: Path) -> str:
    """The configuration as a file."""
    path = tmp_path / "claims.yaml"
    check = {"threshold": 1000, "compression": "gzip", "store": dict(config.store)}
    path.write_text(json.dumps({"namespace": config.namespace, "claim_check": check}))
    return str(path)


@pytest.fixture
def stocked(broker: Broker, name: str, config: ClaimConfig) -> list[bytes]:
    """A stream with three claims and a small message between them."""
    broker.create(name, allow_msg_ttl=True)
    payloads = [b"a" * 5000, b"small", b"b" * 70_000, b"c" * 2000]
    asyncio.run(published(broker.url, config, name, payloads))
    return payloads


def test_payloads_come_in_the_rows(
    broker: Broker, load: Load, name: str, stocked: list[bytes], settings: str
) -> None:
    for path in ("", broker.path) if broker.server.is_ours else ("",):
        options = {"path": path} if path else {}
        rows = load(broker, name, claims="inline", claimConfig=settings, **options).orderBy("seq").collect()
        assert [row.data for row in rows] == stocked
        assert [row.headers["No"] for row in rows] == [["0"], ["1"], ["2"], ["3"]]
        assert not any(claim_reference_column.CLAIM_HEADER in row.headers for row in rows), (
            "they are claims no more"
        )
        assert [row.claim is not None for row in rows] == [True, False, True, True]
    few = load(
        broker, name, claims="inline", claimConfig=settings, claimErrors="column", maxClaimBytes="10KB"
    )
    told = few.select("data", "claim_error").orderBy("seq").collect()
    assert [row.data for row in told] == [stocked[0], stocked[1], None, stocked[3]]
    assert "too-large: " in told[2].claim_error


def test_a_function_runs_where_the_payloads_are(
    broker: Broker, load: Load, name: str, stocked: list[bytes], config: ClaimConfig
) -> None:
    frame = load(broker, name)
    found = resolve(frame, lambda data, no: [len(data), no], "array<bigint>", claims=config, columns=["seq"])
    assert [row.result for row in found.orderBy("seq").collect()] == [
        [len(payload), seq] for seq, payload in enumerate(stocked, 1)
    ]
    store = Path(config.store["path"])
    largest = max((path for path in store.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    largest.unlink()
    lacking = resolve(frame.select("headers", "data"), len, "int", claims=config, errors="column")
    sizes = [(row.result, (row.claim_error or "").partition(":")[0]) for row in lacking.collect()]
    assert sorted(sizes, key=str) == sorted([(5000, ""), (5, ""), (None, "not-found"), (2000, "")], key=str)
    with pytest.raises(PySparkException, match="is not in the store"):
        resolve(frame, len, "int", claims=config).collect()
    with pytest.raises(OptionError, match="there is no column 'headers'"):
        resolve(frame.select("claim", "data"), len, "int", claims=config)


@needs_batch_starts
def test_what_a_query_may_read_again_is_protected(
    broker: Broker, spark: SparkSession, name: str, stocked: list[bytes], settings: str, tmp_path: Path
) -> None:
    reader = spark.readStream.format("headrace").option("servers", broker.url).option("stream", name)
    frame = reader.options(starting="earliest", claims="inline", claimConfig=settings, claimReader="q").load()
    floors: list[int] = []
    seen: list[bytes] = []

    def batch(rows: DataFrame, _: int) -> None:
        floors.extend(asyncio.run(_floors(broker.url, name)))
        seen.extend(row.data for row in rows.orderBy("seq").collect())

    writer = frame.writeStream.foreachBatch(batch).option("checkpointLocation", str(tmp_path / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(250)
    assert seen == stocked
    assert floors == [0], "nothing is finished while the first batch runs"
    eventually(lambda: asyncio.run(_floors(broker.url, name)) == [len(stocked)])


def test_what_is_wrong_with_claims_is_said_at_once(ours: Broker, load: Load, tmp_path: Path) -> None:
    for options, complaint in (
        ({"claims": "all"}, "is neither ref .* nor inline"),
        ({"claims": "inline"}, "option `claimConfig` is missing"),
        ({"claims": "inline", "claimConfig": str(tmp_path / "none.yaml")}, "there is no such file"),
        (
            {"claims": "inline", "claimConfig": "namespace: n\nclaim_check: {backend: memory}"},
            "other processes cannot read it",
        ),
    ):
        with pytest.raises(PySparkException, match=complaint):
            load(ours, "STAYS", **options)


def test_payloads_are_in_an_object_store(
    ours: Broker, load: Load, spark: SparkSession, name: str, weed: Weed
) -> None:
    """Tasks are forked processes, and the client of an object store has threads: each task creates its own."""
    ours.create(name)
    config = ClaimConfig(name, backend="s3", bucket=name.lower(), threshold=1000, store=weed.settings)
    payloads = [bytes([number]) * 200_000 for number in range(20)]
    asyncio.run(published(ours.url, config, name, payloads))
    found = resolve(
        load(ours, name, minPartitions=4), lambda data: data[0] * len(data), "bigint", claims=config
    )
    assert [row.result for row in found.orderBy("seq").collect()] == [
        number * 200_000 for number in range(20)
    ]
    objects = list_objects(spark, [config])
    assert objects.selectExpr("count(*)", "sum(size)").first() == (20, 4_000_000)
