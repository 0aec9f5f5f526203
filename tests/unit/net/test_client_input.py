"""Large input is parsed in slices, in order, and without a message lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace import Server
from headrace.net import client_input
from headrace.net.client_input import PIECE_BYTES_MIN, feed_slice


class SlowParser:
    """Counts the bytes of each piece."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def feed(self, data: memoryview, size: int) -> None:
        assert len(data) == size
        self.pieces.append(bytes(data))


def test_a_slice_without_time_parses_one_piece() -> None:
    parser: Any = SlowParser()
    data = bytes(range(256)) * 256
    parsed = feed_slice(parser, data, len(data), 0.0)
    assert parsed == PIECE_BYTES_MIN
    assert parser.pieces == [data[:parsed]]


def test_cheap_operations_are_parsed_in_few_pieces() -> None:
    parser: Any = SlowParser()
    data = bytes(512 * 1024)
    assert feed_slice(parser, data, len(data), 60.0) == len(data)
    assert b"".join(parser.pieces) == data
    assert len(parser.pieces) < len(data) // PIECE_BYTES_MIN


@pytest.mark.parametrize("finish", ["ping", "end of file"])
async def test_everything_arrives_in_order_across_slices(
    finish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_input, "SLICE_S", 0.0)  # so that each turn parses one piece
    count = 5_000
    async with Server() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        receiver, sender = await asyncio.open_connection("127.0.0.1", server.port)
        sender.write(b'CONNECT {"verbose":false}\r\nSUB numbers.* 1\r\nPING\r\n')
        await receiver.readuntil(b"PONG\r\n")
        messages = b"".join(b"PUB numbers.%d 4\r\nbody\r\n" % n for n in range(count))
        writer.write(b'CONNECT {"verbose":false}\r\n' + messages)
        if finish == "ping":
            writer.write(b"PING\r\n")
            await reader.readuntil(b"PONG\r\n")
        else:
            writer.write_eof()
        async with asyncio.timeout(30):
            for number in range(count):
                assert await receiver.readline() == b"MSG numbers.%d 1 4\r\n" % number
                await receiver.readline()
        writer.close()
        sender.close()
