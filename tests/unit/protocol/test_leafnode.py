"""The leafnode protocol: the same operations for any chunks, and only ProtocolError for invalid input."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from headrace.errors import ProtocolError
from headrace.protocol import leafnode

PAYLOAD_MAX = 1000


class Recorder:
    authenticated = True

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def on_info(self, body: bytes) -> None:
        self.heard.append(("info", body))

    def on_connect(self, body: bytes) -> None:
        self.heard.append(("connect", body))

    def on_ping(self) -> None:
        self.heard.append(("ping",))

    def on_pong(self) -> None:
        self.heard.append(("pong",))

    def on_error(self, text: str) -> None:
        self.heard.append(("error", text))

    def on_interest(self, subject: bytes, queue: bytes | None, weight: int) -> None:
        self.heard.append(("LS+", subject, queue, weight))

    def on_no_interest(self, subject: bytes, queue: bytes | None) -> None:
        self.heard.append(("LS-", subject, queue))

    def on_message(
        self, subject: bytes, reply: bytes, queues: Sequence[bytes], header: bytes, payload: bytes
    ) -> None:
        self.heard.append(("message", subject, reply, tuple(queues), header, payload))


def heard(*chunks: bytes) -> list[tuple[Any, ...]]:
    recorder = Recorder()
    parser = leafnode.LeafnodeParser(recorder, PAYLOAD_MAX)
    for chunk in chunks:
        parser.feed(chunk)
    assert parser.buffered_bytes == 0
    return recorder.heard


OPERATIONS: list[tuple[bytes, tuple[Any, ...]]] = [
    (b'INFO {"a":1} \r\n', ("info", b'{"a":1}')),
    (b"CONNECT {}\r\n", ("connect", b"{}")),
    (b"PING\r\n", ("ping",)),
    (b"pong\r\n", ("pong",)),
    (b"-ERR 'no way'\r\n", ("error", "no way")),
    (b"LS+ a.b\r\n", ("LS+", b"a.b", None, 1)),
    (b"LS+ a.> q 12\r\n", ("LS+", b"a.>", b"q", 12)),
    (b"LS- a.b\r\n", ("LS-", b"a.b", None)),
    (b"LS- a.> q\r\n", ("LS-", b"a.>", b"q")),
    (b"LMSG a 0\r\n\r\n", ("message", b"a", b"", (), b"", b"")),
    (b"LMSG a r 3\r\nx\r\n\r\n", ("message", b"a", b"r", (), b"", b"x\r\n")),
    (b"LMSG a + r q p 1\r\nx\r\n", ("message", b"a", b"r", (b"q", b"p"), b"", b"x")),
    (b"LMSG a | q 1\r\nx\r\n", ("message", b"a", b"", (b"q",), b"", b"x")),
    (b"HMSG a 12 13\r\nNATS/1.0\r\n\r\nx\r\n", ("message", b"a", b"", (), b"NATS/1.0\r\n\r\n", b"x")),
    (b"HMSG a r 12 12\r\nNATS/1.0\r\n\r\n\r\n", ("message", b"a", b"r", (), b"NATS/1.0\r\n\r\n", b"")),
    (
        b"HMSG a + r q 12 13\r\nNATS/1.0\r\n\r\nx\r\n",
        ("message", b"a", b"r", (b"q",), b"NATS/1.0\r\n\r\n", b"x"),
    ),
]


@pytest.mark.parametrize(("data", "operation"), OPERATIONS, ids=lambda each: repr(each)[:30])
def test_each_operation_is_parsed_however_it_is_cut(data: bytes, operation: tuple[Any, ...]) -> None:
    assert heard(data) == [operation]
    assert heard(*(data[at : at + 1] for at in range(len(data)))) == [operation]


def test_a_stranger_s_messages_are_not_even_read() -> None:
    recorder = Recorder()
    recorder.authenticated = False
    parser = leafnode.LeafnodeParser(recorder, PAYLOAD_MAX)
    with pytest.raises(ProtocolError, match="Authorization Violation"):
        parser.feed(b"LMSG a 1000\r\n")
    assert parser.buffered_bytes == 0


def test_ok_means_nothing() -> None:
    assert heard(b"+OK\r\n") == []


@pytest.mark.parametrize("seed", range(20))
def test_however_it_is_cut(seed: int) -> None:
    rng = Random(seed)
    chosen = [rng.choice(OPERATIONS) for _ in range(40)]
    data = b"".join(each[0] for each in chosen)
    cuts = sorted(rng.randrange(len(data)) for _ in range(rng.randrange(30)))
    chunks = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    assert heard(*chunks) == [each[1] for each in chosen]


@pytest.mark.parametrize(
    "data",
    [
        b"NONSENSE\r\n",
        b"\r\n",
        b"LMSG\r\n",
        b"LMSG \r\n",
        b"LMSG a\r\n",
        b"LMSG a x\r\n",
        b"LMSG a -1\r\n",
        b"LMSG a 1001\r\n",
        b"LMSG a 9999999999\r\n",
        b"LMSG a ? r q 1\r\nx\r\n",
        b"LMSG a 1\r\nxyz",
        b"HMSG a 1\r\n",
        b"HMSG a 9 5\r\n",
        b"LS+\r\n",
        b"LS+ a b\r\n",
        b"LS+ a b x\r\n",
        b"LS+ a b 1 2\r\n",
        b"LS-\r\n",
        b"LS- a b c\r\n",
        b"A" * 70_000,
    ],
    ids=lambda data: repr(data)[:24],
)
def test_invalid_operations_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        heard(data)


@pytest.mark.parametrize("seed", range(30))
def test_mutations_are_understood_or_refused(seed: int) -> None:
    """Bounded memory, and no other error."""
    rng = Random(seed)
    for _ in range(200):
        data = bytearray(b"".join(rng.choice(OPERATIONS)[0] for _ in range(5)))
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.choice(b"\r\n +|0129LMSGHx\x00\xff")
        parser = leafnode.LeafnodeParser(Recorder(), PAYLOAD_MAX)
        try:
            for at in range(0, len(data), 7):
                parser.feed(bytes(data[at : at + 7]))
        except ProtocolError:
            continue
        assert parser.buffered_bytes <= len(data)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((b"a", b"", (), b"", b"x"), b"LMSG a 1\r\nx\r\n"),
        ((b"a", b"r", (), b"", b"x"), b"LMSG a r 1\r\nx\r\n"),
        ((b"a", b"r", (b"q", b"p"), b"", b"x"), b"LMSG a + r q p 1\r\nx\r\n"),
        ((b"a", b"", (b"q",), b"", b""), b"LMSG a | q 0\r\n\r\n"),
        ((b"a", b"r", (), b"NATS/1.0\r\n\r\n", b"x"), b"HMSG a r 12 13\r\nNATS/1.0\r\n\r\nx\r\n"),
    ],
)
def test_what_is_sent(arguments: tuple[Any, ...], line: bytes) -> None:
    assert leafnode.encode_msg(*arguments) == line
    assert heard(line) == [("message", *arguments)]


def test_the_subject_to_show_travels_behind_the_reply() -> None:
    ack = b"$JS.ACK.S.C.1.2.3.4.5"
    assert leafnode.encode_original_subject(ack, b"a.b") == ack + b"@a.b"
    assert leafnode.decode_original_subject(ack + b"@a.b") == (ack, b"a.b")
    assert leafnode.decode_original_subject(ack) == (ack, b"")
    assert leafnode.decode_original_subject(b"inbox@home") == (b"inbox@home", b"")
    assert leafnode.encode_original_subject(b"", b"a.b") == b""


@pytest.mark.parametrize("consumer", [b"C", b"me@home", b"7@8"])
@pytest.mark.parametrize("shown", [b"a.b", b"mail.me@home"])
def test_names_and_subjects_may_have_the_mark_of_what_is_shown(consumer: bytes, shown: bytes) -> None:
    ack = b"$JS.ACK.S.%b.1.2.3.4.5" % consumer
    assert leafnode.decode_original_subject(ack) == (ack, b"")
    assert leafnode.decode_original_subject(leafnode.encode_original_subject(ack, shown)) == (ack, shown)
    assert leafnode.encode_original_subject(
        leafnode.encode_original_subject(ack, shown), b"other"
    ) == leafnode.encode_original_subject(ack, shown)
