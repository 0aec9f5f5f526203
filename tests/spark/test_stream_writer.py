"""A DataFrame written to a stream: every row once, whatever Spark repeats."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import DataStreamWriter

from spark.conftest import Broker, make_batch_limit

Load = Callable[..., DataFrame]


def sink(broker: Broker, name: str, **config: Any) -> None:
    broker.create(name, allow_atomic=True, **config)


def stored(broker: Broker, load: Load, name: str) -> list[int]:
    found = load(broker, name, subject=f"{name}.>").select("data").collect()
    return sorted(int(row.data) for row in found)


def write(frame: DataFrame, broker: Broker, name: str, **options: Any) -> None:
    writer = frame.write.format("headrace").mode("append").option("servers", broker.url)
    writer.option("stream", name).options(**options).save()


def test_a_table_is_written_with_all_that_belongs_to_its_messages(
    broker: Broker, load: Load, spark: SparkSession, name: str
) -> None:
    sink(broker, name, allow_msg_ttl=True)
    expression = f"'{name}.' || id % 3 as subject, cast(id as string) as data"
    headers = "map('A', array('1', cast(id as string))) as headers, '1h' as ttl"
    write(spark.sql(f"select {expression}, {headers} from range(0, 2500, 1, 2)"), broker, name)
    assert stored(broker, load, name) == list(range(2500))
    row = load(broker, name, subject=f"{name}.1").filter("data = '7'").first()
    assert row is not None
    assert row.headers["A"] == ["1", "7"]
    assert (row.expires_at - row.time).total_seconds() == 3600


def test_a_batch_write_with_a_name_is_written_once(
    broker: Broker, load: Load, spark: SparkSession, name: str
) -> None:
    sink(broker, name)
    frame = spark.sql(f"select '{name}.x' as subject, cast(id as string) as data from range(0, 3000, 1, 2)")
    for _ in range(2):
        write(frame, broker, name, writeId="import-7")
    assert stored(broker, load, name) == list(range(3000))


def test_a_batch_write_with_a_used_name_and_other_rows_is_an_error(
    ours: Broker, load: Load, spark: SparkSession, name: str
) -> None:
    sink(ours, name)

    def import_all(rows: int, partitions: int) -> None:
        table = f"range(0, {rows}, 1, {partitions})"
        frame = spark.sql(f"select '{name}.x' as subject, cast(id as string) as data from {table}")
        write(frame, ours, name, writeId="import-7")

    import_all(30, 3)
    import_all(30, 2)
    with pytest.raises(
        PySparkException, match="'import-7' was completed with 30 rows, and this write has 40"
    ):
        import_all(40, 2)
    assert stored(ours, load, name) == list(range(30))


def test_a_stream_without_atomic_batches_is_written_once_too(
    broker: Broker, load: Load, spark: SparkSession, name: str
) -> None:
    broker.create(name)
    frame = spark.sql("select cast(id as string) as data from range(0, 3000, 1, 2)")
    for _ in range(2):
        write(frame, broker, name, writeId="import-7", subject=f"{name}.x")
    assert stored(broker, load, name) == list(range(3000))


def test_rows_are_deduplicated_by_their_ids(
    broker: Broker, load: Load, spark: SparkSession, name: str
) -> None:
    broker.create(name)
    columns = f"'{name}.x' as subject, cast(id as string) as data, 'row-' || id as msg_id"
    for partitions in (2, 3):
        frame = spark.sql(f"select {columns} from range(0, 1500, 1, {partitions})").orderBy(f.rand())
        write(frame, broker, name, exactlyOnce="ids")
    assert stored(broker, load, name) == list(range(1500))


def test_at_least_once_needs_no_other_stream(
    ours: Broker, load: Load, spark: SparkSession, name: str
) -> None:
    ours.create(name)
    frame = spark.sql(f"select '{name}.x' as subject, cast(id as string) as data from range(0, 1500, 1, 2)")
    write(frame, ours, name, atLeastOnce="true")
    assert stored(ours, load, name) == list(range(1500))
    assert not [each for each in ours.api("STREAM.NAMES")["streams"] if each.endswith(f"_{name}")]


def copied(
    spark: SparkSession,
    broker: Broker,
    origin: str,
    name: str,
    checkpoint: Path,
    partitions: int,
    **options: Any,
) -> None:
    """Run a streaming query from one stream to another, in another order and division each time."""
    reader = spark.readStream.format("headrace").option("servers", broker.url).option("stream", origin)
    frame = reader.options(starting="earliest", minPartitions=partitions, **make_batch_limit(400)).load()
    shuffled = frame.selectExpr(f"'{name}.x' as subject", "data").repartition(partitions, f.rand())
    run_query(shuffled.writeStream, broker, name, checkpoint, **options)


def run_query(writer: DataStreamWriter, broker: Broker, name: str, checkpoint: Path, **options: Any) -> None:
    """Run a streaming query for everything that is available now."""
    writer = writer.format("headrace").option("servers", broker.url).option("stream", name).options(**options)
    query = writer.trigger(availableNow=True).option("checkpointLocation", str(checkpoint)).start()
    assert query.awaitTermination(250)


def forget_last_commit(checkpoint: Path) -> None:
    """Remove Spark's last commit, as a crash between the sink's writes and that commit would."""
    epoch = max(int(each.name) for each in (checkpoint / "commits").glob("[0-9]*"))
    for forgotten in (f"{epoch}", f".{epoch}.crc"):
        (checkpoint / "commits" / forgotten).unlink(missing_ok=True)


def test_an_epoch_repeated_from_the_checkpoint_in_another_order_writes_nothing_twice(
    broker: Broker, load: Load, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    origin = f"{name}O"
    broker.create(origin)
    broker.fill(origin, 700)
    sink(broker, name)
    copied(spark, broker, origin, name, tmp_path, 2)
    assert stored(broker, load, name) == list(range(700))
    forget_last_commit(tmp_path)
    copied(spark, broker, origin, name, tmp_path, 3)
    assert stored(broker, load, name) == list(range(700))


@pytest.mark.parametrize("step", ["before the record", "after the record", "after the rows"])
def test_a_driver_that_fails_in_the_commit_continues_with_other_partitions(
    broker: Broker, load: Load, spark: SparkSession, name: str, tmp_path: Path, step: str
) -> None:
    """The streams of the sink are made unusable at one step of the commit, and repaired for the restart."""
    origin = f"{name}O"
    broker.create(origin)
    broker.fill(origin, 300)
    sink(broker, name)
    blocked = {
        "before the record": f"SPARK_PROGRESS_{name}",
        "after the record": name,
        "after the rows": f"SPARK_STAGING_{name}",
    }[step]
    copied(spark, broker, origin, name, tmp_path, 2)
    broker.fill(origin, 300, 300)
    config = broker.api(f"STREAM.INFO.{blocked}")["config"]
    if step == "after the rows":
        broker.api(f"STREAM.UPDATE.{blocked}", {**config, "deny_purge": True})
        copied(spark, broker, origin, name, tmp_path, 3, queryName=f"q{name}")
        forget_last_commit(tmp_path)
    else:
        sealed = {**config, "max_msgs": broker.state(blocked)["messages"], "discard": "new"}
        if step == "before the record":
            sealed["max_msgs_per_subject"] = -1
        broker.api(f"STREAM.UPDATE.{blocked}", sealed)
        with pytest.raises(PySparkException, match="rejected a"):
            copied(spark, broker, origin, name, tmp_path, 3)
        broker.api(f"STREAM.UPDATE.{blocked}", config)
    copied(spark, broker, origin, name, tmp_path, 2)
    assert stored(broker, load, name) == list(range(600))


def test_a_stateful_query_with_a_name_that_is_repeated_writes_every_row_once(
    ours: Broker, load: Load, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    origin = f"{name}O"
    ours.create(origin)
    ours.fill(origin, 500)
    sink(ours, name)
    reader = spark.readStream.format("headrace").option("servers", ours.url).option("stream", origin)
    distinct = reader.option("starting", "earliest").load().dropDuplicates(["data"])
    frame = distinct.selectExpr(f"'{name}.x' as subject", "data")
    for attempt in range(2):
        if attempt:
            forget_last_commit(tmp_path)
        run_query(frame.writeStream, ours, name, tmp_path, queryName=f"q{name}")
    assert stored(ours, load, name) == list(range(500))


def test_a_killed_task_leaves_nothing_that_counts(
    broker: Broker, load: Load, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    """The Python process that produces the rows is killed once, in the middle of them: the sink sees a broken pipe."""
    sink(broker, name)
    marker = tmp_path / "killed"

    def die_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 3 and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    frame = spark.range(0, 90_000, 1, 1).selectExpr(f"'{name}.x' as subject", "cast(id as string) as data")
    dying = frame.mapInArrow(die_once, "subject string, data string")
    with pytest.raises(Py4JJavaError, match="Python worker exited unexpectedly"):
        write(dying, broker, name, writeId="w")
    assert marker.exists()
    assert broker.state(name)["messages"] == 0, "a task that did not finish counts for nothing"
    write(dying, broker, name, writeId="w")
    assert stored(broker, load, name) == list(range(90_000))


BAD = [
    ({"stream": "MISSING"}, "subject, data", "stream 'MISSING' on .*stream not found"),
    ({}, "subject", "there is no column `data`"),
    ({}, "data", "there is no column `subject`"),
    ({}, "subject, data, 1 as price", "column 'price' cannot be written"),
    ({"atomic": "true"}, "subject, data", "does not accept atomic batches: set allow_atomic"),
    ({"batchSize": "5000"}, "subject, data", "option `batchSize`: '5000' is not between"),
    ({"exactlyOnce": "no"}, "subject, data", "option `exactlyOnce`: 'no' is not one of staged, ids"),
    ({"exactlyOnce": "ids"}, "subject, data", "there is no column `msg_id`"),
    ({"exactlyOnce": "ids", "atLeastOnce": "true"}, "subject, data", "exclude each other"),
    ({"deadLetter": "dead.>"}, "subject, data", "'dead.>' is not a subject without wildcards"),
]


@pytest.mark.parametrize(("options", "columns", "words"), BAD, ids=[words[:30] for *_, words in BAD])
def test_errors_are_reported_before_anything_is_written(
    ours: Broker, spark: SparkSession, options: dict[str, Any], columns: str, words: str
) -> None:
    frame = spark.sql(f"select {columns} from (select 'STAYS.x' as subject, 'x' as data)")
    writer = frame.write.format("headrace").mode("append").option("servers", ours.url)
    with pytest.raises(PySparkException, match=words):
        writer.options(**{"stream": "STAYS", **options}).save()
