"""Large input is parsed in slices, in order, and without a message lost."""

from __future__ import annotations

import asyncio
import zlib
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import Server
from headrace.config.options import WebSocketOptions
from headrace.net import client_input, connection, turn_queue
from headrace.net.client_input import INPUT_SLICE_S, PIECE_BYTES_MIN, PIECE_S, ClientInput, feed_slice


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


@pytest.mark.parametrize(("cost_s", "expected_s"), [(20e-6, 0.001), (1e-6, 0.005)])
def test_expensive_operations_get_a_short_slice(
    cost_s: float, expected_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API request costs more than a turn of the event loop, a publish far less."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(client_input, "perf_counter", lambda: clock.now_s)

    class CostlyParser:
        def feed(self, data: memoryview, size: int) -> None:
            clock.now_s += cost_s * size / 30

    parser: Any = CostlyParser()
    data = bytes(512 * 1024)
    assert 0 < feed_slice(parser, data, len(data), INPUT_SLICE_S) < len(data)
    assert expected_s <= clock.now_s < expected_s + 2 * PIECE_S


@pytest.mark.parametrize("finish", ["ping", "end of file"])
async def test_everything_arrives_in_order_across_slices(
    finish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_input, "INPUT_SLICE_S", 0.0)  # so that each turn parses one piece
    monkeypatch.setattr(connection, "FIRST_PING_S", 3600.0)  # so that the receiver reads nothing else
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
        async with asyncio.timeout(90):
            for number in range(count):
                assert await receiver.readline() == b"MSG numbers.%d 1 4\r\n" % number
                await receiver.readline()
        writer.close()
        sender.close()


async def test_clients_that_send_at_the_same_time_share_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time for a turn, the input of all clients but the first waits in the queue."""
    monkeypatch.setattr(turn_queue, "TURN_S", 0.0)
    waiting = list[bytes]()
    parse_rest = ClientInput._parse_rest

    def record(self: ClientInput) -> None:
        waiting.append(bytes(self._unparsed or b""))
        parse_rest(self)

    monkeypatch.setattr(ClientInput, "_parse_rest", record)
    async with Server() as server:
        clients = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(50)]
        for number, (_, writer) in enumerate(clients):
            writer.write(b'CONNECT {"verbose":false}\r\nSUB numbers.* %d\r\nPING\r\n' % number)
        async with asyncio.timeout(90):
            for reader, _ in clients:
                await reader.readuntil(b"PONG\r\n")
            clients[0][1].write(b"PUB numbers.1 2\r\nok\r\n")
            for number, (reader, _) in enumerate(clients):
                assert await reader.readline() == b"MSG numbers.1 %d 2\r\n" % number
        for _, writer in clients:
            writer.close()
    assert any(b"SUB" in each for each in waiting)


def encode_frame(opcode: int, payload: bytes, *, compressed: bool = False) -> bytes:
    """Encode a frame of a client; its mask is zero."""
    first = 0x80 | opcode | (0x40 if compressed else 0)
    size = bytes([0x80 | len(payload)]) if opcode >= 8 else b"\xff" + len(payload).to_bytes(8, "big")
    return bytes([first]) + size + bytes(4) + payload


def deflate(data: bytes) -> bytes:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return (deflater.compress(data) + deflater.flush(zlib.Z_SYNC_FLUSH))[:-4]


async def open_websocket(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Extensions: "
        b"permessage-deflate; server_no_context_takeover; client_no_context_takeover\r\n\r\n"
    )
    await reader.readuntil(b"\r\n\r\n")
    writer.write(encode_frame(2, b'CONNECT {"verbose":false}\r\n'))
    return reader, writer


@pytest.mark.parametrize("finish", ["ping", "close frame", "end of file"])
async def test_a_compressed_message_is_inflated_as_it_is_parsed(
    finish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is neither inflated ahead nor copied for every slice, and frames after it wait."""
    monkeypatch.setattr(client_input, "INPUT_SLICE_S", 0.0)  # so that each turn parses one piece
    parse_rest = ClientInput._parse_rest
    rests: list[bytearray | None] = []
    sizes: list[int] = []

    def observe(self: ClientInput) -> None:
        rests.append(self._unparsed)
        sizes.append(len(self._unparsed or b""))
        parse_rest(self)

    monkeypatch.setattr(ClientInput, "_parse_rest", observe)
    options = WebSocketOptions(port=-1, host="127.0.0.1", no_tls=True, compression=True)
    count = 50_000
    async with Server(websocket=options) as server, asyncio.timeout(90):
        receiver, sender = await asyncio.open_connection("127.0.0.1", server.port)
        sender.write(b'CONNECT {"verbose":false}\r\nSUB last 1\r\nPING\r\n')
        await receiver.readuntil(b"PONG\r\n")
        assert server.listener is not None
        reader, writer = await open_websocket(server.listener.websocket_port)
        writer.write(encode_frame(2, deflate(b"PUB none 20\r\n%020d\r\n" % 0 * count), compressed=True))
        writer.write(encode_frame(9, b"alive") + encode_frame(2, b"PUB last 4\r\nbody\r\n"))
        if finish == "ping":
            await reader.readuntil(b"alive")
        elif finish == "close frame":
            writer.write(encode_frame(8, (1000).to_bytes(2, "big")))
            assert b"alive" in await reader.read()
        else:
            writer.write_eof()
        await receiver.readuntil(b"body\r\n")
        assert server.stats().in_msgs == count + 1
        writer.close()
        sender.close()
    assert max(sizes, default=0) <= 128 * 1024
    if finish != "end of file":
        assert len({id(rest) for rest in rests}) * 4 < len(rests)
