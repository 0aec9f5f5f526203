"""Pinned files over HTTP: the same rows as from the folder, and nothing without a token."""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from conformance.servers import OURS, Server, Setup
from headrace.reader import http_snapshot
from headrace.reader.blocking_connection import (
    BlockingConnection,
    ServerAddress,
    ServerRejected,
    drop_connection,
)
from headrace.reader.options import OptionError, parse_read_options
from headrace.reader.stream_admin import StreamError
from headrace.spark import schema as schemas
from headrace.spark.batch_reader import JetStreamBatchReader
from spark.conftest import TIMEOUT_S, Broker, eventually, monitored
from support.ports import free_port

MIB = 1 << 20


@pytest.fixture(scope="module")
def large() -> Iterator[Broker]:
    """A broker with a stream of several segments."""
    broker = Broker(Server(OURS, monitored()))
    broker.create("L")
    noise = os.urandom(MIB - 4096)
    broker.publish("L", [(f"L.{n % 7}", b"", b"%06d" % n + noise) for n in range(150)])
    broker.api("STREAM.MSG.DELETE.L", {"seq": 70})
    yield broker
    broker.close()


def reader(broker: Broker, stream: str, columns: str = "", **options: Any) -> JetStreamBatchReader:
    given = {"servers": broker.url, "stream": stream, **options}
    wanted = [
        field for field in schemas.STREAM_SCHEMA.fields if not columns or field.name in columns.split(",")
    ]
    schema = schemas.make_arrow_schema(type(schemas.STREAM_SCHEMA)(wanted), schemas.STREAM_SCHEMA)
    return JetStreamBatchReader(parse_read_options(given), schema)


def table(broker: Broker, stream: str, columns: str = "", **options: Any) -> pa.Table:
    query = reader(broker, stream, columns, **options)
    batches = [batch for part in query.partitions() for batch in query.read(part)]
    return pa.Table.from_batches(batches, query.schema)


@pytest.mark.parametrize(
    "span", [{}, {"starting": "60", "ending": "80"}, {"subject": "L.3", "starting": "100"}]
)
def test_the_rows_are_those_of_the_folder(large: Broker, span: dict[str, str]) -> None:
    options = {"minPartitions": "4", **span}
    expected = table(large, "L", path=large.path, **options)
    assert expected.num_rows
    assert table(large, "L", path=large.web, **options).equals(expected)


def test_compressed_segments_are_read_from_the_folder_and_over_http(ours: Broker, name: str) -> None:
    ours.create(name, compression="s2")
    payloads: list[bytes] = []

    def publish_until_compressed() -> bool:
        """The first blocks may be plain, until the root names the feature."""
        more = [b'{"order":%d,"note":"%s"}' % (len(payloads) + n, b"-" * 100) for n in range(2_000)]
        ours.publish(name, [(f"{name}.a", b"", payload) for payload in more])
        payloads.extend(more)
        segments = Path(ours.path).glob("**/streams/*/*.seg")
        return any(b"HRs2" in path.read_bytes() for path in segments)

    eventually(publish_until_compressed)
    end = len(payloads) - 100
    for path in (ours.path, ours.web):
        found = table(ours, name, "seq,data", path=path, starting="100", ending=str(end))
        assert found["seq"].to_pylist() == list(range(100, end))
        assert found["data"].to_pylist() == payloads[99 : end - 1]


def test_only_the_blocks_that_a_range_touches_are_fetched(
    large: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []
    ask = http_snapshot.PinFileClient._request

    def counted(self: http_snapshot.PinFileClient, *place: Any) -> tuple[bytes, int]:
        body, size = ask(self, *place)
        fetched.append(len(body))
        return body, size

    monkeypatch.setattr(http_snapshot.PinFileClient, "_request", counted)
    assert table(large, "L", "seq", path=large.web, starting="20", ending="22")["seq"].to_pylist() == [20, 21]
    assert sum(fetched) < 4 * MIB


def get(broker: Broker, path: str, token: str = "", span: str = "bytes=0-") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(broker.web.removeprefix("http://"), timeout=TIMEOUT_S)
    headers = {"Range": span, **({"Authorization": f"Bearer {token}"} if token else {})}
    connection.putrequest("GET", path, skip_host=False)
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def pin(broker: Broker, stream: str, **more: Any) -> dict[str, Any]:
    return broker.api(f"STREAM.PIN.{stream}", {"lease": 60, "grant": True, **more})


def test_a_token_opens_one_pin_and_as_long_as_it_is_held(ours: Broker, name: str) -> None:
    ours.create(name)
    ours.fill(name, 10)
    first, second = pin(ours, name), pin(ours, name)
    place = f"/pins/{first['pin']}/manifest"
    assert get(ours, place, first["token"])[0] == 206
    assert get(ours, place, first["token"], "bytes=2-4")[1] == get(ours, place, first["token"])[1][2:5]
    for wrong in ("", "x", second["token"], first["token"][:-1]):
        assert get(ours, place, wrong)[0] == 401
    assert pin(ours, name, pin=first["pin"])["token"] == first["token"], "asked for again, after a restart"
    ours.api(f"STREAM.UNPIN.{name}", {"pin": first["pin"]})
    assert get(ours, place, first["token"])[0] == 410
    brief = ours.api(f"STREAM.PIN.{name}", {"lease": 0.001, "grant": True})
    eventually(lambda: get(ours, f"/pins/{brief['pin']}/manifest", brief["token"])[0] == 410)


@pytest.mark.parametrize(
    "path",
    [
        "../../lock",
        "..%2f..%2flock",
        "%2e%2e/%2e%2e/lock",
        "/etc/passwd",
        "..%5c..%5clock",
        "manifest/../../../lock",
        "manifest%00",
        "lock",
        "",
        "00000000.seg/",
    ],
)
def test_no_path_leads_elsewhere(ours: Broker, path: str) -> None:
    held = pin(ours, "STAYS")
    status, body = get(ours, f"/pins/{held['pin']}/{path}", held["token"])
    assert (status, body) == (404, b"404 page not found\n")
    assert get(ours, f"/pins/../{held['pin']}/manifest", held["token"])[0] == 404
    assert get(ours, f"/pins/{held['pin']}/ffffffff.seg", held["token"])[0] == 404


@pytest.mark.parametrize(("span", "status"), [("bytes=999999-", 416), ("bytes=5", 400), ("lines=1-2", 400)])
def test_a_range_that_makes_no_sense_is_refused(ours: Broker, span: str, status: int) -> None:
    held = pin(ours, "STAYS")
    assert get(ours, f"/pins/{held['pin']}/manifest", held["token"], span)[0] == status


def test_a_broker_that_restarts_meanwhile_is_waited_for(own_broker: Broker, name: str) -> None:
    broker = own_broker
    broker.create(name)
    broker.fill(name, 3000)
    query = reader(broker, name, "seq", path=broker.web, minPartitions="3")
    parts = query.partitions()
    before = [batch.num_rows for batch in query.read(parts[0])]
    broker.server.restart(crash=True)
    http_snapshot.load_manifest.cache_clear()
    after = [batch.num_rows for part in parts[1:] for batch in query.read(part)]
    assert (sum(before), sum(after)) == (1000, 2000)


def test_the_folder_alone_opens_nothing_and_neither_does_a_user_without_permission(tmp_path: Path) -> None:
    users = """
        authorization { users = [
            { user: ann, password: a }
            { user: bob, password: b, permissions: { publish: { deny: ["$JS.API.STREAM.PIN.>"] } } }
        ] }
    """
    with Server(OURS, Setup(flags=("-m", str(free_port())), config=users)) as server:
        who = ServerAddress(servers=(server.url,), user="ann", password="a")
        link = BlockingConnection(who)
        link.request("$JS.API.STREAM.CREATE.P", {"name": "P", "subjects": ["p.>"], "allow_direct": True})
        link.close()
        web = server.monitoring_url("")
        for path in (str(server.store_dir), web):
            given = {"servers": server.url, "stream": "P", "path": path}
            schema = schemas.make_arrow_schema(schemas.STREAM_SCHEMA, schemas.STREAM_SCHEMA)
            allowed = JetStreamBatchReader(
                parse_read_options({**given, "user": "ann", "password": "a"}), schema
            )
            assert allowed.partitions() == []
            denied = JetStreamBatchReader(
                parse_read_options({**given, "user": "bob", "password": "b"}), schema
            )
            with pytest.raises((ServerRejected, StreamError), match=r"(?i)permission"):
                denied.partitions()
        for user, password in (("ann", "a"), ("bob", "b")):
            drop_connection(ServerAddress(servers=(server.url,), user=user, password=password))
    with pytest.raises(OptionError, match="set option `servers` too"):
        parse_read_options({"stream": "P", "path": web})
