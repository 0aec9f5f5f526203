"""Header blocks: reading, building, changing."""

import pytest

from headrace.protocol import headers, server_lines

BLOCK = b"NATS/1.0\r\nA: b\r\nNats-TTL:  1h\r\nA: c\r\n\r\n"


def test_get_is_exact_and_takes_the_first() -> None:
    assert headers.get(BLOCK, b"A") == b"b"
    assert headers.get(BLOCK, b"Nats-TTL") == b"1h"
    assert headers.get(BLOCK, b"nats-ttl") is None
    assert headers.get(BLOCK, b"TTL") is None
    assert headers.get(b"", b"A") is None


def test_get_on_a_broken_block() -> None:
    assert headers.get(b"NATS/1.0\r\nA: b", b"A") == b"b"
    assert headers.get(b"A: b\r\n\r\n", b"A") is None
    assert headers.get(b"NATS/1.0\r\nA:\r\n\r\n", b"A") == b""


def test_build_and_pairs() -> None:
    assert headers.build([(b"A", b"b")]) == b"NATS/1.0\r\nA: b\r\n\r\n"
    assert headers.build([]) == b"NATS/1.0\r\n\r\n"
    assert headers.parse_pairs(BLOCK) == [(b"A", b"b"), (b"Nats-TTL", b"1h"), (b"A", b"c")]


def test_a_status_header_is_encoded() -> None:
    assert headers.build_status(404, "No Messages") == b"NATS/1.0 404 No Messages\r\n\r\n"
    assert headers.build_status(100, "x", [(b"A", b"b")]) == b"NATS/1.0 100 x\r\nA: b\r\n\r\n"


def test_append_and_strip() -> None:
    assert headers.append(b"", [(b"A", b"b")]) == b"NATS/1.0\r\nA: b\r\n\r\n"
    assert headers.append(b"NATS/1.0\r\n\r\n", [(b"A", b"b")]) == b"NATS/1.0\r\nA: b\r\n\r\n"
    assert headers.strip(BLOCK, b"A") == b"NATS/1.0\r\nNats-TTL:  1h\r\n\r\n"
    assert headers.strip(b"NATS/1.0\r\nA: b\r\nA: c\r\n\r\n", b"A") == b""
    assert headers.strip(BLOCK, b"B") == BLOCK
    assert headers.replace(BLOCK, b"A", b"z") == b"NATS/1.0\r\nNats-TTL:  1h\r\nA: z\r\n\r\n"


@pytest.mark.parametrize(
    ("reply", "expected"), [(b"", b"MSG s 1 2\r\nhi\r\n"), (b"r", b"MSG s 1 r 2\r\nhi\r\n")]
)
def test_a_message_line_is_encoded(reply: bytes, expected: bytes) -> None:
    assert server_lines.encode_msg(b"s", b"1", reply, b"", b"hi") == expected


def test_message_with_header() -> None:
    block = headers.build([])
    assert server_lines.encode_msg(b"s", b"1", b"", block, b"hi") == b"HMSG s 1 12 14\r\n" + block + b"hi\r\n"
    assert server_lines.encode_msg(b"i", b"1", b"", server_lines.no_responders_header(b"s"), b"").startswith(
        b"HMSG i 1 33 33\r\n"
    )


def test_info_keeps_order() -> None:
    assert server_lines.encode_info({"b": 1, "a": True}) == b'INFO {"b":1,"a":true} \r\n'
