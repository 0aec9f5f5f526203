"""A stream read as a stream: offsets, limits, restarts, and errors when messages are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from headrace.reader.options import parse_read_options
from headrace.spark import schema as schemas
from headrace.spark.lag_metrics import compute_lag, watch
from headrace.spark.micro_batch_reader import JetStreamMicroBatchReader
from spark.conftest import BRISK, Broker, eventually, make_batch_limit, needs_read_limits

Start = Callable[..., StreamingQuery]


class Landing:
    """A streaming query from a stream to Parquet, which can be stopped and started again."""

    def __init__(self, spark: SparkSession, broker: Broker, stream: str, folder: Path) -> None:
        self.spark, self.broker, self.stream = spark, broker, stream
        self.target, self.checkpoint = str(folder / "rows"), str(folder / "checkpoint")

    def start(self, **options: Any) -> StreamingQuery:
        available = options.pop("availableNow", True)
        reader = self.spark.readStream.format("headrace").option("servers", self.broker.url)
        frame = reader.option("stream", self.stream).options(**{"starting": "earliest", **options}).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", self.checkpoint)
        trigger = {"availableNow": True} if available else {"processingTime": "0 seconds"}
        return writer.trigger(**trigger).start(self.target)

    def run(self, **options: Any) -> StreamingQuery:
        """Read everything available, then stop."""
        query = self.start(**options)
        assert query.awaitTermination(250)
        return query

    def numbers(self) -> list[int]:
        """Return the payloads that arrived, sorted."""
        rows = self.spark.read.parquet(self.target).select("data").collect()
        return sorted(int(row.data) for row in rows)


@pytest.fixture
def landing(spark: SparkSession, broker: Broker, name: str, tmp_path: Path) -> Landing:
    return Landing(spark, broker, name, tmp_path)


@pytest.fixture
def our_landing(spark: SparkSession, ours: Broker, name: str, tmp_path: Path) -> Landing:
    return Landing(spark, ours, name, tmp_path)


@needs_read_limits
def test_available_now_reads_in_limited_batches_and_goes_on_later(landing: Landing) -> None:
    broker, stream = landing.broker, landing.stream
    broker.create(stream)
    broker.fill(stream, 1000)
    query = landing.run(maxMessagesPerTrigger=400)
    assert [compute_lag(p) for p in query.recentProgress][:2] == [{stream: 600}, {stream: 200}]
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [400, 400, 200]
    broker.fill(stream, 300, start=1000)
    query = landing.run(maxBytesPerTrigger="1GB")
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [300]
    assert landing.numbers() == list(range(1300))
    source = query.recentProgress[-1].sources[0]
    assert '"next_seq": 1301' in source.endOffset or '"next_seq":1301' in source.endOffset
    assert "1301" in source.latestOffset
    assert compute_lag(query.recentProgress[-1]) == {stream: 0}


def test_new_messages_are_read_and_the_lag_is_reported(our_landing: Landing, spark: SparkSession) -> None:
    landing = our_landing
    broker, stream = landing.broker, landing.stream
    broker.create(stream)
    broker.fill(stream, 10)
    seen: list[int] = []
    registry = CollectorRegistry()
    lag = watch(spark, registry)
    reader = spark.readStream.format("headrace").option("servers", broker.url).option("stream", stream)
    frame = reader.load().select("seq")  # a new streaming query starts with new messages
    writer = frame.writeStream.queryName(stream).foreachBatch(
        lambda batch, _: seen.extend(r.seq for r in batch.collect())
    )
    query = writer.start()
    labels = {"query": stream, "stream": stream}
    try:
        eventually(lambda: query.lastProgress is not None or not query.isActive)
        broker.fill(stream, 5)
        eventually(lambda: len(seen) >= 5)
        eventually(lambda: lag.lag.get(stream) == {stream: 0})
        # The listener sets one after the other.
        eventually(lambda: registry.get_sample_value("headrace_spark_lag_messages", labels) == 0)
    finally:
        query.stop()
        spark.streams.removeListener(lag)
    assert seen == [11, 12, 13, 14, 15]


@needs_read_limits
def test_few_messages_wait_for_more_or_for_their_time(our_landing: Landing, spark: SparkSession) -> None:
    landing = our_landing
    broker, stream = landing.broker, landing.stream
    broker.create(stream)
    broker.fill(stream, 5)
    options = {"minMessagesPerTrigger": 20, "maxTriggerDelay": "1h"}
    query = landing.start(availableNow=False, **options)
    try:
        eventually(lambda: query.status["message"].startswith("Waiting") or query.lastProgress is not None)
        assert not any(p.numInputRows for p in query.recentProgress)
        broker.fill(stream, 15, start=5)
        eventually(lambda: any(p.numInputRows for p in query.recentProgress))
    finally:
        query.stop()
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [20]


def test_retention_that_passes_the_offset_is_an_error_with_a_number(landing: Landing) -> None:
    broker, stream = landing.broker, landing.stream
    broker.create(stream)
    broker.fill(stream, 10)
    landing.run()
    broker.fill(stream, 10, start=10)
    broker.api(f"STREAM.PURGE.{stream}", {"seq": 16})
    with pytest.raises(PySparkException, match=r"sequences 11 to 15 \(5 in total\) were removed"):
        landing.run()
    landing.run(failOnDataLoss=False)
    assert landing.numbers() == [*range(10), *range(15, 20)]


@pytest.mark.parametrize(
    ("starting", "first"),
    [("latest", range(10, 15)), ("last-per-subject", range(3, 10)), ("earliest", range(15))],
)
def test_a_first_batch_is_repeated_with_its_rows(
    broker: Broker, name: str, starting: str, first: range
) -> None:
    """A driver that dies in its first batch has logged the end of the batch only."""
    schema = schemas.make_arrow_schema(schemas.STREAM_SCHEMA, schemas.STREAM_SCHEMA)
    options = parse_read_options({"servers": broker.url, "stream": name, "starting": starting})
    broker.create(name)
    broker.fill(name, 10)
    reader = JetStreamMicroBatchReader(options, schema)
    start = reader.initialOffset()
    broker.fill(name, 5, start=10)
    end = reader.latestOffset(start)
    broker.fill(name, 5, start=15)
    again = JetStreamMicroBatchReader(options, schema)

    def read(start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        batches = [batch for part in again.partitions(start, end) for batch in again.read(part)]
        return [int(row["data"]) for batch in batches for row in batch.to_pylist()]

    assert read(again.initialOffset(), end) == list(first)
    assert read(end, again.latestOffset(end)) == list(range(first.stop, 20))
    for each in (reader, again):
        each.stop()


def test_interior_gaps_are_no_loss(our_landing: Landing) -> None:
    landing = our_landing
    broker, stream = landing.broker, landing.stream
    broker.create(stream)
    broker.fill(stream, 20)
    for seq in (5, 6, 11):
        broker.api(f"STREAM.MSG.DELETE.{stream}", {"seq": seq})
    landing.run(**make_batch_limit(5))
    assert landing.numbers() == [n for n in range(20) if n + 1 not in (5, 6, 11)]


def test_a_stream_created_again_is_not_mistaken_for_the_old_one(landing: Landing) -> None:
    broker, stream = landing.broker, landing.stream
    broker.create(stream)
    broker.fill(stream, 10)
    landing.run()
    broker.api(f"STREAM.DELETE.{stream}")
    broker.create(stream)
    broker.fill(stream, 30, start=100)
    with pytest.raises(PySparkException, match="it was deleted and created again"):
        landing.run()
    landing.run(failOnDataLoss=False)
    assert landing.numbers() == [*range(10), *range(100, 130)]


@pytest.mark.parametrize("direct", [False, True], ids=["wire", "direct"])
def test_a_broker_killed_in_mid_query_costs_nothing(
    spark: SparkSession, own_broker: Broker, name: str, tmp_path: Path, direct: bool
) -> None:
    broker = own_broker
    broker.create(name)
    broker.fill(name, 3000)
    landing = Landing(spark, broker, name, tmp_path)
    options = {"path": broker.path} if direct else {}
    query = landing.start(availableNow=False, **make_batch_limit(500), **options)
    try:
        eventually(lambda: any(p.numInputRows for p in query.recentProgress) or not query.isActive)
        broker.server.restart(crash=True)
        broker.reconnect()
        broker.fill(name, 1000, start=3000)
        eventually(
            lambda: sum(p.numInputRows for p in query.recentProgress) >= 4000 or not query.isActive, 120
        )
    finally:
        query.stop()
    landing.run(**options)
    assert landing.numbers() == list(range(4000))


DRIVER = """
    import sys
    from pyspark.sql import SparkSession
    url, stream, target, checkpoint = sys.argv[1:]
    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config(
        "spark.driver.host", "127.0.0.1").getOrCreate()
    frame = spark.readStream.format("headrace").option("servers", url).option("stream", stream).option(
        "consumer", "spark").option("maxMessagesPerTrigger", 50).load()
    frame.writeStream.format("parquet").option("checkpointLocation", checkpoint).start(target).awaitTermination()
"""


@pytest.mark.slow
@needs_read_limits
def test_a_driver_killed_in_mid_query_costs_nothing_of_a_queue(
    spark: SparkSession, own_broker: Broker, name: str, tmp_path: Path
) -> None:
    count = 10_000  # many more than it processes before it is killed
    own_broker.create(name, retention="workqueue")
    # Messages that the killed driver held are redelivered after this time.
    taking = {"durable_name": "spark", "ack_policy": "explicit", "ack_wait": 10**9, "max_ack_pending": -1}
    own_broker.api(f"CONSUMER.DURABLE.CREATE.{name}.spark", {"stream_name": name, "config": taking})
    own_broker.fill(name, count)
    landing = Landing(spark, own_broker, name, tmp_path)
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    arguments = [own_broker.url, name, landing.target, landing.checkpoint]
    log = tmp_path / "driver.log"
    with log.open("wb") as out:
        driver = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            stdout=out,
            stderr=out,
            env={**os.environ, **BRISK},
            start_new_session=True,
        )
    commits = Path(landing.checkpoint, "commits")
    try:
        eventually(lambda: len(list(commits.glob("[0-9]*"))) >= 3 or driver.poll() is not None, 150)
        assert driver.poll() is None, log.read_text()[-4000:]
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert 0 < own_broker.state(name)["messages"] <= count - 50, (
        "what was finished left the queue, and nothing else"
    )

    def is_emptied() -> bool:
        landing.run(consumer="spark")
        return bool(own_broker.state(name)["messages"] == 0)

    eventually(is_emptied)
    assert landing.numbers() == list(range(count))
