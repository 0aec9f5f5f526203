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

from headrace.reader.blocking_connection import BlockingConnection, ConnectionFailed, Msg, ServerAddress
from headrace.reader.stream_admin import StreamError
from headrace.spark.write.commit_log import commit_epoch
from headrace.spark.write.encode_rows import RawMessage
from headrace.spark.write.publisher import AtomicWriter, IdempotentWriter, WriteError, WriteTarget
from headrace.spark.write.stream_writer import WriteOptions, adapt_to_stream
from spark.conftest import Broker

Load = Callable[..., DataFrame]


def rows(count: int, stream: str, start: int = 0) -> list[RawMessage]:
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


def test_a_batch_write_with_a_name_is_not_repeated_with_fewer_partitions(
    ours: Broker, spark: SparkSession, name: str
) -> None:
    """The first attempt wrote the last of three partitions, and died."""
    sink(ours, name)

    def import_all(partitions: int) -> None:
        table = f"range(0, 30, 1, {partitions})"
        frame = spark.sql(f"select '{name}.x' as subject, cast(id as string) as data from {table}")
        write(frame, ours, name, writeId="import-7")

    import_all(3)
    for gone in range(2):
        ours.api(f"STREAM.PURGE.{name}", {"filter": f"_progress.{name}.import-7.{gone}"})
    with pytest.raises(PySparkException, match="wrote 10 rows as partition 2"):
        import_all(2)


def test_a_stream_without_atomic_batches_is_written_by_ids(
    broker: Broker, load: Load, spark: SparkSession, name: str
) -> None:
    broker.create(name)
    frame = spark.sql("select cast(id as string) as data from range(0, 3000, 1, 2)")
    for _ in range(2):
        write(frame, broker, name, writeId="import-7", subject=f"{name}.x")
    assert stored(broker, load, name) == list(range(3000))


def target(broker: Broker, name: str, **changes: Any) -> WriteTarget:
    made = WriteTarget(
        ServerAddress(servers=(broker.url,)), "$JS.API", name, f"_progress.{name}", "q", 4, 0, 100
    )
    return replace(made, **changes)


def stored_count(broker: Broker, name: str) -> int:
    found = broker.api(f"STREAM.INFO.{name}", {"subjects_filter": f"{name}.x"})["state"]["subjects"]
    return int(found[f"{name}.x"])


def test_a_repeated_task_goes_on_where_the_first_attempt_ended(broker: Broker, name: str) -> None:
    sink(broker, name)
    first = target(broker, name)
    assert AtomicWriter(first).publish(rows(198, name)) == 198  # and then the task dies
    assert AtomicWriter(first).publish(rows(250, name)) == 52
    assert AtomicWriter(first).publish(rows(250, name)) == 0
    assert AtomicWriter(replace(first, epoch=3)).publish(rows(250, name)) == 0, "an epoch long done"
    assert AtomicWriter(replace(first, epoch=5)).publish(rows(10, name)) == 10
    assert AtomicWriter(replace(first, partition=1)).publish(rows(10, name)) == 10
    assert stored_count(broker, name) == 270


def test_an_attempt_that_was_cut_off_adds_nothing_behind_a_later_epoch(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink(broker, name)
    place = target(broker, name)
    answer, lost = BlockingConnection.receive_reply, []

    def losing(link: BlockingConnection, reply: bytes, what: str, timeout_s: float = 0.0) -> Msg:
        found = answer(link, reply, what, timeout_s)
        if what == place.progress_subject and not lost:
            lost.append(found)
            AtomicWriter(replace(place, epoch=5)).publish(rows(3, name))
            raise ConnectionFailed("the connection broke after the batch was stored")
        return found

    monkeypatch.setattr(BlockingConnection, "receive_reply", losing)
    AtomicWriter(place).publish(rows(3, name))
    assert stored_count(broker, name) == 6


def test_two_attempts_at_once_write_every_row_once(broker: Broker, name: str) -> None:
    sink(broker, name)
    slow, fast = AtomicWriter(target(broker, name)), AtomicWriter(target(broker, name))
    assert fast.publish(rows(198, name)) == 198
    assert slow.publish(rows(250, name)) == 52, "it knew of nothing when it began, and is fenced off"


def test_other_rows_in_a_repeated_task_are_an_error(broker: Broker, name: str) -> None:
    sink(broker, name)
    AtomicWriter(target(broker, name)).publish(rows(99, name))
    with pytest.raises(WriteError, match="its rows or their order differ"):
        AtomicWriter(target(broker, name)).publish(rows(99, name, start=1))
    with pytest.raises(WriteError, match="it now has 0 rows"):
        AtomicWriter(target(broker, name)).publish([])


def test_an_epoch_that_is_whole_is_not_written_again_however_it_is_divided(broker: Broker, name: str) -> None:
    """Spark crashed before it recorded the epoch, and repeats it with other partitions."""
    sink(broker, name)
    place = target(broker, name)
    for partition in range(3):
        AtomicWriter(replace(place, partition=partition)).publish(rows(10, name, 10 * partition))
    for _ in range(2):
        commit_epoch(place, 3)
    for partition in range(2):
        assert AtomicWriter(replace(place, partition=partition)).publish(rows(15, name, 15 * partition)) == 0
    commit_epoch(place, 2)
    assert AtomicWriter(replace(place, epoch=5)).publish(rows(10, name)) == 10
    assert stored_count(broker, name) == 40


RECORDS = [None, b'{"epoch": 4, "rows": 5, "crc": 17}']


@pytest.mark.parametrize("older", RECORDS, ids=["a record of ours", "a record of an earlier version"])
def test_a_partition_that_a_repeated_epoch_does_not_have_is_an_error(
    broker: Broker, name: str, older: bytes | None
) -> None:
    """The last of three partitions was written; then the epoch is repeated with two, which have the same rows."""
    sink(broker, name)
    place = target(broker, name)
    gone = replace(place, partition=2)
    if older is None:
        AtomicWriter(gone).publish(rows(5, name, 10))
    else:
        broker.publish(name, [(gone.progress_subject, b"", older)])
    for partition in range(2):
        AtomicWriter(replace(place, partition=partition)).publish(rows(7, name, 7 * partition))
    for _ in range(2):
        with pytest.raises(WriteError, match=r"wrote 5 rows as partition 2: stream .* contains them twice"):
            commit_epoch(place, 2)
    broker.api(f"STREAM.PURGE.{name}", {"filter": gone.progress_subject})
    commit_epoch(place, 2)
    commit_epoch(replace(place, epoch=5), 1)


def test_a_new_checkpoint_under_a_used_name_is_an_error(broker: Broker, name: str) -> None:
    """It starts with epoch 0, and everything up to the recorded epoch would count as written."""
    sink(broker, name)
    place = target(broker, name, query="w", owner="first", epoch=2)
    assert AtomicWriter(place).publish(rows(3, name)) == 3
    anew = replace(place, owner="second", epoch=0)
    with pytest.raises(WriteError, match="writeId 'w' belongs to another query, which has written epoch 2"):
        AtomicWriter(anew).publish(rows(3, name))
    commit_epoch(place, 1)
    for other in (anew, replace(anew, owner="")):
        with pytest.raises(WriteError, match="belongs to another query"):
            AtomicWriter(replace(other, partition=1)).publish(rows(3, name))
    assert AtomicWriter(replace(place, epoch=3)).publish(rows(3, name)) == 3


def test_a_name_that_an_earlier_version_used_is_gone_on_with_but_not_begun_anew(
    broker: Broker, name: str
) -> None:
    """Its records do not name the query that wrote them."""
    sink(broker, name)
    place = target(broker, name, query="w", owner="first", epoch=3)
    broker.publish(name, [(place.progress_subject, b"", b'{"epoch": 2, "rows": 5, "crc": 17}')])
    with pytest.raises(WriteError, match="belongs to another query, which has written epoch 2"):
        AtomicWriter(replace(place, epoch=0)).publish(rows(3, name))
    assert AtomicWriter(place).publish(rows(3, name)) == 3


def test_ids_of_two_queries_of_one_name_differ(broker: Broker, name: str) -> None:
    broker.create(name)
    place = target(broker, name, progress_prefix="", query="w", owner="first", epoch=0)
    assert IdempotentWriter(place).publish(rows(3, name)) == 3
    assert IdempotentWriter(place).publish(rows(3, name)) == 0
    assert IdempotentWriter(replace(place, owner="second")).publish(rows(3, name)) == 3


def test_ids_make_a_repeated_task_harmless(broker: Broker, name: str) -> None:
    broker.create(name)
    place = target(broker, name, progress_prefix="")
    assert IdempotentWriter(place).publish(rows(198, name)) == 198
    assert IdempotentWriter(place).publish(rows(250, name)) == 52


def test_by_ids_other_rows_in_a_repeated_task_are_an_error(broker: Broker, name: str) -> None:
    """For example with other partitions: the server takes new rows for those at the same positions."""
    broker.create(name)
    place = target(broker, name, progress_prefix="")
    for partition in range(2):
        IdempotentWriter(replace(place, partition=partition)).publish(rows(150, name, 150 * partition))
    with pytest.raises(WriteError, match="row 99 of partition 1 of epoch 4 has changed"):
        IdempotentWriter(replace(place, partition=1)).publish(rows(200, name, 100))
    assert IdempotentWriter(replace(place, partition=1)).publish(rows(160, name, 150)) == 10


def test_by_ids_what_is_gone_from_the_stream_cannot_be_compared(broker: Broker, name: str) -> None:
    broker.create(name)
    place = target(broker, name, progress_prefix="")
    assert IdempotentWriter(place).publish(rows(3, name)) == 3
    broker.api(f"STREAM.PURGE.{name}")
    assert IdempotentWriter(place).publish(rows(3, name, 1)) == 0


@pytest.mark.parametrize("line", [b"Source-Nats-Msg-Id: 7\r\n", b"A: b\r\nNote: Nats-Msg-Id: 7\r\n"])
def test_a_header_that_contains_the_name_of_the_id_is_not_the_id(
    broker: Broker, name: str, line: bytes
) -> None:
    broker.create(name)
    place = target(broker, name, progress_prefix="")
    some = [
        (f"{name}.x".encode(), line, b"once"),
        (f"{name}.x".encode(), b"A: b\r\nNats-Msg-Id: 8\r\n", b"own"),
    ]
    assert IdempotentWriter(place).publish(some) == 2
    assert IdempotentWriter(place).publish(some) == 0
    assert IdempotentWriter(replace(place, query="other")).publish(some) == 1, (
        "a row's own id counts in every query"
    )


def test_a_subject_outside_the_stream_is_an_error(ours: Broker, name: str) -> None:
    sink(ours, name)
    with pytest.raises(WriteError, match="check that the stream has every subject"):
        AtomicWriter(target(ours, name)).publish([(b"elsewhere", b"", b"x"), *rows(3, name)])


def test_rows_that_another_stream_takes_are_an_error(broker: Broker, name: str) -> None:
    broker.create(name)
    broker.create(f"{name}other")
    with pytest.raises(WriteError, match=f"'{name}other' stored the message"):
        IdempotentWriter(target(broker, name, progress_prefix="")).publish(
            [*rows(2, name), *rows(1, f"{name}other")]
        )


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_a_repeated_task_adds_nothing_where_the_stream_keeps_no_records(
    broker: Broker, name: str, retention: str
) -> None:
    """An interest stream drops a record that no consumer wants, and a worker of a work queue removes it."""
    sink(broker, name, retention=retention)
    config = {"durable_name": "c", "ack_policy": "explicit", "filter_subject": f"{name}.x"}
    broker.api(f"CONSUMER.DURABLE.CREATE.{name}.c", {"stream_name": name, "config": config})
    options = WriteOptions(ServerAddress(servers=(broker.url,)), name)
    assert adapt_to_stream(options).progress == "", "rows are known by their ids"
    with pytest.raises(StreamError, match=f"has retention {retention}, so it does not keep records"):
        adapt_to_stream(replace(options, atomic="true"))
    place = target(broker, name, progress_prefix="")
    assert IdempotentWriter(place).publish(rows(3, name)) == 3
    broker.api(f"STREAM.PURGE.{name}")
    assert IdempotentWriter(place).publish(rows(3, name)) == 0


def copied(
    spark: SparkSession, broker: Broker, origin: str, name: str, checkpoint: Path, partitions: int
) -> None:
    """Run a streaming query from one stream to another, for everything available now."""
    reader = spark.readStream.format("headrace").option("servers", broker.url).option("stream", origin)
    reader = reader.option("starting", "earliest").option("maxMessagesPerTrigger", 400)
    frame = reader.option("minPartitions", partitions).load()
    writer = frame.selectExpr(f"'{name}.x' as subject", "data").writeStream.format("headrace")
    writer = writer.option("servers", broker.url).option("stream", name).trigger(availableNow=True)
    assert writer.option("checkpointLocation", str(checkpoint)).start().awaitTermination(250)


def forget_commit(checkpoint: Path, epoch: int) -> None:
    """Remove Spark's commit, as a crash between the sink's writes and that commit would."""
    for forgotten in (f"{epoch}", f".{epoch}.crc"):
        (checkpoint / "commits" / forgotten).unlink()


def test_an_epoch_repeated_from_the_checkpoint_writes_nothing_twice(
    broker: Broker, load: Load, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    origin = f"{name}O"
    broker.create(origin)
    broker.fill(origin, 700)
    sink(broker, name)
    copied(spark, broker, origin, name, tmp_path, 2)
    assert stored(broker, load, name) == list(range(700))
    forget_commit(tmp_path, 1)
    copied(spark, broker, origin, name, tmp_path, 3)
    assert stored(broker, load, name) == list(range(700))
    broker.api(f"STREAM.PURGE.{name}", {"filter": f"_progress.{name}.*.committed"})
    forget_commit(tmp_path, 1)
    copied(spark, broker, origin, name, tmp_path, 2)
    assert stored(broker, load, name) == list(range(700)), "every task knows what it has written"


def test_an_epoch_repeated_with_fewer_partitions_is_not_called_done(
    ours: Broker, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    """The first attempt wrote the last of three partitions, and died."""
    origin = f"{name}O"
    ours.create(origin)
    ours.fill(origin, 300)
    sink(ours, name)
    copied(spark, ours, origin, name, tmp_path, 3)
    forget_commit(tmp_path, 0)
    for gone in ("committed", "0", "1"):
        ours.api(f"STREAM.PURGE.{name}", {"filter": f"_progress.{name}.*.{gone}"})
    with pytest.raises(PySparkException, match="wrote 100 rows as partition 2"):
        copied(spark, ours, origin, name, tmp_path, 2)
    assert not (tmp_path / "commits" / "0").exists()


BAD = [
    ({"stream": "MISSING"}, "subject, data", "stream 'MISSING' on .*stream not found"),
    ({}, "subject", "there is no column `data`"),
    ({}, "data", "there is no column `subject`"),
    ({}, "subject, data, 1 as price", "column 'price' cannot be written"),
    ({"atomic": "true"}, "subject, data", "does not accept atomic batches: set allow_atomic"),
    ({"batchSize": "5000"}, "subject, data", "option `batchSize`: '5000' is not between"),
]


@pytest.mark.parametrize(("options", "columns", "words"), BAD, ids=[words[:30] for *_, words in BAD])
def test_errors_are_reported_before_anything_is_written(
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
