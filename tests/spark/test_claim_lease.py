"""What leases record about a query, and what happens when the server rejects them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import nats
import pyarrow as pa
import pytest

from headrace.claims.jetstream_client import JetStreamClient
from headrace.claims.registry import Registry
from headrace.reader import claim_lease
from headrace.reader.blocking_connection import ConnectionFailed, ServerAddress, ServerRejected
from headrace.reader.claim_lease import ClaimReaderLease, LeaseRange
from headrace.reader.options import ReadOptions, parse_read_options
from headrace.reader.stream_admin import StreamError
from headrace.spark import schema as schemas
from headrace.spark.batch_reader import JetStreamBatchReader
from headrace.spark.kv.kv_datasource import KV_SCHEMA, KvDataSource
from headrace.spark.micro_batch_reader import JetStreamMicroBatchReader
from spark.conftest import TIMEOUT_S, Begun, Broker, eventually

SCHEMA = schemas.make_arrow_schema(schemas.STREAM_SCHEMA, schemas.STREAM_SCHEMA)


class Server:
    """Replies with the given errors, and records what it receives."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.refusal: Exception | None = None
        self.claimless = 0  # this many requests find no registry yet

    def write(self, link: Any, options: Any, subject: str, reach: LeaseRange) -> bool:
        self.told.append(reach.finished)
        if self.refusal is not None:
            raise self.refusal
        return len(self.told) > self.claimless


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setattr(
        claim_lease, "BlockingConnection", lambda address: SimpleNamespace(close=lambda: None)
    )
    monkeypatch.setattr(claim_lease, "_write_if_registry", made.write)
    return made


@pytest.fixture
def lease(server: Server) -> Iterator[ClaimReaderLease]:
    made = ClaimReaderLease(SimpleNamespace(stream="S", claim_reader="r", lease_s=3600.0, address=None))  # type: ignore[arg-type]
    yield made
    made.close()


@pytest.mark.parametrize("refusal", [StreamError("insufficient resources"), ConnectionFailed("away")])
def test_a_rejected_lease_is_written_again(
    server: Server, lease: ClaimReaderLease, refusal: Exception
) -> None:
    server.refusal = refusal
    lease.extend(LeaseRange(5, 1))
    server.refusal = None
    lease.extend(LeaseRange(5, 1))
    lease.extend(LeaseRange(5, 1))
    assert server.told == [5, 5]


def test_the_registry_may_come_later(
    server: Server, lease: ClaimReaderLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_lease, "_RENEW_CHECK_S", 0.01)
    server.claimless = 3
    lease.extend(LeaseRange(5, 1))
    eventually(lambda: lease._written_range is not None)  # the lease is updated shortly after the server
    lease.extend(LeaseRange(5, 1))
    assert server.told == [5] * 4  # reported once when it exists, not again


def test_a_missing_registry_is_checked_again_for_each_position(
    server: Server, lease: ClaimReaderLease
) -> None:
    server.claimless = 1
    lease.extend(LeaseRange(5, 1))
    lease.extend(LeaseRange(5, 1))
    lease.extend(LeaseRange(5, 1))
    assert server.told == [5, 5]


def test_a_lease_without_permission_is_not_retried(server: Server, lease: ClaimReaderLease) -> None:
    server.refusal = ServerRejected("permissions violation")
    lease.extend(LeaseRange(5, 1))
    lease.extend(LeaseRange(6, 1))
    assert server.told == [5]


def test_a_lease_goes_back_with_its_query(server: Server, lease: ClaimReaderLease) -> None:
    """If a server has been restored to an older state, finished sequences appear again."""
    lease.extend(LeaseRange(9, 1))
    lease.extend(LeaseRange(4, 1))
    assert server.told == [9, 4]


def test_after_the_end_nothing_is_told(server: Server, lease: ClaimReaderLease) -> None:
    lease.extend(LeaseRange(1, 1))
    lease.close()
    lease.extend(LeaseRange(2, 1))
    assert server.told == [1]


def test_a_query_that_was_there_before_the_registry(
    own_broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_lease, "_RENEW_CHECK_S", 0.05)
    own_broker.create(name)
    address = ServerAddress(servers=(own_broker.url,))
    lease = ClaimReaderLease(ReadOptions(address=address, stream=name, claim_reader="r"))
    try:
        lease.extend(LeaseRange(7, 1))
        own_broker.create("CLAIMS", subjects=["$CLAIMS.reader.*.*"], allow_msg_ttl=True)
        eventually(lambda: own_broker.state("CLAIMS")["messages"] == 1)
        said = own_broker.api("STREAM.MSG.GET.CLAIMS", {"last_by_subj": f"$CLAIMS.reader.{name}.r"})
        assert json.loads(base64.b64decode(said["message"]["data"])) == {"acked": 7, "start": 1}
    finally:
        lease.close()


async def _keep_claims(url: str) -> None:
    connection = await nats.connect(url, connect_timeout=TIMEOUT_S)
    wire = JetStreamClient(connection, timeout_s=TIMEOUT_S)
    try:
        await Registry(wire).ensure()
    finally:
        await wire.close()
        await connection.close()


@pytest.fixture
def keeping(ours: Broker) -> Broker:
    """A server with a registry of claims."""
    asyncio.run(_keep_claims(ours.url))
    return ours


def told(broker: Broker, stream: str) -> dict[str, Any]:
    """Return the lease of reader `r`."""
    found = broker.api("STREAM.MSG.GET.CLAIMS", {"last_by_subj": f"$CLAIMS.reader.{stream}.r"})["message"]
    said: dict[str, Any] = json.loads(base64.b64decode(found["data"]))
    return said


@pytest.fixture
def query(begun: Begun[JetStreamMicroBatchReader]) -> Callable[..., JetStreamMicroBatchReader]:
    """`query(broker, stream, **options)`: a streaming query as Spark's driver uses it."""

    def begin(broker: Broker, stream: str, **options: str) -> JetStreamMicroBatchReader:
        given = {"servers": broker.url, "stream": stream, "claimReader": "r", **options}
        return begun(JetStreamMicroBatchReader(parse_read_options(given), SCHEMA))

    return begin


@pytest.mark.parametrize(
    ("starting", "acked"), [("earliest", 0), ("2", 1), ("latest", 3), ("last-per-subject", 0)]
)
def test_a_batch_read_protects_all_that_it_reads(
    keeping: Broker, name: str, starting: str, acked: int
) -> None:
    keeping.create(name)
    keeping.fill(name, 3)
    given = {"servers": keeping.url, "stream": name, "starting": starting, "claimReader": "r"}
    JetStreamBatchReader(parse_read_options(given), SCHEMA).partitions()
    assert told(keeping, name) == {"acked": acked, "start": acked + 1}


def test_a_lease_says_which_subjects_its_query_reads(keeping: Broker, name: str) -> None:
    keeping.create(name)
    keeping.fill(name, 3)
    given = {"servers": keeping.url, "stream": name, "subject": f"{name}.a", "claimReader": "r"}
    JetStreamBatchReader(parse_read_options(given), SCHEMA).partitions()
    assert told(keeping, name)["filters"] == [f"{name}.a"]


@pytest.mark.parametrize(
    ("starting", "start"), [("earliest", 1), ("2", 2), ("latest", 4), ("last-per-subject", 1)]
)
def test_a_lease_says_where_its_query_began_also_after_a_restart(
    keeping: Broker, name: str, query: Callable[..., JetStreamMicroBatchReader], starting: str, start: int
) -> None:
    keeping.create(name)
    keeping.fill(name, 3)
    first = query(keeping, name, starting=starting)
    begin = first.initialOffset()
    acked = 0 if starting == "last-per-subject" else start - 1
    assert told(keeping, name) == {"acked": acked, "start": start}
    keeping.fill(name, 2)
    end = first.latestOffset(first.latestOffset(begin))
    first.stop()
    again = query(keeping, name, starting=starting)
    again.latestOffset(end)
    assert told(keeping, name) == {"acked": 5, "start": start}
    again.stop()
    del end["began"]
    other = query(keeping, name)
    keeping.fill(name, 2)
    other.latestOffset(other.latestOffset(end))
    assert told(keeping, name) == {"acked": 7, "start": 6}, "where an older checkpoint goes on"


def test_a_lease_follows_its_query_into_a_stream_made_anew(
    keeping: Broker, name: str, query: Callable[..., JetStreamMicroBatchReader]
) -> None:
    keeping.create(name)
    keeping.fill(name, 5)
    reader = query(keeping, name, starting="earliest", failOnDataLoss="false")
    end = reader.latestOffset(reader.initialOffset())
    reader.commit(end)
    assert told(keeping, name) == {"acked": 5, "start": 1}
    keeping.api(f"STREAM.DELETE.{name}")
    keeping.create(name, first_seq=3)
    keeping.fill(name, 2)
    new = reader.latestOffset(end)
    assert told(keeping, name) == {"acked": 2, "start": 3}
    reader.commit(end)
    reader.partitions(end, new)
    assert told(keeping, name) == {"acked": 2, "start": 3}, "nothing of the new stream is finished"
    reader.commit(new)
    assert told(keeping, name) == {"acked": 4, "start": 3}


@pytest.mark.parametrize(
    ("columns", "options", "is_told"),
    [
        (("data", "headers"), {}, True),
        (("claim",), {}, True),
        (("data", "subject"), {}, False),
        (("headers", "seq"), {}, False),
        (("data", "headers"), {"claimReader": "none"}, False),
    ],
)
def test_who_can_resolve_claims_has_a_lease(
    keeping: Broker, name: str, columns: tuple[str, ...], options: dict[str, str], is_told: bool
) -> None:
    keeping.create(name)
    keeping.fill(name, 3)
    schema = pa.schema([field for field in SCHEMA if field.name in columns])
    given = {"servers": keeping.url, "stream": name, "starting": "earliest", **options}
    JetStreamBatchReader(parse_read_options(given), schema).partitions()
    streaming = JetStreamMicroBatchReader(parse_read_options(given), schema)
    streaming.initialOffset()
    streaming.stop()
    wanted = {"subjects_filter": f"$CLAIMS.reader.{name}.*"}
    found = keeping.api("STREAM.INFO.CLAIMS", wanted)["state"].get("subjects") or {}
    assert len(found) == (2 if is_told else 0)


def test_values_of_a_bucket_are_no_claims(keeping: Broker, name: str) -> None:
    keeping.create(f"KV_{name}", subjects=[f"$KV.{name}.>"])
    KvDataSource({"servers": keeping.url, "bucket": name}).reader(KV_SCHEMA).partitions()
    wanted = {"subjects_filter": f"$CLAIMS.reader.KV_{name}.*"}
    assert not keeping.api("STREAM.INFO.CLAIMS", wanted)["state"].get("subjects")


def test_a_query_on_files_alone_tells_no_server(
    own_broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_broker.create(name)
    own_broker.fill(name, 3)
    own_broker.server.stop()
    asked: list[ServerAddress] = []
    monkeypatch.setattr(claim_lease, "BlockingConnection", asked.append)
    given = parse_read_options({"stream": name, "path": own_broker.path, "starting": "earliest"})
    assert JetStreamBatchReader(given, SCHEMA).partitions()
    query = JetStreamMicroBatchReader(given, SCHEMA)
    query.latestOffset(query.initialOffset())
    query.stop()
    assert asked == []
