"""A bucket as a table, as its history and as a stream of changes; and writes to it."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.spark.kv.kv_datasource import KV_SCHEMA, KvDataSource
from spark.conftest import Broker, eventually


def bucket(broker: Broker, name: str, history: int, **config: Any) -> None:
    base = {"subjects": [f"$KV.{name}.>"], "max_msgs_per_subject": history, "allow_rollup_hdrs": True}
    times = {"allow_msg_ttl": True, "subject_delete_marker_ttl": 60_000_000_000}
    broker.create(f"KV_{name}", **{**base, **times, **config})


def changes(broker: Broker, name: str) -> None:
    """a: two values; b: deleted; c: purged; d: one value; e: deleted and put again."""
    deleted, purged = b"KV-Operation: DEL\r\n", b"KV-Operation: PURGE\r\nNats-Rollup: sub\r\n"
    history = [
        ("a", b"", b"1"),
        ("b", b"", b"2"),
        ("a", b"", b"3"),
        ("b", deleted, b""),
        ("c", b"", b"4"),
        ("c", purged, b""),
        ("d", b"", b"5"),
        ("e", b"", b"6"),
        ("e", deleted, b""),
        ("e", b"", b"7"),
    ]
    broker.publish(f"KV_{name}", [(f"$KV.{name}.{key}", lines, value) for key, lines, value in history])


def load(spark: SparkSession, broker: Broker, name: str, **options: Any) -> DataFrame:
    reader = spark.read.format("headrace_kv").option("servers", broker.url).option("bucket", name)
    return reader.options(**options).load()


@pytest.mark.parametrize("history", [1, 10])
def test_a_table_has_the_live_keys(broker: Broker, spark: SparkSession, name: str, history: int) -> None:
    bucket(broker, name, history)
    changes(broker, name)
    expected = [("a", b"3", 3), ("d", b"5", 7), ("e", b"7", 10)]
    found = load(spark, broker, name).select("key", "value", "revision").orderBy("key").collect()
    assert [tuple(row) for row in found] == expected
    if broker.server.is_ours:
        direct = load(spark, broker, name, path=broker.path)
        assert [
            tuple(row) for row in direct.select("key", "value", "revision").orderBy("key").collect()
        ] == expected
    one = load(spark, broker, name, keys="d").collect()
    assert [(row.key, row.operation) for row in one] == [("d", "put")]


def values(broker: Broker, name: str, **options: str) -> dict[str, tuple[int, bytes]]:
    """Return revision and value of each key of a table, read as a Spark task reads it."""
    reader = KvDataSource({"servers": broker.url, "bucket": name, **options}).reader(KV_SCHEMA)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return {row["key"]: (row["revision"], row["value"]) for row in rows}


def test_a_table_ends_at_its_ending(broker: Broker, name: str) -> None:
    bucket(broker, name, 10)
    broker.publish(f"KV_{name}", [(f"$KV.{name}.a", b"", b"1"), (f"$KV.{name}.b", b"", b"2")])
    middle = datetime.now(UTC).isoformat()
    broker.publish(f"KV_{name}", [(f"$KV.{name}.a", b"", b"3")])
    for options in [{}, {"path": broker.path}] if broker.server.is_ours else [{}]:
        for ending in ("3", middle):
            assert values(broker, name, ending=ending, **options) == {"a": (1, b"1"), "b": (2, b"2")}
        for ending in ("4", "latest", "9999-12-31T00:00:00Z"):
            assert values(broker, name, ending=ending, **options) == {"a": (3, b"3"), "b": (2, b"2")}


@pytest.mark.parametrize("ending", ["latest", "9", "9999-12-31T00:00:00Z"])
def test_a_key_that_is_rewritten_while_a_table_is_read_is_not_missed(
    broker: Broker, name: str, ending: str
) -> None:
    bucket(broker, name, 1)
    broker.publish(f"KV_{name}", [(f"$KV.{name}.a", b"", b"1")])
    reader = KvDataSource({"servers": broker.url, "bucket": name, "ending": ending}).reader(KV_SCHEMA)
    (part,) = reader.partitions()
    broker.publish(f"KV_{name}", [(f"$KV.{name}.a", b"", b"2")])
    assert [value for batch in reader.read(part) for value in batch["value"].to_pylist()] == [b"2"]


def test_a_mirror_has_the_keys_of_its_origin(broker: Broker, name: str) -> None:
    bucket(broker, name, 5)
    changes(broker, name)
    mirror = {"mirror": {"name": f"KV_{name}"}, "allow_direct": True, "max_msgs_per_subject": 5}
    copy = f"{name}longer"
    broker.api(f"STREAM.CREATE.KV_{copy}", {"name": f"KV_{copy}", **mirror})
    eventually(lambda: broker.state(f"KV_{copy}")["messages"] == broker.state(f"KV_{name}")["messages"])
    expected = {"a": (3, b"3"), "d": (7, b"5"), "e": (10, b"7")}
    for options in [{}, {"path": broker.path}] if broker.server.is_ours else [{}]:
        assert values(broker, copy, **options) == expected
        assert values(broker, copy, keys="d", **options) == {"d": (7, b"5")}
    feed = KvDataSource({"servers": broker.url, "bucket": copy, "starting": "earliest"}).streamReader(
        KV_SCHEMA
    )
    start = feed.initialOffset()
    parts = feed.partitions(start, feed.latestOffset(start))
    keys = [key for part in parts for batch in feed.read(part) for key in batch["key"].to_pylist()]
    assert keys == ["a", "b", "a", "b", "c", "d", "e", "e", "e"]


def test_history_and_changes_tell_what_happened(
    broker: Broker, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    bucket(broker, name, 10)
    changes(broker, name)
    expected = [
        ("a", "put", b"1"),
        ("b", "put", b"2"),
        ("a", "put", b"3"),
        ("b", "delete", None),
        ("c", "purge", None),
        ("d", "put", b"5"),
        ("e", "put", b"6"),
        ("e", "delete", None),
        ("e", "put", b"7"),
    ]
    history = load(spark, broker, name, mode="history").orderBy("revision").collect()
    assert [(row.key, row.operation, row.value) for row in history] == expected
    reader = spark.readStream.format("headrace_kv").option("servers", broker.url).option("bucket", name)
    feed = reader.option("starting", "earliest").load()
    seen: list[Any] = []
    writer = feed.writeStream.foreachBatch(lambda batch, _: seen.extend(batch.orderBy("revision").collect()))
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    assert writer.start().awaitTermination(250)
    assert [(row.key, row.operation, row.value) for row in seen] == expected


def test_rows_become_puts_deletes_and_purges(broker: Broker, spark: SparkSession, name: str) -> None:
    bucket(broker, name, 5)

    def write(rows: str, **options: Any) -> None:
        frame = spark.sql(f"select * from values {rows}")
        writer = frame.write.format("headrace_kv").mode("append").option("servers", broker.url)
        writer.option("bucket", name).options(**options).save()

    write(
        "('a', '1', 'put', '1h'), ('b', '2', 'put', '1h'), ('c', '3', null, null) as t(key, value, operation, ttl)"
    )
    write("('a', 'delete'), ('b', 'purge') as t(key, operation)")
    found = load(spark, broker, name, mode="history").orderBy("revision").collect()
    assert sorted((row.key, row.operation) for row in found) == [
        ("a", "delete"),
        ("a", "put"),
        ("b", "purge"),
        ("c", "put"),
    ]
    assert next(row for row in found if row.key == "a").expires_at is not None
    write("('d', '4') as t(key, value)", mode="create")
    with pytest.raises(PySparkException, match="key 'c' exists in bucket"):
        write("('c', '4') as t(key, value)", mode="create")
    write("('a', '5'), ('b', '6'), ('c', '7') as t(key, value)", mode="create", conflict="ignore")
    values = {row.key: row.value for row in load(spark, broker, name).collect()}
    assert values == {"a": b"5", "b": b"6", "c": b"3", "d": b"4"}, "deleted keys are created again"
    for _ in range(2):
        write("('e', '8') as t(key, value)", mode="create", writeId="once")
    write("('e'), ('d') as t(key)", mode="purge")
    assert {row.key for row in load(spark, broker, name).collect()} == {"a", "b", "c"}


def test_a_stream_of_changes_is_written_and_read(
    broker: Broker, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    """Changes of one bucket applied to another: put, delete, purge and expiry."""
    copy = f"{name}C"
    for each in (name, copy):
        bucket(broker, each, 5)
    changes(broker, name)
    broker.publish(f"KV_{name}", [(f"$KV.{name}.a", b"Nats-Marker-Reason: MaxAge\r\n", b"")])

    def keep_up(checkpoint: str = "checkpoint") -> None:
        reader = spark.readStream.format("headrace_kv").option("servers", broker.url).option("bucket", name)
        feed = reader.option("starting", "earliest").load().coalesce(1)
        writer = feed.writeStream.format("headrace_kv").queryName(f"{name} {checkpoint}")
        writer = writer.option("servers", broker.url).option("bucket", copy).option("writeId", "copy")
        writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(250)

    keep_up()
    expected = {row.key: row.value for row in load(spark, broker, name).collect()}
    assert set(expected) == {"d", "e"}
    assert {row.key: row.value for row in load(spark, broker, copy).collect()} == expected
    shutil.rmtree(tmp_path / "checkpoint" / "commits")
    before = broker.state(f"KV_{copy}")["last_seq"]
    keep_up()
    assert broker.state(f"KV_{copy}")["last_seq"] == before, "an epoch that is repeated changes nothing"
    keep_up("another")
    assert broker.state(f"KV_{copy}")["last_seq"] > before, "another query is no repetition"


def test_what_ran_out_is_told(broker: Broker, spark: SparkSession, name: str) -> None:
    """The value has a TTL; with `max_age` of the bucket, the marker would end as soon as the value."""
    bucket(broker, name, 1, subject_delete_marker_ttl=3600 * 10**9)
    broker.publish(f"KV_{name}", [(f"$KV.{name}.a", b"Nats-TTL: 1s\r\n", b"short")])
    eventually(lambda: broker.state(f"KV_{name}")["last_seq"] == 2)
    (row,) = load(spark, broker, name, mode="history").collect()
    assert (row.key, row.value, row.revision, row.operation) == ("a", None, 2, "expired")
    assert load(spark, broker, name).count() == 0


def test_what_is_wrong_with_a_bucket_is_said(ours: Broker, spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match=r"stream 'KV_nothing' on .*stream not found"):
        load(spark, ours, "nothing").collect()
    with pytest.raises(PySparkException, match="option `mode`: 'all' is not one of table, history"):
        load(spark, ours, "nothing", mode="all").collect()


def read_table(broker: Broker, name: str, **options: str) -> list[tuple[str, int, bytes]]:
    """Return key, revision and value of a table, sorted; keys are not removed if they are there twice."""
    reader = KvDataSource({"servers": broker.url, "bucket": name, **options}).reader(KV_SCHEMA)
    rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    return sorted((row["key"], row["revision"], row["value"]) for row in rows)


@pytest.mark.parametrize("history", [1, 10])
@pytest.mark.parametrize("allow_direct", [True, False], ids=["direct-get", "leader"])
def test_a_table_is_the_same_whatever_the_number_of_tasks(
    broker: Broker, name: str, history: int, allow_direct: bool
) -> None:
    bucket(broker, name, history, allow_direct=allow_direct)
    changes(broker, name)
    broker.publish(f"KV_{name}", [(f"$KV.{name}.k{n}", b"", b"%d" % n) for n in range(40)])
    ways = [{}, {"path": broker.path}, {"path": broker.web}] if broker.server.is_ours else [{}]
    for given in ways:
        for limits in ({}, {"starting": "8"}, {"ending": "20"}, {"ending": "99"}, {"keys": "k1"}):
            options = {**given, **limits}
            whole = read_table(broker, name, **options)
            assert read_table(broker, name, minPartitions="4", **options) == whole, options
    reader = KvDataSource({"servers": broker.url, "bucket": name, "minPartitions": "4"}).reader(KV_SCHEMA)
    parts = list(reader.partitions())
    assert len(parts) == 4
    counts = [sum(batch.num_rows for batch in reader.read(part)) for part in parts]
    assert sum(counts) == 43
    assert max(counts) < 43


@pytest.mark.parametrize("ending", ["latest", "99"])
def test_keys_that_are_rewritten_are_not_missed_by_several_tasks(
    broker: Broker, name: str, ending: str
) -> None:
    bucket(broker, name, 1)
    broker.publish(f"KV_{name}", [(f"$KV.{name}.k{n}", b"", b"old") for n in range(20)])
    given = {"servers": broker.url, "bucket": name, "ending": ending, "minPartitions": "3"}
    reader = KvDataSource(given).reader(KV_SCHEMA)
    parts = list(reader.partitions())
    broker.publish(f"KV_{name}", [(f"$KV.{name}.k{n}", b"", b"new") for n in range(20)])
    found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert sorted(row["key"] for row in found) == sorted(f"k{n}" for n in range(20))
    assert {row["value"] for row in found} == {b"new"}
