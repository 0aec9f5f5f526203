"""The leafnode protocol: what is encoded can be parsed, and original subjects travel with replies."""

from __future__ import annotations

from typing import Any

import pytest

from fuzz.leafnode_protocol import Recorder
from headrace._native import LeafnodeParser
from headrace.protocol import leafnode


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
    recorder = Recorder(True)
    LeafnodeParser(recorder, 1000).feed(line)
    assert recorder.told == [("on_message", *arguments)]


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
