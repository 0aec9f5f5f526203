from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from headrace.reader.blocking_connection import BlockingConnection, ConnectionFailed, Msg, ServerAddress
from headrace.spark.write.acks import AckReader, explain_refusal, parse_reply

INBOX = b"_INBOX.a.1"


def reply(payload: bytes, inbox: bytes = INBOX) -> bytes:
    return b"MSG %s 1 %d\r\n%s\r\n" % (inbox, len(payload), payload)


def ack(seq: int, more: bytes = b"") -> bytes:
    return reply(b'{"stream":"S","seq":%d%s}' % (seq, more))


@pytest.fixture
def pair() -> Iterator[tuple[BlockingConnection, socket.socket]]:
    """A connection without its handshake, and the server's end of it."""
    ours, theirs = socket.socketpair()
    connection = BlockingConnection.__new__(BlockingConnection)
    connection.address = ServerAddress(timeout_s=5.0)
    connection.buffer = bytearray()
    connection.closed = False
    connection._recv_chunk = memoryview(bytearray(7))
    connection._sock = ours
    yield connection, theirs
    ours.close()
    theirs.close()


def test_replies_are_counted_in_whatever_pieces_they_arrive(
    pair: tuple[BlockingConnection, socket.socket],
) -> None:
    connection, server = pair
    other = reply(b'{"stream":"S","seq":9}', b"_INBOX.a.2")
    error = reply(b'{"error":{"code":400,"err_code":10054,"description":"large"},"stream":"S","seq":0}')
    duplicate = ack(2, b',"duplicate": true')
    foreign = reply(b'{"stream":"T","seq":9}')
    server.sendall(ack(1) + other + duplicate + b"PING\r\n" + error + ack(3, b',"domain":"hub"') + foreign)
    reader = AckReader(connection, "S")
    acks = reader.receive(INBOX, 5)
    assert (acks.stored, acks.duplicates) == (2, 1)
    assert [each["stream"] for each in acks.others] == ["S", "T"]
    assert reader.receive(b"_INBOX.a.2", 1).stored == 1, "it arrived early"
    assert server.recv(20) == b"PONG\r\n"


def test_a_server_that_cannot_decide_now_is_asked_again() -> None:
    for code, err_code in ((503, 10008), (429, 10210), (503, 10023)):
        body = b'{"error":{"code":%d,"err_code":%d,"description":"x"}}' % (code, err_code)
        with pytest.raises(ConnectionFailed):
            parse_reply(Msg(INBOX, b"", b"", body))
    full = b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}'
    assert parse_reply(Msg(INBOX, b"", b"", full))["error"]["err_code"] == 10077


def test_only_what_concerns_a_message_refuses_it() -> None:
    assert explain_refusal({}, "S") == "no stream has its subject"
    assert explain_refusal({"stream": "T", "seq": 1}, "S") == "stream 'T' stored it instead"
    large = {"err_code": 10054, "description": "message size exceeds maximum allowed"}
    assert explain_refusal({"error": large}, "S") == "message size exceeds maximum allowed [10054]"
    assert explain_refusal({"error": {"err_code": 10077}}, "S") == ""
    assert explain_refusal({"stream": "S", "seq": 1}, "S") == ""
