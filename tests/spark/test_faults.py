"""Faults during reads and writes: nothing is lost silently, and nothing is stored twice."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import headrace
from headrace.reader.blocking_connection import BlockingConnection
from headrace.reader.options import parse_read_options
from headrace.spark import micro_batch_reader
from headrace.spark import schema as schemas
from headrace.spark.batch_reader import JetStreamBatchReader
from headrace.spark.micro_batch_reader import JetStreamMicroBatchReader
from headrace.spark.offsets import DataLoss
from headrace.spark.pyspark_compat import ReadAllAvailable
from spark.conftest import Begun, Broker, eventually, needs_read_limits

SCHEMA = schemas.make_arrow_schema(schemas.STREAM_SCHEMA, schemas.STREAM_SCHEMA)


def reader(broker: Broker, name: str, **options: Any) -> JetStreamBatchReader:
    given = {"servers": broker.url, "stream": name, **options}
    return JetStreamBatchReader(parse_read_options(given), SCHEMA)


def numbers(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [int(data) for batch in batches for data in batch["data"].to_pylist()]


def test_what_is_removed_before_a_task_reads_it_is_missed(broker: Broker, name: str) -> None:
    broker.create(name)
    broker.fill(name, 100)
    query = reader(broker, name)
    tolerant = reader(broker, name, failOnDataLoss="false")
    (part,) = query.partitions()
    broker.api(f"STREAM.PURGE.{name}", {"seq": 41})
    with pytest.raises(DataLoss, match="now starts at sequence 41: 40 of the sequences 1 to 40 were removed"):
        numbers(query.read(part))
    assert numbers(tolerant.read(part)) == list(range(40, 100))
    broker.api(f"STREAM.PURGE.{name}")
    with pytest.raises(DataLoss, match="now starts at sequence 101: 100 of the sequences 1 to 100"):
        numbers(query.read(part))
    assert numbers(tolerant.read(part)) == []


@pytest.mark.parametrize("ending", ["2262-04-12T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_an_end_in_the_far_future_is_no_end(broker: Broker, name: str, ending: str) -> None:
    broker.create(name)
    broker.fill(name, 3)
    for options in [{}, {"path": broker.path}] if broker.server.is_ours else [{}]:
        query = reader(broker, name, ending=ending, starting="0001-01-01T00:00:00Z", **options)
        assert [row for part in query.partitions() for row in numbers(query.read(part))] == [0, 1, 2]


@pytest.mark.parametrize("ttl", ["+60", ".5m", "1m.5s", "60.s", "Never", "9000000000000000000"])
def test_what_the_server_takes_as_a_ttl_can_be_read(broker: Broker, name: str, ttl: str) -> None:
    broker.create(name, allow_msg_ttl=True)
    header = f"NATS/1.0\r\nNats-TTL: {ttl}\r\n\r\n".encode()
    reply = broker.link.new_inbox()
    sizes = (name.encode(), reply, len(header), len(header) + 1, header)
    broker.link.send(b"HPUB %s.x %s %d %d\r\n%s1\r\n" % sizes)
    if "error" in json.loads(broker.link.receive_reply(reply, name).payload):
        return
    ways = [{}, {"path": broker.path}] if broker.server.is_ours else [{}]
    found = []
    for options in ways:
        query = reader(broker, name, **options)
        found += [
            row for part in query.partitions() for batch in query.read(part) for row in batch.to_pylist()
        ]
    assert [row["data"] for row in found] == [b"1"] * len(ways)
    assert len({row["expires_at"] for row in found}) == 1, "by every path the same"


def test_what_is_removed_while_a_task_reads_is_missed(broker: Broker, name: str) -> None:
    broker.create(name)
    broker.fill(name, 100)
    for seq in (5, 25):
        broker.api(f"STREAM.MSG.DELETE.{name}", {"seq": seq})
    query = reader(broker, name, batchRows="10")
    (part,) = query.partitions()
    rows = query.read(part)
    first = numbers(iter([next(rows)]))
    assert first == [n for n in range(11) if n != 4], "an interior gap is no loss"
    broker.api(f"STREAM.PURGE.{name}", {"seq": 61})
    with pytest.raises(DataLoss, match="now starts at sequence 61"):
        numbers(rows)


def test_a_repeated_batch_reads_what_has_expired_since(
    own_broker: Broker, name: str, begun: Begun[JetStreamMicroBatchReader]
) -> None:
    broker = own_broker
    broker.create(name, allow_msg_ttl=True)

    def reading(path: str) -> JetStreamMicroBatchReader:
        given = {"servers": broker.url, "stream": name, "starting": "earliest", "path": path}
        return begun(JetStreamMicroBatchReader(parse_read_options(given), SCHEMA))

    def planned(path: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
        query = reading(path)
        start = query.initialOffset()
        return path, start, query.latestOffset(start, ReadAllAvailable())

    for ttl in (1, 10, 60):
        broker.publish(name, [(f"{name}.x", b"Nats-TTL: %ds\r\n" % ttl, b"%d" % n) for n in range(20)])
        batches = [planned(path) for path in (broker.path, broker.web)]
        if broker.state(name)["messages"] == 20:
            break  # otherwise the machine was too slow to plan before they expired: retry with a longer TTL
        broker.api(f"STREAM.PURGE.{name}")
    eventually(lambda: broker.state(name)["messages"] == 0)
    for path, start, end in batches:
        again = reading(path)
        found = [row for part in again.partitions(start, end) for row in numbers(again.read(part))]
        assert found == list(range(20))


def test_what_comes_after_a_loss_is_read_where_loss_is_accepted(
    own_broker: Broker, name: str, tmp_path: Path
) -> None:
    """The server has an older state than the checkpoint refers to, as after a restore."""
    broker, server = own_broker, own_broker.server
    broker.create(name)
    broker.fill(name, 10)
    server.stop()
    shutil.copytree(broker.path, tmp_path / "store")
    server.start()
    broker.reconnect()
    broker.fill(name, 10, 10)
    given = {"servers": broker.url, "stream": name, "path": broker.path, "failOnDataLoss": "false"}
    query = JetStreamMicroBatchReader(
        parse_read_options({**given, "starting": "earliest", "claimReader": "none"}), SCHEMA
    )
    start = query.initialOffset()
    positions = [start, query.latestOffset(start, ReadAllAvailable())]
    server.stop()
    shutil.rmtree(broker.path)
    shutil.copytree(tmp_path / "store", broker.path)
    server.start()
    broker.reconnect()
    found: list[int] = []
    for numbered in (20, 26, 32):
        positions.append(query.latestOffset(positions[-1], ReadAllAvailable()))
        for part in query.partitions(positions[-2], positions[-1]):
            found += numbers(query.read(part))
        query.commit(positions[-1])
        broker.fill(name, 6, numbered)
    assert [position["next_seq"] for position in positions] == [1, 21, 11, 17, 23]
    assert found == list(range(20, 32))


@needs_read_limits
def test_few_messages_wait_no_longer_than_the_delay(
    ours: Broker, name: str, begun: Begun[JetStreamMicroBatchReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(
        micro_batch_reader, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=time.sleep)
    )
    ours.create(name)
    ours.fill(name, 5)
    waiting = {"minMessagesPerTrigger": "100", "maxTriggerDelay": "300ms", "wait": "0s"}
    given = {"servers": ours.url, "stream": name, "starting": "earliest", **waiting}
    query = begun(JetStreamMicroBatchReader(parse_read_options(given), SCHEMA))
    start = query.initialOffset()
    now_s += 0.29
    assert query.latestOffset(start, ReadAllAvailable()) == start
    now_s += 0.02
    assert query.latestOffset(start, ReadAllAvailable()) != start
    assert query.latestOffset(start, ReadAllAvailable()) == start, (
        "a batch began, and the next one waits again"
    )
    ours.fill(name, 95)
    assert query.latestOffset(start, ReadAllAvailable())["next_seq"] == 101


@needs_read_limits
def test_a_batch_that_fails_stays_in_the_queue(
    broker: Broker, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    broker.create(name, retention="workqueue")
    broker.fill(name, 300)
    seen: list[int] = []

    def run(fail_from: int) -> None:
        feed = spark.readStream.format("headrace").option("servers", broker.url).option("stream", name)
        feed = feed.option("consumer", "spark").option("maxMessagesPerTrigger", 100).load()

        def work(batch: Any, number: int) -> None:
            assert number < fail_from, "the work fails"
            seen.extend(int(row.data) for row in batch.select("data").collect())

        writer = feed.writeStream.foreachBatch(work).option("checkpointLocation", str(tmp_path))
        writer.trigger(availableNow=True).start().awaitTermination(250)

    with pytest.raises(PySparkException, match="the work fails"):
        run(fail_from=1)
    assert seen == list(range(100))
    assert broker.state(name)["messages"] >= 200
    broker.api(f"CONSUMER.RESET.{name}.spark")
    run(fail_from=100)
    assert sorted(seen) == list(range(300))
    assert broker.state(name)["messages"] == 0


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"stream": "MISSING"}, "", "stream 'MISSING' on .*stream not found"),
    ({"servers": "nats://127.0.0.1:1"}, "", "no server can be reached .*127.0.0.1:1"),
    ({"ending": "7"}, "", "option `ending` is for batch reads"),
    (
        {"minMessagesPerTrigger": "7"},
        "",
        "`minMessagesPerTrigger` and `maxTriggerDelay` must be set together",
    ),
    ({}, "seq bigint, price int", "there is no column 'price'"),
    ({"path": "http://127.0.0.1:1"}, "", "http://127.0.0.1:1 does not serve snapshot files"),
]


@pytest.mark.parametrize(("options", "schema", "words"), BAD, ids=[words[:24] for *_, words in BAD])
def test_a_streaming_query_that_cannot_work_says_why_on_the_driver(
    ours: Broker,
    spark: SparkSession,
    name: str,
    tmp_path: Path,
    options: dict[str, Any],
    schema: str,
    words: str,
) -> None:
    ours.create(name)
    ours.fill(name, 1)
    given = {"servers": ours.url, "stream": name, "starting": "earliest", "reconnect": "1s", **options}
    tasks: list[int] = []

    def run() -> None:
        feed = spark.readStream.format("headrace").options(**given)
        frame = (feed.schema(schema) if schema else feed).load()
        writer = frame.writeStream.foreachBatch(lambda batch, number: tasks.append(number))
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        writer.start().awaitTermination(250)

    with pytest.raises(PySparkException, match=words):
        run()
    assert tasks == []


def test_an_idle_query_does_not_poll(
    broker: Broker,
    name: str,
    begun: Begun[JetStreamMicroBatchReader],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All requests count: those about the stream, its claims and its pins."""
    broker.create(name)
    broker.fill(name, 5)
    given = {"servers": broker.url, "stream": name, "starting": "earliest"}
    query = begun(JetStreamMicroBatchReader(parse_read_options(given), SCHEMA))
    end = query.latestOffset(query.initialOffset(), ReadAllAvailable())
    query.latestOffset(end, ReadAllAvailable())
    query._idle_pause._idle_since_s -= 60.0
    query.latestOffset(end, ReadAllAvailable())
    requests: list[str] = []
    request = BlockingConnection.request

    def counted(connection: BlockingConnection, subject: str, *rest: Any, **options: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            requests.append(subject)
        return request(connection, subject, *rest, **options)

    monkeypatch.setattr(BlockingConnection, "request", counted)
    started_s = time.monotonic()
    while time.monotonic() - started_s < 2.0:
        assert query.latestOffset(end, ReadAllAvailable()) == end
    assert len(requests) <= (time.monotonic() - started_s) * 5 + 2, requests
    broker.fill(name, 1, start=5)
    assert query.latestOffset(end, ReadAllAvailable())["next_seq"] == 7


@pytest.mark.parametrize("direct", [False, True], ids=["wire", "direct"])
def test_a_commit_waits_for_a_broker_that_restarts(
    own_broker: Broker, name: str, begun: Begun[JetStreamMicroBatchReader], direct: bool
) -> None:
    """The driver acknowledges and releases pins when Spark has finished a batch."""
    broker = own_broker
    broker.create(name, retention="workqueue")
    broker.fill(name, 10)
    given = {"servers": broker.url, "stream": name, "consumer": "spark", "reconnect": "60s"}
    given |= {"path": broker.path} if direct else {}
    query = begun(JetStreamMicroBatchReader(parse_read_options(given), SCHEMA))
    start = query.initialOffset()
    end = query.latestOffset(start, ReadAllAvailable())
    found = [row for part in query.partitions(start, end) for row in numbers(query.read(part))]
    broker.server.stop()
    starter = threading.Timer(0.5, broker.server.start)
    starter.start()
    query.commit(end)
    starter.join()
    broker.reconnect()
    assert found == list(range(10))
    eventually(lambda: broker.state(name)["messages"] == 0)


def test_the_folder_of_a_server_is_read_without_it(own_broker: Broker, name: str) -> None:
    """`headrace.read` accepts what Spark's option `path` accepts: the server's folder, and the store in it."""
    own_broker.create(name)
    own_broker.fill(name, 3)
    own_broker.server.stop()
    for folder in (own_broker.path, f"{own_broker.path}/headrace"):
        with headrace.read(folder, name) as reading:
            assert reading.to_table()["data"].to_pylist() == [b"0", b"1", b"2"]
    own_broker.server.start()
    own_broker.reconnect()
