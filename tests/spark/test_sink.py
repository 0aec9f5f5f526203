"""A DataFrame written to a stream: every row once, whatever Spark repeats."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.spark.link import Address
from headrace.spark.publishing import AtomicPublisher, IdPublisher, Target, WriteError
from headrace.spark.rows import Message
from headrace.spark.sink import SinkOptions, checked
from headrace.spark.streams import StreamError
from spark.conftest import Broker

Load = Callable[..., DataFrame]


def rows(count: int, stream: str, start: int = 0) -> list[Message]:
    return [(b"%s.x" % stream.encode(), b"", b"%d" % n) for n in range(start, start + count)]


def sink(broker: Broker, name: str, **config: Any) -> None:
    broker.create(name, subjects=[f"{name}.>", f"_progress.{name}.>"], allow_atomic=True, **config)


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


def test_a_stream_without_atomic_batches_is_written_by_ids(
    broker: Broker, load: Load, spark: SparkSession, name: str
) -> None:
    broker.create(name)
    frame = spark.sql("select cast(id as string) as data from range(0, 3000, 1, 2)")
    for _ in range(2):
        write(frame, broker, name, writeId="import-7", subject=f"{name}.x")
    assert stored(broker, load, name) == list(range(3000))


def target(broker: Broker, name: str, **changes: Any) -> Target:
    made = Target(Address(servers=(broker.url,)), "$JS.API", name, f"_progress.{name}", "q", 4, 0, 100)
    return replace(made, **changes)


def test_a_repeated_task_goes_on_where_the_first_attempt_ended(broker: Broker, name: str) -> None:
    sink(broker, name)
    first = target(broker, name)
    assert AtomicPublisher(first).publish(rows(198, name)) == 198  # and then the task dies
    assert AtomicPublisher(first).publish(rows(250, name)) == 52
    assert AtomicPublisher(first).publish(rows(250, name)) == 0
    assert AtomicPublisher(replace(first, epoch=3)).publish(rows(250, name)) == 0, "an epoch long done"
    assert AtomicPublisher(replace(first, epoch=5)).publish(rows(10, name)) == 10
    assert AtomicPublisher(replace(first, partition=1)).publish(rows(10, name)) == 10
    assert broker.api(f"STREAM.INFO.{name}", {"subjects_filter": f"{name}.x"})["state"]["subjects"] == {
        f"{name}.x": 270
    }


def test_two_attempts_at_once_write_every_row_once(broker: Broker, name: str) -> None:
    sink(broker, name)
    slow, fast = AtomicPublisher(target(broker, name)), AtomicPublisher(target(broker, name))
    assert fast.publish(rows(198, name)) == 198
    assert slow.publish(rows(250, name)) == 52, "it knew of nothing when it began, and is fenced off"


def test_other_rows_in_a_repeated_task_are_an_error(broker: Broker, name: str) -> None:
    sink(broker, name)
    AtomicPublisher(target(broker, name)).publish(rows(99, name))
    with pytest.raises(WriteError, match="its rows or their order differ"):
        AtomicPublisher(target(broker, name)).publish(rows(99, name, start=1))
    with pytest.raises(WriteError, match="now it has 0 rows"):
        AtomicPublisher(target(broker, name)).publish([])


def test_ids_make_a_repeated_task_harmless(broker: Broker, name: str) -> None:
    broker.create(name)
    place = target(broker, name, progress="")
    assert IdPublisher(place).publish(rows(198, name)) == 198
    assert IdPublisher(place).publish(rows(250, name)) == 52


def test_a_subject_outside_the_stream_is_an_error(ours: Broker, name: str) -> None:
    sink(ours, name)
    with pytest.raises(WriteError, match="is every subject among those of the stream"):
        AtomicPublisher(target(ours, name)).publish([(b"elsewhere", b"", b"x"), *rows(3, name)])


def test_rows_that_another_stream_takes_are_an_error(broker: Broker, name: str) -> None:
    broker.create(name)
    broker.create(f"{name}other")
    with pytest.raises(WriteError, match=f"'{name}other' took a message"):
        IdPublisher(target(broker, name, progress="")).publish([*rows(2, name), *rows(1, f"{name}other")])


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_a_repeated_task_adds_nothing_where_the_stream_keeps_no_records(
    broker: Broker, name: str, retention: str
) -> None:
    """An interest stream drops a record that no consumer wants, and who works a queue off takes it away."""
    sink(broker, name, retention=retention)
    config = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": f"{name}.x"}
    broker.api(f"CONSUMER.DURABLE.CREATE.{name}.c", {"stream_name": name, "config": config})
    options = SinkOptions(Address(servers=(broker.url,)), name)
    assert checked(options).progress == "", "rows are known by their ids"
    with pytest.raises(StreamError, match=f"has retention {retention}, so it does not keep a record"):
        checked(replace(options, atomic="true"))
    place = target(broker, name, progress="")
    assert IdPublisher(place).publish(rows(3, name)) == 3
    broker.api(f"STREAM.PURGE.{name}")
    assert IdPublisher(place).publish(rows(3, name)) == 0


def test_an_epoch_repeated_from_the_checkpoint_writes_nothing_twice(
    broker: Broker, load: Load, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    """The crash is between the sink's writes and Spark's own commit: the commit file is missing afterwards."""
    origin = f"{name}O"
    broker.create(origin)
    broker.fill(origin, 700)
    sink(broker, name)
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        reader = spark.readStream.format("headrace").option("servers", broker.url).option("stream", origin)
        frame = reader.option("starting", "earliest").option("maxMessagesPerTrigger", 400).load()
        writer = frame.selectExpr(f"'{name}.x' as subject", "data").writeStream.format("headrace")
        writer = writer.option("servers", broker.url).option("stream", name).trigger(availableNow=True)
        assert writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination(60)

    run()
    assert stored(broker, load, name) == list(range(700))
    for forgotten in ("1", ".1.crc"):
        (checkpoint / "commits" / forgotten).unlink()
    run()
    assert stored(broker, load, name) == list(range(700))


BAD = [
    ({"stream": "MISSING"}, "subject, data", "stream 'MISSING' on .*stream not found"),
    ({}, "subject", "there is no column `data`"),
    ({}, "data", "there is no column `subject`"),
    ({}, "subject, data, 1 as price", "column 'price' cannot be sent"),
    ({"atomic": "true"}, "subject, data", "takes no atomic batches: set allow_atomic"),
    ({"batchSize": "5000"}, "subject, data", "option `batchSize`: '5000' is not between"),
]


@pytest.mark.parametrize(("options", "columns", "words"), BAD, ids=[words[:30] for *_, words in BAD])
def test_what_is_wrong_is_said_before_anything_is_written(
    ours: Broker, spark: SparkSession, options: dict[str, Any], columns: str, words: str
) -> None:
    frame = spark.sql(f"select {columns} from (select 'STAYS.x' as subject, 'x' as data)")
    writer = frame.write.format("headrace").mode("append").option("servers", ours.url)
    with pytest.raises(PySparkException, match=words):
        writer.options(**{"stream": "STAYS", **options}).save()


def test_a_stream_without_a_place_for_progress_says_what_to_add(
    ours: Broker, spark: SparkSession, name: str
) -> None:
    ours.create(name, subjects=[f"{name}.*"], allow_atomic=True)
    frame = spark.sql(f"select '{name}.x' as subject, 'x' as data")
    with pytest.raises(PySparkException, match=f"Add _progress.{name}.> to them"):
        write(frame, ours, name)
    assert json.loads(ours.link.request(f"$JS.API.STREAM.INFO.{name}").payload)["state"]["messages"] == 0
