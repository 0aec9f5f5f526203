"""The lines of the protocol trace: split from any chunks, quoted as Go does."""

import pytest

from headrace.net.protocol_trace import LineSplitter, quote

STREAM = b"CONNECT {}\r\nPUB a 3\r\na\nb\r\nhpub a 12 12\r\nNATS/1.0\r\n\r\n\r\nPING\r\n"
LINES = [
    "[CONNECT {}]",
    "[PUB a 3]",
    'MSG_PAYLOAD: ["a\\nb"]',
    "[HPUB a 12 12]",
    'MSG_PAYLOAD: ["NATS/1.0\\r\\n\\r\\n"]',
    "[PING]",
]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_lines_are_complete_whatever_the_chunks(size: int) -> None:
    splitter = LineSplitter()
    chunks = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [line for chunk in chunks for line in splitter.feed(chunk)] == LINES


def test_a_malformed_size_ends_the_trace() -> None:
    splitter = LineSplitter()
    assert list(splitter.feed(b"PING\r\nPUB a x\r\nPING\r\n")) == ["[PING]", "[PUB a x]"]
    assert list(splitter.feed(b"PING\r\n")) == []


@pytest.mark.parametrize(
    ("data", "text"),
    [(b'a"\\', '"a\\"\\\\"'), (b"\x00\xff", '"\\x00\\xff"'), ("ü\u2028".encode(), '"ü\\u2028"')],
)
def test_quoting(data: bytes, text: str) -> None:
    assert quote(data) == text
