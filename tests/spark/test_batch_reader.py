"""A stream read as a table, on both servers and by both paths."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession

from spark.conftest import Broker

Load = Callable[..., DataFrame]


def test_rows_carry_everything_that_was_stored(broker: Broker, load: Load, name: str) -> None:
    broker.create(name, allow_msg_ttl=True)
    broker.publish(
        name,
        [
            (f"{name}.a", b"", b"plain"),
            (f"{name}.b", b"Color: red\r\nColor: blue\r\nSize: 3\r\n", b"headed"),
            (f"{name}.c", b"Nats-TTL: 1h\r\n", b""),
        ],
    )
    before = datetime.now(UTC).replace(tzinfo=None)
    plain, headed, brief = load(broker, name).orderBy("seq").collect()
    assert (plain.seq, plain.subject, plain.data, plain.headers) == (1, f"{name}.a", b"plain", None)
    assert (headed.seq, headed.data) == (2, b"headed")
    assert headed.headers == {"Color": ["red", "blue"], "Size": ["3"]}
    assert (brief.data, brief.headers) == (b"", {"Nats-TTL": ["1h"]})
    assert abs((plain.time - before).total_seconds()) < 60
    assert plain.expires_at is None
    assert (brief.expires_at - brief.time).total_seconds() == 3600
    assert plain.claim is None


def test_both_paths_give_the_same_rows(
    own_broker: Broker, load: Load, name: str, spark: SparkSession
) -> None:
    broker = own_broker
    broker.create(name, allow_msg_ttl=True)
    broker.fill(name, 5000)
    broker.publish(
        name,
        [(f"{name}.h", b"A: %d\r\nA: 2\r\nB: x:y\r\nNats-TTL: %dh\r\n" % (n, n + 1), b"") for n in range(50)],
    )
    for seq in (1, 7, 4000):
        broker.api(f"STREAM.MSG.DELETE.{name}", {"seq": seq})
    wire = load(broker, name).orderBy("seq").collect()
    direct = load(broker, name, path=broker.path, minPartitions=3).orderBy("seq").collect()
    assert len(wire) == 5047
    assert direct == wire
    filtered = {"subject": f"{name}.3", "starting": 100, "ending": 900}
    some = load(broker, name, **filtered).orderBy("seq").collect()
    assert some == [row for row in wire if row.subject == f"{name}.3" and 100 <= row.seq < 900]
    assert load(broker, name, path=broker.path, **filtered).orderBy("seq").collect() == some
    broker.server.stop()
    stopped = spark.read.format("headrace").option("path", broker.path).option("stream", name).load()
    assert stopped.orderBy("seq").collect() == wire


def test_a_range_is_read_by_many_tasks(broker: Broker, load: Load, name: str) -> None:
    broker.create(name)
    broker.fill(name, 3000)
    frame = load(broker, name, minPartitions=5, batchRows=100)
    assert frame.rdd.getNumPartitions() == 5
    assert sorted(row.seq for row in frame.select("seq").collect()) == list(range(1, 3001))


def test_a_schema_prunes_columns(broker: Broker, spark: SparkSession, name: str) -> None:
    broker.create(name)
    broker.fill(name, 10)
    reader = spark.read.format("jetstream").option("servers", broker.url).option("stream", name)
    frame = reader.schema("data binary, seq bigint").load()
    assert frame.columns == ["data", "seq"]
    assert frame.orderBy("seq").first() == Row(data=b"0", seq=1)
    with pytest.raises(PySparkException, match="column 'seq' is bigint, not string"):
        reader.schema("seq string").load().collect()


def test_where_to_begin_and_to_end(broker: Broker, load: Load, name: str) -> None:
    broker.create(name)
    broker.fill(name, 10)
    middle = load(broker, name).filter("seq = 6").first()
    assert middle is not None
    moment = middle.time.replace(tzinfo=UTC).isoformat()
    cases: dict[tuple[str, str], list[int]] = {
        ("earliest", "latest"): list(range(1, 11)),
        ("4", "8"): [4, 5, 6, 7],
        ("latest", "latest"): [],
        ("-1h", "latest"): list(range(1, 11)),
        ("100", "latest"): [],
    }
    for (starting, ending), expected in cases.items():
        found = load(broker, name, starting=starting, ending=ending).select("seq").collect()
        assert sorted(row.seq for row in found) == expected, (starting, ending)
    later = load(broker, name, starting=moment).select("seq").collect()
    assert min(row.seq for row in later) <= 6


def test_filters_are_pushed_where_asked(ours: Broker, load: Load, spark: SparkSession, name: str) -> None:
    ours.create(name)
    ours.fill(name, 100)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(ours, name, pushdown=True).filter(f"seq > 10 and seq <= 80 and subject = '{name}.2'")
        found = [int(row.data) for row in frame.orderBy("seq").collect()]
        middle = load(ours, name).filter("seq = 50").first()
        assert middle is not None
        recent = load(ours, name, pushdown=True).filter(
            f"time >= '{middle.time}' and subject like '{name}.%'"
        )
        assert recent.agg({"seq": "max"}).first()[0] == 100
        assert recent.count() == load(ours, name).filter(f"time >= '{middle.time}'").count()
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    assert found == [n for n in range(10, 80) if n % 7 == 2]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"stream": ""}, "option `stream` is missing"),
    ({"strem": "x"}, "unknown option `strem`"),
    ({"starting": "yesterday"}, "option `starting`"),
    ({"minPartitions": "0"}, "option `minPartitions`: '0' is not a positive number"),
    ({"failOnDataLoss": "maybe"}, "'maybe' is neither true nor false"),
    ({"path": "/nowhere"}, "'/nowhere' is not a folder"),
    ({"stream": "MISSING"}, "stream 'MISSING' on .*stream not found"),
    ({"servers": "nats://127.0.0.1:1"}, "no server can be reached .*127.0.0.1:1"),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=[next(iter(options)) for options, _ in BAD])
def test_what_is_wrong_is_said_on_the_driver(
    ours: Broker, load: Load, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(PySparkException, match=words):
        load(ours, "STAYS", **options).collect()


@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
def test_a_stream_without_direct_gets_is_read_as_well(
    broker: Broker, load: Load, name: str, retention: str
) -> None:
    broker.create(name, allow_direct=False, retention=retention)
    consumer = {"durable_name": "work", "ack_policy": "explicit"}
    broker.api(f"CONSUMER.DURABLE.CREATE.{name}.work", {"stream_name": name, "config": consumer})
    broker.fill(name, 300)
    before = broker.state(name)
    rows = load(broker, name, batchRows=100).orderBy("seq").collect()
    assert [(row.seq, bytes(row.data)) for row in rows] == [(n + 1, b"%d" % n) for n in range(300)]
    last = load(broker, name, starting="last-per-subject").collect()
    assert sorted(row.seq for row in last) == list(range(294, 301))
    assert broker.state(name) | {"consumer_count": 1} == before


def test_sql_reads_a_stream_through_a_view(ours: Broker, spark: SparkSession, name: str) -> None:
    ours.create(name)
    ours.fill(name, 5)
    spark.sql(
        f"create or replace temporary view v using headrace options (servers '{ours.url}', stream '{name}')"
    )
    assert spark.sql("select count(*) as n from v where seq > 2").first() == Row(n=3)
