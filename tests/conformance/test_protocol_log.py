"""What `trace: true` writes to the log: every protocol line with its connection, as text that tools can search."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from conformance.client import EOF, Client, Wire
from conformance.consumer_client import eventually
from conformance.servers import Server, Setup

Launch = Callable[[Setup], Server]

_TRACE = re.compile(r"\[TRC\] 127\.0\.0\.1:(\d+) - cid:\d+( - .*)?? - (<<-|->>) (.*)")


def _lines(server: Server, port: int, direction: str) -> list[str]:
    found = [_TRACE.search(line) for line in server.log_text().splitlines()]
    return [match[4] for match in found if match and match[1] == str(port) and match[3] == direction]


@pytest.mark.parametrize("setting", ["flag", "file"])
def test_operations_and_payloads_of_a_client(launch: Launch, setting: str) -> None:
    traced = Setup(flags=("-V",), jetstream=False)
    server = launch(traced if setting == "flag" else Setup(settings={"trace": "true"}, jetstream=False))
    with Wire(server.port) as wire:
        port = wire.socket.getsockname()[1]
        wire.send(b'CONNECT {"verbose":false,"headers":true,"protocol":0}\r\nSUB a.* 1\r\n')
        wire.send(b"PUB a.b reply 5\r\nhe")
        wire.send(b"llo\r\npub a.b 0\r\n\r\nHPUB a.b 12 17\r\nNATS/1.0\r\n\r\nhello\r\nUNSUB 1\r\nPING\r\n")
        wire.frames(4)
        wire.send(b"SUB a..b 2\r\nOOPS\r\n")
        while wire.frame() != EOF:
            pass
    eventually(lambda: "[-ERR Unknown Protocol Operation]" in _lines(server, port, "->>"))
    assert _lines(server, port, "<<-")[:9] == [
        '[CONNECT {"verbose":false,"headers":true,"protocol":0}]',
        "[SUB a.* 1]",
        "[PUB a.b reply 5]",
        'MSG_PAYLOAD: ["hello"]',
        "[PUB a.b 0]",
        "[HPUB a.b 12 17]",
        'MSG_PAYLOAD: ["NATS/1.0\\r\\n\\r\\nhello"]',
        "[UNSUB 1]",
        "[PING]",
    ]
    assert _lines(server, port, "->>") == [
        "[MSG a.b 1 reply 5]",
        'MSG_PAYLOAD: ["hello"]',
        "[MSG a.b 1 0]",
        "[HMSG a.b 1 12 17]",
        'MSG_PAYLOAD: ["NATS/1.0\\r\\n\\r\\nhello"]',
        "[PONG]",
        "[-ERR Invalid Subject]",
        "[-ERR Unknown Protocol Operation]",
    ]


def test_lines_name_the_client_and_its_user(launch: Launch) -> None:
    users = "authorization { users: [{user: ann, password: secret}] }"
    server = launch(Setup(flags=("-V",), config=users, jetstream=False))
    login = {"user": "ann", "pass": "secret", "name": "mill", "lang": "py", "version": "3"}
    with Client(server.port, **login) as client:
        client.publish("x", b"\x00\xff\t")
        client.flush()
        eventually(lambda: "[PUB x  3]" in server.log_text())
    log = server.log_text()
    assert re.search(r'cid:\d+ - "v3:py:mill" - "\$G/user:ann" - <<- \[PUB x  3\]', log)
    assert r'MSG_PAYLOAD: ["\x00\xff\t"]' in log
    assert "secret" not in log


def test_a_reload_turns_it_on(launch: Launch) -> None:
    server = launch(Setup(config="trace: false", jetstream=False))
    with Client(server.port) as client:
        client.publish("before", b"")
        client.flush()
    server.reload("trace: true")
    with Client(server.port) as client:
        client.publish("after", b"")
        client.flush()
        eventually(lambda: "[PUB after  0]" in server.log_text())
    assert "[PUB before  0]" not in server.log_text()
