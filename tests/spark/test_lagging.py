"""Reads while a lagging replica or mirror answers direct gets: no row is skipped or repeated."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import nats
import pytest
from pyspark.sql.datasource import InputPartition

import headrace
from conformance.servers import KINDS, NATS_SERVER, Server, Setup
from headrace.client.context import JetStream
from headrace.reader import direct_get_decode, direct_get_reader, range_reader, stream_admin
from headrace.reader.blocking_connection import BlockingConnection, ConnectionFailed, ServerAddress
from headrace.reader.options import parse_read_options
from headrace.reader.stream_admin import StreamError, parse_time_ns
from headrace.spark import schema as schemas
from headrace.spark.batch_reader import JetStreamBatchReader
from headrace.spark.kv.kv_datasource import KV_SCHEMA, KvDataSource
from headrace.spark.offsets import DataLoss
from spark.conftest import Broker, eventually
from support.behind import DOMAIN, Behind
from support.cluster import Cluster

_SCHEMA = schemas.make_arrow_schema(schemas.STREAM_SCHEMA, schemas.STREAM_SCHEMA)


def reader(url: str, stream: str, **options: Any) -> JetStreamBatchReader:
    given = {key: str(value) for key, value in options.items()}
    return JetStreamBatchReader(parse_read_options({"servers": url, "stream": stream, **given}), _SCHEMA)


def rows(query: JetStreamBatchReader) -> list[dict[str, Any]]:
    return [row for part in query.partitions() for batch in query.read(part) for row in batch.to_pylist()]


def numbers(query: JetStreamBatchReader) -> list[int]:
    return [int(row["data"]) for row in rows(query)]


@pytest.fixture(autouse=True)
def _no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses: a responder that keeps lagging is given up after the same number of retries, but sooner."""
    monkeypatch.setattr(range_reader, "_LAG_PAUSE_S", 0.001)


@pytest.fixture(params=["replica", "mirror"])
def behind(request: pytest.FixtureRequest, broker: Broker, name: str) -> Iterator[Behind]:
    """A stream of 100 messages on seven subjects, and a responder that has 40 of them."""
    broker.create(name)
    broker.fill(name, 40)
    with Behind(broker.url, name, as_mirror=request.param == "mirror") as made:
        broker.fill(name, 60, start=40)
        yield made


def test_a_range_is_read_to_its_planned_end(broker: Broker, name: str, behind: Behind) -> None:
    assert numbers(reader(broker.url, name, domain=DOMAIN)) == list(range(100))
    assert behind.answers > 1, "the one that is behind was asked"
    parts = reader(broker.url, name, domain=DOMAIN, minPartitions=5, starting=31, ending=95)
    assert numbers(parts) == list(range(30, 94))
    reading = headrace.read(broker.url, name, connection={"domain": DOMAIN}, columns=["seq"])
    assert reading.to_table()["seq"].to_pylist() == list(range(1, 101))


def test_a_filtered_range_is_read_to_its_planned_end(broker: Broker, name: str, behind: Behind) -> None:
    for subject in (f"{name}.3", f"{name}.*"):
        wanted = [n for n in range(100) if subject.endswith("*") or n % 7 == 3]
        assert numbers(reader(broker.url, name, domain=DOMAIN, subject=subject, minPartitions=3)) == wanted
    assert behind.answers > 1


def test_messages_that_are_gone_end_no_range(broker: Broker, name: str, behind: Behind) -> None:
    for seq in (1, 39, 40, 41, 42, 60, 99, 100):
        broker.api(f"STREAM.MSG.DELETE.{name}", {"seq": seq})
    late = reader(broker.url, name, domain=DOMAIN, starting=41, minPartitions=2)
    assert numbers(late) == [n for n in range(40, 100) if n not in (40, 41, 59, 98, 99)]


def test_direct_gets_continue_once_it_has_caught_up(broker: Broker, name: str, behind: Behind) -> None:
    behind.answers_max = 2
    assert numbers(reader(broker.url, name, domain=DOMAIN)) == list(range(100))


def test_rows_of_the_leader_are_the_rows_of_direct_gets(broker: Broker, name: str) -> None:
    broker.create(name, allow_msg_ttl=True)
    broker.fill(name, 1)
    with Behind(broker.url, name) as behind:
        lines = b"A: 1\r\nA: 2\r\nNats-TTL: 1h\r\n"
        broker.publish(name, [(f"{name}.ö", lines, b"\0\xff"), (f"{name}.plain", b"", b"")])
        lagging = rows(reader(broker.url, name, domain=DOMAIN))
        assert behind.answers > 1
    assert lagging == rows(reader(broker.url, name))
    assert lagging[1]["headers"], "headers come along"
    assert lagging[1]["expires_at"], "and the end of its life"


def test_the_last_of_each_subject_is_not_an_older_one(broker: Broker, name: str, behind: Behind) -> None:
    broker.publish(name, [(f"{name}.new", b"", b"100")])
    options = {"domain": DOMAIN, "starting": "last-per-subject", "minPartitions": 2}
    assert sorted(numbers(reader(broker.url, name, **options))) == list(range(93, 101))
    assert behind.answers > 1


def test_the_last_before_an_end_that_others_have_passed(broker: Broker, name: str, behind: Behind) -> None:
    options = {"domain": DOMAIN, "starting": "last-per-subject"}
    query = reader(broker.url, name, **options)
    parts = query.partitions()
    broker.publish(name, [(f"{name}.{n}", b"", b"%d" % (200 + n)) for n in (0, 1, 2)])
    behind.answers_max = 3
    found = [row for part in parts for batch in query.read(part) for row in batch.to_pylist()]
    assert sorted(int(row["data"]) for row in found) == list(range(93, 100))
    gone = reader(broker.url, name, ending=95, **options)
    assert sorted(numbers(gone)) == list(range(87, 94))


def test_a_time_is_looked_up_at_the_leader(broker: Broker, name: str, behind: Behind) -> None:
    middle = datetime.now(UTC)
    broker.publish(name, [(f"{name}.0", b"", b"100")])
    starting = middle.isoformat().replace("+00:00", "Z")
    assert numbers(reader(broker.url, name, domain=DOMAIN, starting=starting)) == [100]
    early = reader(broker.url, name, domain=DOMAIN, ending=starting)
    assert numbers(early) == list(range(100))


def test_a_bucket_has_its_newest_values(broker: Broker, name: str) -> None:
    stream = f"KV_{name}"
    broker.create(stream, subjects=[f"$KV.{name}.>"], max_msgs_per_subject=2)
    broker.publish(stream, [(f"$KV.{name}.{key}", b"", b"old") for key in "abc"])
    with Behind(broker.url, stream) as behind:
        broker.publish(stream, [(f"$KV.{name}.{key}", b"", b"new") for key in "bcd"])
        given = {"servers": broker.url, "bucket": name, "domain": DOMAIN}
        table = KvDataSource(given).reader(KV_SCHEMA)
        found = [
            row for part in table.partitions() for batch in table.read(part) for row in batch.to_pylist()
        ]
        wanted = [("a", b"old"), ("b", b"new"), ("c", b"new"), ("d", b"new")]
        assert sorted((row["key"], row["value"]) for row in found) == wanted
        frame = headrace.read_kv(broker.url, name, connection={"domain": DOMAIN}).to_polars().sort("key")
        assert frame.select("key", "value").rows() == wanted
        assert behind.answers > 1


@pytest.mark.parametrize("subject", ["", ".3"])
def test_large_rows_of_the_leader_come_in_blocks(
    broker: Broker, name: str, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(name)
    broker.fill(name, 1)
    # Small ones first: the size of the following ones is not known.
    sizes = [10] * 200 + [100_000] * 60 + [10] * 100
    with Behind(broker.url, name):
        broker.publish(name, [(f"{name}.{n % 7}", b"", b"x" * size) for n, size in enumerate(sizes)])
        monkeypatch.setattr(direct_get_reader, "_RESPONSE_BYTES_MAX", 1 << 20)
        monkeypatch.setattr(range_reader, "BLOCK_BYTES_MAX", 1 << 20)
        taken: list[Any] = []
        made = range_reader.block_of
        monkeypatch.setattr(
            range_reader, "block_of", lambda messages: taken.append(messages) or made(messages)
        )
        query = reader(
            broker.url, name, domain=DOMAIN, **({"subject": f"{name}{subject}"} if subject else {})
        )
        found = [row["seq"] for row in rows(query)]
    wanted = [n + 2 for n in range(len(sizes)) if not subject or n % 7 == 3]
    assert found == ([] if subject else [1]) + wanted
    assert max(sum(len(message.payload) for message in block) for block in taken) < 8 << 20
    assert subject or len(taken) > 3


def test_a_range_in_which_a_leader_is_elected(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream without a leader returns 503 for a moment; that must not end a read, whichever request gets it."""
    broker.create(name)
    broker.fill(name, 10)
    refused: list[str] = []
    request = BlockingConnection.request

    def elected(link: BlockingConnection, subject: str, *rest: Any, **options: Any) -> Any:
        answer = request(link, subject, *rest, **options)
        if subject.startswith(("$JS.API.STREAM.INFO", "$JS.API.STREAM.MSG.GET")) and subject not in refused:
            refused.append(subject)
            body = {
                "error": {
                    "code": 503,
                    "err_code": 10008,
                    "description": "JetStream system temporarily unavailable",
                }
            }
            return answer._replace(payload=json.dumps(body).encode())
        return answer

    late = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    query = reader(broker.url, name, subject=f"{name}.0", reconnect="5s")
    parts = query.partitions()
    monkeypatch.setattr(BlockingConnection, "request", elected)
    assert _numbers_of(query, parts) == [0, 7]
    assert len(refused) >= 2
    refused[:] = [f"$JS.API.STREAM.INFO.{name}"]
    assert stream_admin.find_seq_at_time(query.options, parse_time_ns(late)) is None
    assert len(refused) >= 2


def test_an_end_of_a_bucket_that_is_not_there_yet(broker: Broker, name: str) -> None:
    stream = f"KV_{name}"
    broker.create(stream, subjects=[f"$KV.{name}.>"], max_msgs_per_subject=1)
    broker.publish(stream, [(f"$KV.{name}.{key}", b"", b"1") for key in "abc"])
    given = {"servers": broker.url, "bucket": name, "failOnDataLoss": "true", "reconnect": "120s"}
    started_s = time.monotonic()
    table = KvDataSource({**given, "ending": "6"}).reader(KV_SCHEMA)
    parts = table.partitions()
    assert {row["key"] for part in parts for batch in table.read(part) for row in batch.to_pylist()} == set(
        "abc"
    )
    assert time.monotonic() - started_s < 60.0
    table = KvDataSource({**given, "ending": "6", "failOnDataLoss": "false"}).reader(KV_SCHEMA)
    parts = table.partitions()
    broker.publish(stream, [(f"$KV.{name}.{key}", b"", b"2") for key in "abc"])
    found = [row for part in parts for batch in table.read(part) for row in batch.to_pylist()]
    assert [(row["key"], row["revision"]) for row in found] == [("a", 4), ("b", 5)], "as far as the end"


def test_a_block_is_no_larger_than_an_array_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_get_decode, "_BINARY_MAX", 100)
    made = direct_get_decode.block_of(
        [direct_get_decode.StoredMessage(n, 0, b"s", b"", b"x" * 30) for n in range(1, 5)]
    )
    assert len(made.to_columns(["data"], slice(0, 3))["data"]) == 3
    with pytest.raises(OverflowError, match="4 messages"):
        made.to_columns(["data"], slice(0, 4))


def test_a_leader_that_does_not_answer_is_an_error(broker: Broker, name: str, behind: Behind) -> None:
    query = reader(broker.url, name, domain=DOMAIN, timeout="300ms", reconnect="500ms")
    parts = query.partitions()
    behind.silent = (b"STREAM.MSG.GET.",)
    started_s = time.monotonic()
    with pytest.raises(ConnectionFailed, match=r"STREAM\.MSG\.GET"):
        list(query.read(parts[0]))
    assert time.monotonic() - started_s < 60.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_user_who_may_not_ask_the_leader(kind: str, name: str) -> None:
    allowed = '["$JS.API.STREAM.INFO.>", "$JS.API.STREAM.NAMES", "$JS.API.DIRECT.GET.>"]'
    users = f"""{{ user: all, password: pw }}
        {{ user: some, password: pw, permissions: {{ publish: {allowed}, subscribe: ["_INBOX.>"] }} }}"""
    with Server(kind, Setup(config=f"authorization {{ users: [ {users} ] }}")) as server:
        link = BlockingConnection(ServerAddress(servers=(server.url,), user="all", password="pw"))
        config = {"name": name, "subjects": [f"{name}.>"], "allow_direct": True}
        link.request(f"$JS.API.STREAM.CREATE.{name}", config)
        for n in range(10):
            link.request(f"{name}.{n % 2}", b"%d" % n)
        link.close()
        known = {"user": "some", "password": "pw", "reconnect": "1s"}
        assert numbers(reader(server.url, name, **known)) == list(range(10)), "the end was read: all is there"
        with pytest.raises(StreamError, match=r"may not publish to \$JS\.API\.STREAM\.MSG\.GET"):
            numbers(reader(server.url, name, subject=f"{name}.0", **known))


def test_a_leader_that_lost_the_end_of_a_range_is_an_error(broker: Broker, name: str) -> None:
    broker.create(name)
    broker.fill(name, 10)
    query = reader(broker.url, name, reconnect="500ms")
    parts = query.partitions()
    broker.api(f"STREAM.DELETE.{name}")
    broker.create(name)
    broker.fill(name, 5)
    with pytest.raises(DataLoss, match="ends at sequence 5"):
        list(query.read(parts[0]))


async def test_a_key_is_created_by_what_the_leader_has(broker: Broker, name: str) -> None:
    """A replica without the deletion returns a value, one without the key returns nothing."""
    stream = f"KV_{name}"
    broker.create(stream, subjects=[f"$KV.{name}.>"], max_msgs_per_subject=1, allow_rollup_hdrs=True)
    deleted = b"KV-Operation: DEL\r\n"
    broker.publish(stream, [(f"$KV.{name}.a", b"", b"1")])
    with Behind(broker.url, stream) as behind:
        broker.publish(stream, [(f"$KV.{name}.{key}", deleted, b"") for key in "ab"])
        connection = await nats.connect(broker.url)
        try:
            bucket = await JetStream(connection, domain=DOMAIN).key_value(name)
            assert [await bucket.create(key, b"2") for key in "ab"] == [4, 5]
        finally:
            await connection.close()
        assert behind.silent == ()


def test_a_filtered_mirror_answers_for_its_origin(brokers: dict[str, Broker], name: str) -> None:
    """nats-server asks either upstream or mirrors; a mirror with a filter has gaps between its messages."""
    broker = brokers[NATS_SERVER]
    broker.create(name)
    broker.fill(name, 50)
    for number in range(3):
        mirror = {"name": name, "filter_subject": f"{name}.{number}"}
        broker.api(f"STREAM.CREATE.{name}M{number}", {"name": f"{name}M{number}", "mirror": mirror})
    eventually(lambda: len(_responders(broker, name)) == 4)
    for _ in range(5):
        assert numbers(reader(broker.url, name)) == list(range(50))
        some = reader(broker.url, name, subject=f"{name}.3")
        assert numbers(some) == [n for n in range(50) if n % 7 == 3]
        newest = reader(broker.url, name, starting="last-per-subject")
        assert sorted(numbers(newest)) == list(range(43, 50))


def _responders(broker: Broker, stream: str) -> set[bytes]:
    """Return the streams that answer direct gets of a stream, as far as a few dozen requests show."""
    asked = [
        broker.link.request(f"$JS.API.DIRECT.GET.{stream}", {"next_by_subj": ">", "seq": 1})
        for _ in range(40)
    ]
    return {frame.header.partition(b"Nats-Stream: ")[2].partition(b"\r\n")[0] for frame in asked}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def _clustered(cluster: Cluster, name: str) -> None:
    config = {"name": name, "subjects": [f"{name}.>"], "allow_direct": True, "num_replicas": 3}
    cluster.api(f"STREAM.CREATE.{name}", config)


def _publish(link: BlockingConnection, name: str, start: int, count: int) -> None:
    """Publish messages and wait until they are stored."""
    waiting = {link.new_inbox(): n for n in range(start, start + count)}
    link.send(
        b"".join(
            b"PUB %s.%d %s %d\r\n%d\r\n" % (name.encode(), n % 3, reply, len(str(n)), n)
            for reply, n in waiting.items()
        )
    )
    for frame in link.iter_messages(30.0):
        assert "error" not in json.loads(frame.payload)
        waiting.pop(frame.subject, None)
        if not waiting:
            return


def test_a_follower_that_was_suspended(cluster: Cluster, name: str) -> None:
    """Read through a node that resumes after messages were stored without it."""
    _clustered(cluster, name)
    follower, leader = cluster.followers_of(name)[0], cluster.leader_of(name)
    link = BlockingConnection(leader.address)
    for start in range(0, 80_000, 8_000):
        end = start + 8_000
        follower.stop()
        try:
            _publish(link, name, start, 8_000)
            parts = reader(leader.url, name, timeout="3s").partitions()
        finally:
            follower.resume()
        some = reader(follower.url, name, timeout="3s", subject=f"{name}.1")
        assert _numbers_of(some, parts) == [n for n in range(end) if n % 3 == 1]
        assert _numbers_of(reader(follower.url, name, timeout="3s"), parts) == list(range(end))
    link.close()


def test_a_node_without_a_leader_ends_no_range(cluster: Cluster, name: str) -> None:
    _clustered(cluster, name)
    follower = cluster.followers_of(name)[0]
    link = BlockingConnection(follower.address)
    _publish(link, name, 0, 100)
    query = reader(follower.url, name, subject=f"{name}.0", timeout="300ms", reconnect="1s")
    parts = query.partitions()
    others = [node for node in cluster.nodes if node is not follower]
    for node in others:
        node.stop()
    try:
        with pytest.raises(ConnectionFailed):
            list(query.read(parts[0]))
    finally:
        for node in others:
            node.resume()
        link.close()
    cluster.leader_of(name)
    eventually(lambda: _try_numbers(query, parts) == list(range(0, 100, 3)))


def _try_numbers(query: JetStreamBatchReader, parts: Sequence[InputPartition]) -> list[int]:
    try:
        return _numbers_of(query, parts)
    except ConnectionFailed:
        return []


def _numbers_of(query: JetStreamBatchReader, parts: Sequence[InputPartition]) -> list[int]:
    batches = (batch for part in parts for batch in query.read(part))
    return [int(data) for batch in batches for data in batch["data"].to_pylist()]
