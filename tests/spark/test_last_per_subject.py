"""A query that starts with the last message of each subject, as of one moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from conformance.servers import NATS_SERVER, OURS
from headrace.reader import stream_admin
from headrace.reader.options import parse_read_options
from headrace.spark import schema as schemas
from headrace.spark.kv.kv_datasource import KV_SCHEMA, KvDataSource
from headrace.spark.micro_batch_reader import JetStreamMicroBatchReader
from headrace.spark.pyspark_compat import ReadAllAvailable
from spark.conftest import Begun, Broker, make_batch_limit

Load = Callable[..., DataFrame]
WAYS = [(OURS, "wire"), (OURS, "folder"), (OURS, "http"), (NATS_SERVER, "wire")]


@pytest.fixture(params=WAYS, ids=["-".join(way) for way in WAYS])
def way(request: pytest.FixtureRequest, brokers: dict[str, Broker]) -> tuple[Broker, dict[str, str]]:
    """A server, and the options of a path to its messages."""
    kind, path = request.param
    broker = brokers[kind]
    return broker, {"folder": {"path": broker.path}, "http": {"path": broker.web}}.get(path, {})


def numbered(broker: Broker, name: str, subjects: int, count: int, start: int = 0) -> None:
    broker.publish(name, [(f"{name}.{n % subjects}", b"", b"%d" % n) for n in range(start, start + count)])


def test_a_table_has_the_last_message_of_each_subject(
    way: tuple[Broker, dict[str, str]], load: Load, name: str
) -> None:
    broker, path = way
    broker.create(name)
    numbered(broker, name, 1500, 4000)
    broker.api(f"STREAM.MSG.DELETE.{name}", {"seq": 4000})
    options = {"starting": "last-per-subject", "minPartitions": 3, **path}
    found = load(broker, name, **options).select("subject", "data").collect()
    expected = {f"{name}.{n % 1500}": b"%d" % n for n in range(3999)}
    assert {row.subject: bytes(row.data) for row in found} == expected
    assert len(found) == 1500
    some = load(broker, name, ending=2001, subject=f"{name}.7", **options).collect()
    assert [(row.seq, row.data) for row in some] == [(1508, b"1507")]


def test_a_stream_continues_and_a_repeated_batch_is_the_same(
    way: tuple[Broker, dict[str, str]], name: str, begun: Begun[JetStreamMicroBatchReader]
) -> None:
    broker, path = way
    broker.create(name)
    numbered(broker, name, 10, 95)
    given = {"servers": broker.url, "stream": name, "starting": "last-per-subject", **path}
    schema = schemas.make_arrow_schema(schemas.STREAM_SCHEMA, schemas.STREAM_SCHEMA)

    def rows(start: dict[str, Any], end: dict[str, Any]) -> list[int]:
        query = begun(JetStreamMicroBatchReader(parse_read_options(given), schema))
        found = [batch for part in query.partitions(start, end) for batch in query.read(part)]
        return sorted(int(data) for batch in found for data in batch["data"].to_pylist())

    query = begun(JetStreamMicroBatchReader(parse_read_options(given), schema))
    start = query.initialOffset()
    first = query.latestOffset(start, ReadAllAvailable())
    assert rows(start, first) == list(range(85, 95))
    numbered(broker, name, 3, 5, start=95)
    assert rows(start, first) == list(range(85, 95)), "newer messages do not change what was last then"
    second = query.latestOffset(first, ReadAllAvailable())
    assert rows(first, second) == list(range(95, 100))


def test_available_now_gives_each_subject_once_and_then_what_is_new(
    broker: Broker, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    broker.create(name)
    numbered(broker, name, 10, 95)
    seen: list[int] = []

    def run() -> None:
        reader = spark.readStream.format("headrace").option("servers", broker.url).option("stream", name)
        frame = reader.options(starting="last-per-subject", **make_batch_limit(4)).load()
        writer = frame.writeStream.foreachBatch(
            lambda batch, _: seen.extend(int(row.data) for row in batch.select("data").collect())
        )
        writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
        assert writer.start().awaitTermination(250)

    run()
    assert sorted(seen) == list(range(85, 95))
    numbered(broker, name, 3, 6, start=95)
    run()
    assert sorted(seen) == list(range(85, 101))


def test_a_feed_of_a_bucket_begins_with_what_it_holds(broker: Broker, name: str) -> None:
    broker.create(f"KV_{name}", subjects=[f"$KV.{name}.>"], max_msgs_per_subject=5)
    changes = [("a", b"1"), ("b", b"2"), ("a", b"3")]
    broker.publish(f"KV_{name}", [(f"$KV.{name}.{key}", b"", value) for key, value in changes])
    given = {"servers": broker.url, "bucket": name, "starting": "last-per-subject"}
    query = KvDataSource(given).streamReader(KV_SCHEMA)
    start = query.initialOffset()
    parts = query.partitions(start, query.latestOffset(start, ReadAllAvailable()))
    feed = [row for part in parts for batch in query.read(part) for row in batch.to_pylist()]
    assert sorted((row["key"], row["value"]) for row in feed) == [("a", b"3"), ("b", b"2")]
    table = KvDataSource(given).reader(KV_SCHEMA)
    rows = [row for part in table.partitions() for batch in table.read(part) for row in batch.to_pylist()]
    assert sorted((row["key"], row["value"]) for row in rows) == [("a", b"3"), ("b", b"2")]


class Pages:
    """A server that lists three subjects at a time; between two pages it loses some, or gets new ones."""

    def __init__(self, subjects: str, changes: list[tuple[str, str]]) -> None:
        self.subjects, self.changes = set(subjects), changes

    def call(self, link: Any, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        shown = sorted(self.subjects)
        offset = min(body["offset"], len(shown))
        page = dict.fromkeys(shown[offset : offset + 3], 1)
        if self.changes:
            gone, new = self.changes.pop(0)
            self.subjects = self.subjects - set(gone) | set(new)
        return {"state": {"subjects": page}, "total": len(shown)}


@pytest.mark.parametrize(
    "changes",
    [
        [],
        [("a", "")],
        [("abc", ""), ("d", "")],
        [("abcd", "")],
        [("", "AB")],
        [("ab", "A"), ("d", "BC"), ("A", "")],
    ],
)
def test_subjects_that_come_and_go_hide_no_others(
    monkeypatch: pytest.MonkeyPatch, changes: list[tuple[str, str]]
) -> None:
    pages = Pages("abcdefghij", list(changes))
    monkeypatch.setattr(stream_admin, "with_retry", lambda address, timeout_s, work: work(None))
    monkeypatch.setattr(stream_admin, "call_api", pages.call)
    stay = set("abcdefghij").difference(*(gone for gone, _ in changes))
    assert stay <= set(stream_admin.list_subjects(parse_read_options({"stream": "S"})))


def test_a_stream_without_messages_has_no_subjects(broker: Broker, name: str) -> None:
    broker.create(name)
    assert stream_admin.list_subjects(parse_read_options({"servers": broker.url, "stream": name})) == []
