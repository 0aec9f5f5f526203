"""Limits of a server: too much, too long, too many, too slow."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from conformance.client import EOF, Client, Wire
from conformance.servers import Server, Setup

Connect = Callable[..., Client]
Launch = Callable[[Setup], Server]
QUIET = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\n'
TOO_LONG = b"-ERR 'maximum control line exceeded'\r\n"
TOO_LARGE = b"-ERR 'Maximum Payload Violation'\r\n"
UNKNOWN = b"-ERR 'Unknown Protocol Operation'\r\n"


class TestPayload:
    def test_the_limit_is_announced_and_allowed(self, wire: Wire, name: str) -> None:
        size = wire.info["max_payload"]
        assert size == 1024 * 1024
        wire.send(QUIET + f"SUB {name} 1\r\nPUB {name} {size}\r\n".encode() + b"x" * size + b"\r\n")
        assert wire.frame() == f"MSG {name} 1 {size}\r\n".encode() + b"x" * size + b"\r\n"

    @pytest.mark.parametrize("operation", [b"PUB a 1048577", b"HPUB a 12 1048577", b"PUB a 999999999"])
    def test_more_is_refused_before_it_arrives(self, wire: Wire, operation: bytes) -> None:
        wire.send(QUIET + operation + b"\r\n")
        wire.expect_end(TOO_LARGE)

    def test_headers_count_towards_max_payload(self, launch: Launch) -> None:
        server = launch(Setup(settings={"max_payload": 20}))
        with Wire(server.port) as wire:
            wire.send(QUIET + b"HPUB a 12 20\r\nNATS/1.0\r\n\r\n12345678\r\nPING\r\n")
            wire.expect(b"PONG\r\n")
            wire.send(b"HPUB a 12 21\r\n")
            wire.expect_end(TOO_LARGE)


class TestControlLine:
    def test_up_to_the_limit(self, wire: Wire) -> None:
        subject = b"a" * (4096 - len(" 1"))
        wire.send(QUIET + b"SUB " + subject + b" 1\r\nPING\r\n")
        wire.expect(b"PONG\r\n")

    @pytest.mark.parametrize(
        "line",
        [
            b"SUB " + b"a" * 4095 + b" 1\r\n",
            b"PUB " + b"a" * 4096 + b" 1\r\n",
            b"HPUB " + b"a" * 4096 + b" 1 1\r\n",
            b"UNSUB " + b"1" * 4097 + b"\r\n",
            b'CONNECT {"name":"' + b"x" * 4096 + b'"}\r\n',
            b"SUB " + b"a" * 6000,
        ],
        ids=["SUB", "PUB", "HPUB", "UNSUB", "CONNECT", "unfinished"],
    )
    def test_a_too_long_control_line_ends_the_connection(self, wire: Wire, line: bytes) -> None:
        wire.send(QUIET + line)
        wire.expect_end(TOO_LONG)


@pytest.mark.parametrize(
    "line",
    [
        b"\r\n",
        b" PING\r\n",
        b"PIN\r\n",
        b"MSG a 1 0\r\n\r\n",
        b"HELLO\r\n",
        b"GET / HTTP/1.1\r\n",
        b"\x16\x03\x01",
        b"SUBX\r\n",
        b"PUB\r\n",
    ],
    ids=["empty", "blank", "short", "MSG", "word", "http", "tls", "SUBX", "PUB"],
)
def test_an_unknown_operation_ends_the_connection(wire: Wire, line: bytes) -> None:
    wire.send(QUIET + line)
    wire.expect_end(UNKNOWN)


@pytest.mark.parametrize(
    "line",
    [
        b"PUB a\r\n",
        b"PUB a -1\r\n",
        b"PUB a 1x\r\n",
        b"PUB a b c 1\r\n",
        b"HPUB a 1\r\n",
        b"HPUB a 5 4\r\n",
        b"HPUB a -1 4\r\n",
        b"HPUB a x 4\r\n",
        b"HPUB a b c 1 1\r\n",
        b"SUB a\r\n",
        b"SUB a b c d\r\n",
        b"UNSUB 1 2 3\r\n",
        b"-ERR 'no'\r\n",
        b"CONNECT []\r\n",
        b'CONNECT {"verbose":1}\r\n',
    ],
    ids=lambda line: line.decode().strip(),
)
def test_malformed_operations_close_without_a_word(
    wire: Wire, line: bytes, request: pytest.FixtureRequest
) -> None:
    wire.send(QUIET + line)
    wire.expect_end()


def test_only_the_offender_is_cut(server: Server, connect: Connect, wire: Wire, name: str) -> None:
    witness = connect(server)
    sid = witness.subscribe(name)
    witness.flush()
    wire.send(QUIET + f"PUB {name} 5\r\nfirst\r\nNONSENSE\r\n".encode())
    wire.expect_end(UNKNOWN)
    assert witness.next(sid).payload == b"first"
    witness.flush()


def test_connections_beyond_the_maximum_are_refused(launch: Launch) -> None:
    server = launch(Setup(settings={"max_connections": 2}))
    with Client(server.port), Client(server.port) as last:
        with Wire(server.port) as surplus:
            surplus.expect_end(b"-ERR 'maximum connections exceeded'\r\n")
        last.flush()
        last.close()
        deadline = time.monotonic() + 90
        while not _accepted(server):
            assert time.monotonic() < deadline


def _accepted(server: Server) -> bool:
    with Wire(server.port) as wire:
        wire.send(b"PING\r\n")
        return wire.frame() == b"PONG\r\n"


def test_subscriptions_beyond_the_maximum_are_refused(launch: Launch) -> None:
    server = launch(Setup(settings={"max_subscriptions": 2}))
    with Wire(server.port) as wire:
        wire.send(QUIET + b"SUB a 1\r\nSUB b 2\r\nSUB c 3\r\nUNSUB 1\r\nSUB d 4\r\nPING\r\n")
        wire.expect(b"-ERR 'maximum subscriptions exceeded'\r\n", b"PONG\r\n")


def test_a_slow_consumer_is_cut(launch: Launch) -> None:
    server = launch(Setup(settings={"max_pending": 1024 * 1024}, jetstream=False))
    with Wire(server.port) as slow, Client(server.port) as sender:
        _subscribe_and_stop_reading(slow)
        _send_until_nobody_listens(sender)
        assert _ends_without_error(slow)


def test_a_client_that_blocks_writes_too_long_is_cut(launch: Launch) -> None:
    server = launch(Setup(settings={"write_deadline": '"300ms"'}, jetstream=False))
    with Wire(server.port) as slow, Client(server.port) as sender:
        _subscribe_and_stop_reading(slow)
        for _ in range(40):
            sender.publish("flood", b"x" * 1048576)
        _send_until_nobody_listens(sender, b"")
        assert _ends_without_error(slow)


def _subscribe_and_stop_reading(slow: Wire) -> None:
    slow.send(QUIET + b"SUB flood 1\r\nPING\r\n")
    slow.expect(b"PONG\r\n")


def _send_until_nobody_listens(sender: Client, payload: bytes = b"x" * 65536) -> None:
    """Publish until the server has removed a disconnected client's subscription: a request then gets "no responders"."""
    deadline = time.monotonic() + 60
    while not sender.pending("1"):
        assert time.monotonic() < deadline
        for _ in range(8 if payload else 1):
            sender.ask("flood", payload)


def _ends_without_error(wire: Wire) -> bool:
    while (frame := wire.frame()) != EOF:
        assert not frame.startswith(b"-ERR")
    return True
