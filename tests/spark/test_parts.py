"""The parts beneath the data sources, without Spark: options, ranges, frames, connections."""

from __future__ import annotations

import socket
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from cli.identities import trusting_server
from conformance.servers import KINDS, Server, Setup
from headrace.errors import ProtocolError
from headrace.spark import options as o
from headrace.spark.blocks import Scanner, deadlines
from headrace.spark.filters import narrowed
from headrace.spark.link import Address, Link, LinkError, _signed
from headrace.spark.offsets import Offset
from headrace.spark.planning import divide
from support import certificates

OPTIONS = o.source_options({"stream": "S"})


@given(st.integers(1, 10**12), st.integers(0, 10**8), st.integers(1, 50), st.integers(1, 10**6))
def test_ranges_follow_each_other(start: int, length: int, partitions: int, most: int) -> None:
    given_options = {"stream": "S", "minPartitions": str(partitions), "maxMessagesPerPartition": str(most)}
    ranges = divide(start, start + length, o.source_options(given_options))
    places = [each.start for each in ranges] + [start + length]
    assert places[0] == start
    assert all(each.end == following for each, following in zip(ranges, places[1:], strict=True))
    assert all(each.start < each.end for each in ranges)


def test_options_are_read_whatever_their_case() -> None:
    read = o.source_options({"STREAM": "S", "maxBytesPerTrigger": "64MB", "FAILONDATALOSS": "False"})
    assert (read.bytes_max, read.fail_on_data_loss) == (64 * 1024 * 1024, False)
    assert o.bound_of("2026-01-01T00:00:00Z").time_ns == 1767225600 * o.NS
    before_ns = time.time_ns()
    assert before_ns <= o.bound_of("-10m").time_ns + 600 * o.NS <= time.time_ns()
    with pytest.raises(ValueError, match="has no time zone"):
        o.bound_of("2026-01-01T00:00:00")


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("lease", "0s", "is too short: a lease lasts a second"),
        ("lease", "1ns", "is too short: a lease lasts a second"),
        ("maxBytesPerTrigger", "0", "would let nothing pass"),
        ("maxBytesPerTrigger", "0MB", "would let nothing pass"),
        ("maxMessagesPerTrigger", "0", "is not a positive number"),
    ],
)
def test_what_is_nothing_is_no_limit_and_no_lease(option: str, text: str, words: str) -> None:
    with pytest.raises(o.OptionError, match=f"option `{option}`: {text!r} {words}"):
        o.source_options({"stream": "S", option: text})


def test_filters_narrow_what_is_read_and_nothing_else() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    cases: list[tuple[list[Any], dict[str, Any]]] = [
        ([GreaterThan(("seq",), 5), LessThanOrEqual(("seq",), 9)], {"starting": "6", "ending": "10"}),
        ([EqualTo(("subject",), "a.b")], {"subject": "a.b"}),
        ([EqualTo(("subject",), "a.*")], {}),
        ([StringStartsWith(("subject",), "a.b.")], {"subject": "a.b.>"}),
        ([StringStartsWith(("subject",), "a.b")], {}),
        ([GreaterThanOrEqual(("time",), noon)], {"starting": "2026-01-01T12:00:00Z"}),
        ([LessThan(("time",), noon)], {}),
        ([EqualTo(("headers", "seq"), 5)], {}),
    ]
    for filters, expected in cases:
        assert narrowed(OPTIONS, filters) == o.source_options({"stream": "S", **expected}), filters
    newest = o.source_options({"stream": "S", "starting": "last-per-subject"})
    assert narrowed(newest, [LessThan(("seq",), 9)]) == newest, "what is last must not depend on a filter"


def test_secrets_are_not_shown() -> None:
    read = o.source_options(
        {"stream": "S", "servers": "nats://ann:hush@h:1", "password": "secret", "token": "t0ken"}
    )
    assert read.address.shown == "h:1"
    assert "secret" not in repr(read.address)
    assert "t0ken" not in repr(read.address)


def test_an_offset_survives_its_json() -> None:
    offset = Offset("S", "17", 5, "pin", began=2)
    assert Offset.from_json(offset.to_json(), OPTIONS) == offset
    older = {name: value for name, value in offset.to_json().items() if name != "began"}
    assert Offset.from_json(older, OPTIONS).began == 5, "nobody knows what the query had read before"
    with pytest.raises(Exception, match="the checkpoint is of stream 'T'"):
        Offset.from_json({**offset.to_json(), "stream": "T"}, OPTIONS)


def _message(seq: int, subject: str, own: str = "", payload: bytes = b"") -> bytes:
    header = (
        f"NATS/1.0\r\n{own}Nats-Stream: S\r\nNats-Subject: {subject}\r\nNats-Sequence: {seq}\r\n"
        f"Nats-Time-Stamp: 2026-11-15T09:44:03.5034761Z\r\nNats-Num-Pending: 1\r\nNats-Last-Sequence: 0\r\n\r\n"
    ).encode()
    return b"HMSG I.1 1 %d %d\r\n%s%s\r\n" % (len(header), len(header) + len(payload), header, payload)


_END = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 9\r\n\r\n"
BLOCK = (
    _message(7, "a.b", payload=b"HMSG I.1 1 5 5\r\n")
    + _message(8, "", "Nats-Stream: T\r\nA: x: y\r\nA:z\r\nNats-TTL: 90\r\n", b"\r\n\r\n")
    + _message(9, "a", "Nats-TTL: never\r\n")
    + b"HMSG I.1 1 %d %d\r\n%s\r\n" % (len(_END), len(_END), _END)
)


@pytest.mark.parametrize("step", [1, 7, len(BLOCK)])
def test_a_block_is_the_same_however_it_arrives(step: int) -> None:
    scanner, buffer = Scanner(b"I.1"), bytearray()
    ended = False
    for at in range(0, len(BLOCK), step):
        assert not ended
        buffer += BLOCK[at : at + step]
        ended = scanner.scan(buffer)
    assert ended
    block = scanner.block(buffer)
    assert not buffer
    columns = block.columns(["seq", "subject", "data", "headers", "expires_at", "time"], slice(0, 3))
    assert columns["seq"].to_pylist() == [7, 8, 9]
    assert columns["subject"].to_pylist() == ["a.b", "", "a"]
    assert columns["data"].to_pylist() == [b"HMSG I.1 1 5 5\r\n", b"\r\n\r\n", b""]
    own = [("Nats-Stream", ["T"]), ("A", ["x: y", "z"]), ("Nats-TTL", ["90"])]
    assert columns["headers"].to_pylist() == [None, own, [("Nats-TTL", ["never"])]]
    spans = [None, 90 * o.NS, None]
    times = columns["time"].cast(pa.int64()).to_pylist()
    ends = [None if span is None else at + span for at, span in zip(times, spans, strict=True)]
    assert columns["expires_at"].cast(pa.int64()).to_pylist() == ends
    assert times[0] % o.NS == 503_476_100


def test_an_answer_of_another_shape_is_refused() -> None:
    buffer = bytearray(BLOCK.replace(b"Nats-Sequence: 8", b"Some-Sequence: 8"))
    with pytest.raises(ProtocolError, match="lacks 'Nats-Sequence: '"):
        Scanner(b"I.1").scan(buffer)


def test_deadlines_of_every_kind_of_ttl() -> None:
    times = pa.array([0] * 5, pa.timestamp("ns", tz="UTC"))
    found = deadlines(times, pa.array(["1m30s", "5", "never", None, "0"]))
    assert found.cast(pa.int64()).to_pylist() == [90 * o.NS, 5 * o.NS, None, None, None]
    texts = [".5m", "1m.5s", "+60", "NEVER", "soon", "1.s", str(2**62)]
    times = pa.array([0] * len(texts), pa.timestamp("ns", tz="UTC"))
    seconds = [30, 60, 60, None, None, 1, 2**32 - 2]
    ends = [None if each is None else each * o.NS for each in seconds]
    assert deadlines(times, pa.array(texts)).cast(pa.int64()).to_pylist() == ends


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_proves_who_it_is_and_speaks_tls(kind: str, tmp_path: Path) -> None:
    made = certificates.make(tmp_path)
    config = (
        f'authorization: {{ user: "ann", password: "hush" }}\n'
        f'tls: {{ cert_file: "{made.cert}", key_file: "{made.key}" }}'
    )
    with Server(kind, Setup(config=config)) as server:
        known = Address(servers=(server.url,), user="ann", password="hush", tls_ca=made.ca)
        link = Link(known)
        assert b"memory" in link.request("$JS.API.INFO").payload
        link.close()
        with pytest.raises(LinkError, match=r"refuses: .*Authorization"):
            Link(Address(servers=(server.url,), user="ann", password="loud", tls_ca=made.ca))


@pytest.mark.parametrize("kind", KINDS)
def test_a_link_shows_credentials_from_a_file(kind: str, tmp_path: Path) -> None:
    config, credentials = trusting_server(tmp_path)
    with Server(kind, Setup(config=config, jetstream=False)) as server:
        link = Link(Address(servers=(server.url,), creds=str(credentials)))
        with pytest.raises(LinkError, match="nobody answers on nowhere"):
            link.request("nowhere")
        link.close()
        (tmp_path / "others").mkdir()
        _, strange = trusting_server(tmp_path / "others")
        with pytest.raises(LinkError, match=r"refuses: .*Authorization"):
            Link(Address(servers=(server.url,), creds=str(strange)))
    strange.write_text("no credentials")
    with pytest.raises(LinkError, match="is no file of credentials"):
        _signed(str(strange), "nonce")


def test_the_next_server_is_tried_and_pings_are_answered() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b'INFO {"server_name":"x"}\r\n')
            while b"PUB" not in b"".join(heard):
                heard.append(peer.recv(65536))
                if b"CONNECT" in heard[-1]:
                    peer.sendall(b"PONG\r\n")
            inbox = b"".join(heard).partition(b"PUB q ")[2].split(b" ")[0]
            peer.sendall(b"PING\r\nMSG %s 1 2\r\nhi\r\n" % inbox)
            heard.append(peer.recv(65536))

    thread = threading.Thread(target=serve)
    thread.start()
    link = Link(Address(servers=("nats://127.0.0.1:1", f"nats://127.0.0.1:{listener.getsockname()[1]}")))
    assert link.request("q").payload == b"hi"
    thread.join(10)
    link.close()
    listener.close()
    assert heard[-1] == b"PONG\r\n"
