"""Several streams in one source, in batches and as streams, with options and columns of the Kafka source too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from headrace.errors import DataLoss
from headrace.reader.options import parse_read_options
from headrace.spark import multi_stream_reader, query_rows
from headrace.spark import schema as schemas
from headrace.spark.micro_batch_reader import JetStreamMicroBatchReader
from headrace.spark.multi_stream_reader import MultiStreamMicroBatchReader
from headrace.spark.pyspark_compat import ReadMaxBytes, ReadMaxRows
from spark.conftest import Begun, Broker, needs_read_limits


def make_reader(broker: Broker, **options: Any) -> MultiStreamMicroBatchReader:
    given = {"servers": broker.url, "starting": "earliest", "wait": "0s", **options}
    parsed = parse_read_options({name: str(value) for name, value in given.items()})
    schema = query_rows.make_query_schema(parsed)
    return MultiStreamMicroBatchReader(parsed, schemas.make_arrow_schema(schema, schema))


def read(
    reader: MultiStreamMicroBatchReader, start: dict[str, Any], end: dict[str, Any]
) -> list[tuple[str, int]]:
    """Return stream and payload of a batch's rows, sorted."""
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    return sorted((row["stream"], int(row["data"])) for batch in batches for row in batch.to_pylist())


def fill_two(broker: Broker, name: str) -> tuple[str, str]:
    streams = f"{name}a", f"{name}b"
    for number, stream in enumerate(streams):
        broker.create(stream)
        broker.fill(stream, 10, start=number * 100)
    return streams


def test_a_batch_of_several_streams(broker: Broker, spark: SparkSession, name: str) -> None:
    first, second = fill_two(broker, name)

    def load(**options: str) -> DataFrame:
        return spark.read.format("headrace").options(servers=broker.url, **options).load()

    for options in ({"stream": f"{first}, {second}"}, {"streamPattern": f"{name}[ab]"}):
        rows = load(**options).select("stream", "data", "seq").collect()
        assert sorted((row.stream, int(row.data)) for row in rows) == [
            *((first, n) for n in range(10)),
            *((second, n) for n in range(100, 110)),
        ]
    per_stream = json.dumps({first: 9, second: {"0": 3}})
    frame = load(stream=f"{first},{second}", starting=per_stream, ending=json.dumps({second: 5}))
    assert sorted(int(row.data) for row in frame.collect()) == [8, 9, 102, 103]
    assert load(streamPattern=f"{name}none").count() == 0
    with pytest.raises(PySparkException, match=f"stream '{name}none'"):
        load(stream=f"{first},{name}none").count()


def test_offsets_go_on_per_stream(broker: Broker, name: str, begun: Begun[Any]) -> None:
    first, second = fill_two(broker, name)
    reader = begun(make_reader(broker, stream=f"{first},{second}"))
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    assert read(reader, start, end) == [
        *((first, n) for n in range(10)),
        *((second, n) for n in range(100, 110)),
    ]
    assert reader.latestOffset(end) == end
    broker.fill(second, 2, start=110)
    again = begun(make_reader(broker, stream=f"{first},{second}"))
    later = again.latestOffset(json.loads(json.dumps(end)))
    assert read(again, end, later) == [(second, 110), (second, 111)]
    assert later["streams"][first] == end["streams"][first]
    assert again.reportLatestOffset()["streams"][second]["next_seq"] == 13


def test_a_stream_that_appears_later_starts_at_its_beginning(
    broker: Broker, name: str, begun: Begun[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_stream_reader, "_SEARCH_INTERVAL_S", 0.0)
    options = {"streamPattern": f"{name}[ab]", "starting": "latest"}
    reader = begun(make_reader(broker, **options))
    empty = reader.initialOffset()
    assert empty["streams"] == {}
    assert reader.latestOffset(empty) == empty
    first, second = fill_two(broker, name)
    end = reader.latestOffset(empty)
    expected = [*((first, n) for n in range(10)), *((second, n) for n in range(100, 110))]
    assert read(reader, empty, end) == expected
    again = begun(make_reader(broker, **options))
    assert read(again, empty, end) == expected, "a repeated batch has the same rows"


def test_a_query_of_one_stream_gets_another_one(broker: Broker, name: str, begun: Begun[Any]) -> None:
    """The checkpoint has the offset of one stream."""
    first, second = fill_two(broker, name)
    schema = schemas.make_arrow_schema(schemas.STREAM_SCHEMA, schemas.STREAM_SCHEMA)
    given = {"servers": broker.url, "stream": first, "starting": "earliest"}
    single = begun(JetStreamMicroBatchReader(parse_read_options(given), schema))
    start = single.latestOffset(single.initialOffset())
    reader = begun(make_reader(broker, stream=f"{first},{second}"))
    end = reader.latestOffset(start)
    assert read(reader, start, end) == [(second, n) for n in range(100, 110)]


def test_a_stream_that_disappears_is_a_loss(broker: Broker, name: str, begun: Begun[Any]) -> None:
    first, second = fill_two(broker, name)
    reader = begun(make_reader(broker, streamPattern=f"{name}[ab]"))
    end = reader.latestOffset(reader.initialOffset())
    broker.api(f"STREAM.DELETE.{second}")
    again = begun(make_reader(broker, streamPattern=f"{name}[ab]"))
    with pytest.raises(DataLoss, match=f"stream '{second}' of the checkpoint no longer belongs"):
        again.latestOffset(end)
    tolerant = begun(make_reader(broker, streamPattern=f"{name}[ab]", failOnDataLoss="false"))
    assert set(tolerant.latestOffset(end)["streams"]) == {first}


def test_a_query_that_accepts_losses_goes_on_without_a_deleted_stream(
    broker: Broker, name: str, begun: Begun[Any]
) -> None:
    """Spark commits a batch after it has planned the next one."""
    first, second = fill_two(broker, name)
    options = {"streamPattern": f"{name}[ab]", "failOnDataLoss": "false"}
    reader = begun(make_reader(broker, **options))
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    assert len(read(reader, start, end)) == 20
    broker.api(f"STREAM.DELETE.{second}")
    broker.fill(first, 2, start=10)
    later = reader.latestOffset(end)
    reader.commit(end)
    assert set(later["streams"]) == {first}
    assert read(reader, end, later) == [(first, 10), (first, 11)]
    again = begun(make_reader(broker, **options))
    assert read(again, start, end) == [(first, n) for n in range(10)], "the rest of a repeated batch"
    strict = begun(make_reader(broker, streamPattern=f"{name}[ab]"))
    with pytest.raises(DataLoss, match=f"stream '{second}' was deleted"):
        strict.partitions(start, end)
    with pytest.raises(DataLoss, match=f"stream '{second}' of the checkpoint was deleted"):
        strict.partitions(end, later)


def test_an_incomplete_listing_is_no_loss(
    broker: Broker, name: str, begun: Begun[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multi_stream_reader, "_SEARCH_INTERVAL_S", 0.0)
    first, second = fill_two(broker, name)
    reader = begun(make_reader(broker, streamPattern=f"{name}[ab]"))
    end = reader.latestOffset(reader.initialOffset())
    monkeypatch.setattr(multi_stream_reader, "find_streams", lambda _: [first])
    assert reader.latestOffset(end) == end
    broker.fill(second, 1, start=110)
    assert read(reader, end, reader.latestOffset(end)) == [(second, 110)]


def test_a_stream_that_appears_while_the_query_is_down_starts_at_its_beginning(
    broker: Broker, name: str, begun: Begun[Any]
) -> None:
    """Before 4.2, PySpark does not pass the start of a batch, so only `partitions` sees the checkpoint."""
    first, second = f"{name}a", f"{name}b"
    options = {"streamPattern": f"{name}[ab]", "starting": "latest"}
    broker.create(first)
    broker.fill(first, 3)
    reader = begun(make_reader(broker, **options))
    reader.initialOffset()
    end = json.loads(json.dumps(reader.latestOffset()))
    broker.fill(first, 1, start=3)
    broker.create(second)
    broker.fill(second, 5, start=100)
    broker.api(f"STREAM.PURGE.{second}", {"seq": 3})
    again = begun(make_reader(broker, **options))
    later = json.loads(json.dumps(again.latestOffset()))
    expected = [(first, 3), (second, 102), (second, 103), (second, 104)]
    assert read(again, end, later) == expected
    assert again.latestOffset() == later, "nothing new"
    third = begun(make_reader(broker, **options))
    assert read(third, end, later) == expected, "a repeated batch has the same rows"
    broker.fill(second, 1, start=105)
    assert read(again, later, again.latestOffset()) == [(second, 105)]


@needs_read_limits
def test_limits_are_divided_among_the_streams(ours: Broker, name: str, begun: Begun[Any]) -> None:
    first, second = fill_two(ours, name)
    ours.fill(first, 20, start=10)
    reader = begun(make_reader(ours, stream=f"{first},{second}"))
    position, found = reader.initialOffset(), list[list[tuple[str, int]]]()
    for _ in range(5):
        end = reader.latestOffset(position, ReadMaxRows(8))
        found.append(read(reader, position, end))
        position = end
    assert [len(rows) for rows in found] == [8] * 5
    assert len({row for rows in found for row in rows}) == 40
    assert reader.latestOffset(position, ReadMaxRows(8)) == position
    other = begun(make_reader(ours, stream=f"{first},{second}"))
    start = other.initialOffset()
    assert 0 < len(read(other, start, other.latestOffset(start, ReadMaxBytes(400)))) < 40
    few = begun(
        make_reader(ours, stream=f"{first},{second}", minMessagesPerTrigger=100, maxTriggerDelay="1h")
    )
    start = few.initialOffset()
    assert few.latestOffset(start) == start


def test_a_streaming_query_of_a_pattern(
    broker: Broker, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    _, second = fill_two(broker, name)

    def run() -> list[int]:
        feed = (
            spark.readStream.format("headrace")
            .option("servers", broker.url)
            .option("startingOffsets", "earliest")
        )
        frame = feed.option("subscribePattern", f"{name}.").load().select("stream", "data")
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "c"))
        query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
        assert query.awaitTermination(250)
        return sorted(int(row.data) for row in spark.read.parquet(str(tmp_path / "rows")).collect())

    assert run() == [*range(10), *range(100, 110)]
    broker.create(f"{name}c")
    broker.fill(f"{name}c", 3, start=200)
    broker.fill(second, 1, start=110)
    assert run() == [*range(10), *range(100, 111), *range(200, 203)]


def test_columns_of_the_kafka_source(broker: Broker, spark: SparkSession, name: str) -> None:
    broker.create(name)
    broker.publish(name, [(f"{name}.x", b"A: 1\r\nA: 2\r\nB: 3\r\n", b"one"), (f"{name}.y", b"", b"two")])
    frame = (
        spark.read.format("headrace")
        .options(servers=broker.url, subscribe=name, columns="kafka", startingOffsets="earliest")
        .load()
    )
    assert frame.dtypes == [
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int"),
        ("offset", "bigint"),
        ("timestamp", "timestamp"),
        ("timestampType", "int"),
        ("headers", "array<struct<key:string,value:binary>>"),
    ]
    one, two = frame.orderBy("offset").collect()
    assert (one.key, one.value, one.topic, one.partition, one.offset) == (
        f"{name}.x".encode(),
        b"one",
        name,
        0,
        1,
    )
    assert sorted((each.key, each.value) for each in one.headers) == [("A", b"1"), ("A", b"2"), ("B", b"3")]
    assert two.headers is None
    assert two.timestampType == 1
    assert two.timestamp >= one.timestamp
    topics = spark.read.schema("topic string").format("headrace")
    topics = topics.options(servers=broker.url, subscribe=name, columns="kafka").load()
    assert [row.topic for row in topics.collect()] == [name, name]


def test_several_streams_by_the_direct_path(ours: Broker, spark: SparkSession, name: str) -> None:
    first, second = fill_two(ours, name)
    for path in (ours.path, ours.web):
        frame = spark.read.format("headrace").options(
            servers=ours.url, streamPattern=f"{name}[ab]", path=path
        )
        rows = frame.load().select("stream", "data").collect()
        assert sorted((row.stream, int(row.data)) for row in rows)[9:11] == [(first, 9), (second, 100)]
