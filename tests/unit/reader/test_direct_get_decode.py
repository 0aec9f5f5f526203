"""Replies to direct gets become columns, however they arrive."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.errors import ProtocolError
from headrace.reader import options as o
from headrace.reader.direct_get_decode import ReplyBlockScanner, compute_expires_at

_END = b"NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 9\r\n\r\n"


def _message(seq: int, subject: str, own: str = "", payload: bytes = b"") -> bytes:
    header = (
        f"NATS/1.0\r\n{own}Nats-Stream: S\r\nNats-Subject: {subject}\r\nNats-Sequence: {seq}\r\n"
        f"Nats-Time-Stamp: 2026-11-15T09:44:03.5034761Z\r\nNats-Num-Pending: 1\r\nNats-Last-Sequence: 0\r\n\r\n"
    ).encode()
    return b"HMSG I.1 1 %d %d\r\n%s%s\r\n" % (len(header), len(header) + len(payload), header, payload)


BLOCK = (
    _message(7, "a.b", payload=b"HMSG I.1 1 5 5\r\n")
    + _message(8, "", "Nats-Stream: T\r\nA: x: y\r\nA:z\r\nNats-TTL: 90\r\n", b"\r\n\r\n")
    + _message(9, "a", "Nats-TTL: never\r\n")
    + b"HMSG I.1 1 %d %d\r\n%s\r\n" % (len(_END), len(_END), _END)
)


@pytest.mark.parametrize("step", [1, 7, len(BLOCK)])
def test_a_block_is_the_same_however_it_arrives(step: int) -> None:
    scanner, buffer = ReplyBlockScanner(b"I.1"), bytearray()
    ended = False
    for at in range(0, len(BLOCK), step):
        assert not ended
        buffer += BLOCK[at : at + step]
        ended = scanner.scan(buffer)
    assert ended
    block = scanner.take_block(buffer)
    assert not buffer
    columns = block.to_columns(["seq", "subject", "data", "headers", "expires_at", "time"], slice(0, 3))
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
    with pytest.raises(ProtocolError, match="has no 'Nats-Sequence: '"):
        ReplyBlockScanner(b"I.1").scan(buffer)


def test_deadlines_of_every_kind_of_ttl() -> None:
    times = pa.array([0] * 5, pa.timestamp("ns", tz="UTC"))
    found = compute_expires_at(times, pa.array(["1m30s", "5", "never", None, "0"]))
    assert found.cast(pa.int64()).to_pylist() == [90 * o.NS, 5 * o.NS, None, None, None]
    texts = [".5m", "1m.5s", "+60", "NEVER", "soon", "1.s", str(2**62)]
    times = pa.array([0] * len(texts), pa.timestamp("ns", tz="UTC"))
    seconds = [30, 60, 60, None, None, 1, 2**32 - 2]
    ends = [None if each is None else each * o.NS for each in seconds]
    assert compute_expires_at(times, pa.array(texts)).cast(pa.int64()).to_pylist() == ends
