"""Work-queue and interest streams: Spark acknowledges exactly what it has finished."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.reader.options import OptionError, parse_read_options
from headrace.reader.queue_acker import QueueAcker
from headrace.reader.stream_admin import StreamError
from headrace.spark import schema as schemas
from headrace.spark.micro_batch_reader import JetStreamMicroBatchReader
from spark.conftest import Broker, eventually, make_batch_limit, needs_batch_starts

SCHEMA = schemas.make_arrow_schema(schemas.STREAM_SCHEMA, schemas.STREAM_SCHEMA)


def durable(broker: Broker, stream: str, **config: Any) -> None:
    """Create a consumer `c`, as a user would."""
    made = {"durable_name": "c", "ack_policy": "explicit", **config}
    broker.api(f"CONSUMER.DURABLE.CREATE.{stream}.c", {"stream_name": stream, "config": made})


def drain(spark: SparkSession, broker: Broker, name: str, folder: Path, **options: Any) -> list[int]:
    seen: list[int] = []
    reader = spark.readStream.format("headrace").option("servers", broker.url).option("stream", name)
    frame = reader.options(**options).load().select("data")
    writer = frame.writeStream.foreachBatch(
        lambda batch, _: seen.extend(int(r.data) for r in batch.collect())
    )
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(250)
    return sorted(seen)


@needs_batch_starts
def test_a_work_queue_is_emptied_by_what_is_finished_to_the_last_batch(
    broker: Broker, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    broker.create(name, retention="workqueue")
    broker.fill(name, 2500)
    options = {"consumer": "spark", **make_batch_limit(1000)}
    assert drain(spark, broker, name, tmp_path, **options) == list(range(2500))
    assert broker.state(name)["messages"] == 0
    broker.fill(name, 10, start=2500)
    assert drain(spark, broker, name, tmp_path, **options) == list(range(2500, 2510))
    assert broker.state(name)["messages"] == 0


def test_nothing_behind_the_horizon_is_acknowledged(broker: Broker, name: str) -> None:
    broker.create(name, retention="workqueue")
    broker.fill(name, 30)
    speaker = QueueAcker(parse_read_options({"servers": broker.url, "stream": name, "consumer": "spark"}))
    speaker.ack_below(11)
    assert (broker.state(name)["first_seq"], broker.state(name)["messages"]) == (11, 20)
    broker.api(f"CONSUMER.RESET.{name}.spark")
    speaker.ack_below(21)
    assert (broker.state(name)["first_seq"], broker.state(name)["messages"]) == (21, 10)


@pytest.mark.parametrize(
    ("subject", "filters", "good"),
    [
        ("a.>", [], False),
        ("a.>", ["a.1"], False),
        ("a.>", ["a.>", "b.>"], False),
        ("", ["a.>"], False),
        ("a.>", ["a.>"], True),
        ("", [">"], True),
        (">", [], True),
    ],
)
def test_a_consumer_takes_what_the_query_reads_and_nothing_else(
    ours: Broker, name: str, subject: str, filters: list[str], good: bool
) -> None:
    ours.create(name, subjects=[f"{name}.a.>", f"{name}.b.>"], retention="workqueue")

    def own(subject: str) -> str:
        return subject if subject in ("", ">") else f"{name}.{subject}"

    durable(ours, name, filter_subjects=[own(each) for each in filters])
    ours.publish(name, [(f"{name}.b.1", b"", b"others"), (f"{name}.a.1", b"", b"own")])
    given = {
        "servers": ours.url,
        "stream": name,
        "consumer": "c",
        **({"subject": own(subject)} if subject else {}),
    }
    if good:
        QueueAcker(parse_read_options(given)).ack_below(3)
    else:
        with pytest.raises(OptionError, match=r"consumer 'c' receives .*: use the same subject for both"):
            QueueAcker(parse_read_options(given))
    assert ours.state(name)["messages"] == (2 if not good else 1 if filters == ["a.>"] else 0)


def test_all_that_is_finished_is_acknowledged_by_a_consumer_that_hands_out_little(
    broker: Broker, name: str
) -> None:
    broker.create(name, retention="workqueue")
    durable(broker, name, max_ack_pending=100)
    broker.fill(name, 550)
    speaker = QueueAcker(parse_read_options({"servers": broker.url, "stream": name, "consumer": "c"}))
    for horizon in (251, 500, 501, 551):
        speaker.ack_below(horizon)
        assert broker.state(name)["messages"] == 551 - horizon


def test_a_consumer_whose_messages_others_hold_is_waited_for_and_then_named(
    broker: Broker, name: str
) -> None:
    broker.create(name, retention="workqueue")
    durable(broker, name, max_ack_pending=10, ack_wait=2_000_000_000)
    broker.fill(name, 15)
    given = {"servers": broker.url, "stream": name, "consumer": "c"}

    def take() -> None:
        pull = (name.encode(), broker.link.new_inbox())
        broker.link.send(b"PUB $JS.API.CONSUMER.MSG.NEXT.%s.c %s 2\r\n10\r\n" % pull)
        eventually(lambda: broker.api(f"CONSUMER.INFO.{name}.c")["num_ack_pending"] == 10)

    take()
    QueueAcker(parse_read_options(given)).ack_below(16)
    assert broker.state(name)["messages"] == 0, "who died holds them until the time for acknowledging is over"
    durable(broker, name, max_ack_pending=10, ack_wait=60_000_000_000)
    broker.fill(name, 15)
    take()
    with pytest.raises(StreamError, match=r"at most 10 unacknowledged messages \(max_ack_pending\)"):
        QueueAcker(parse_read_options({**given, "reconnect": "10ms"})).ack_below(31)


def test_nothing_of_a_queue_made_anew_is_taken_for_finished(broker: Broker, name: str) -> None:
    broker.create(name, retention="workqueue")
    broker.fill(name, 30)
    given = {"servers": broker.url, "stream": name, "consumer": "spark"}
    given |= {"failOnDataLoss": "false", "claimReader": "none"}
    query, again = (JetStreamMicroBatchReader(parse_read_options(given), SCHEMA) for _ in range(2))
    start = query.initialOffset()
    end = query.latestOffset(start)
    broker.api(f"STREAM.DELETE.{name}")
    broker.create(name, retention="workqueue")
    broker.fill(name, 10)
    for restarted in (query, again):
        restarted.partitions(start, end)
        restarted.commit(end)
        assert broker.state(name)["messages"] == 10
    new = again.latestOffset(end)
    again.commit(new)
    assert (new["next_seq"], broker.state(name)["messages"]) == (11, 0)


@needs_batch_starts
def test_an_interest_stream_lets_go_of_what_is_finished(
    ours: Broker, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    ours.create(name, retention="interest")
    QueueAcker(parse_read_options({"servers": ours.url, "stream": name, "consumer": "spark"}))
    ours.fill(name, 50)
    assert drain(spark, ours, name, tmp_path, consumer="spark") == list(range(50))
    assert ours.state(name)["messages"] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "has workqueue retention: set option `consumer`"),
        ({"consumer": "spark", "starting": "latest"}, "omit option `starting`"),
    ],
)
def test_a_queue_is_not_read_by_mistake(
    ours: Broker, spark: SparkSession, name: str, tmp_path: Path, options: dict[str, str], words: str
) -> None:
    ours.create(name, retention="workqueue")
    ours.fill(name, 1)
    with pytest.raises(PySparkException, match=words):
        drain(spark, ours, name, tmp_path, **options)
    assert ours.state(name)["messages"] == 1
