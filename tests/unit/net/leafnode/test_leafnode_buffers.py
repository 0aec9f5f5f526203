"""What a leafnode connection keeps: large output is compressed in parts, and a closed connection keeps nothing."""

from __future__ import annotations

import asyncio

from headrace.config.leafnode_options import LeafnodeCompressionOptions, LeafnodeOptions
from headrace.net.leafnode.leafnode_compression import COMPRESSED_PER_TURN
from headrace.net.leafnode.leafnode_connection import LeafnodeConnection
from headrace.protocol.s2_stream import HEADER
from headrace.server import Server
from support.sockets import until

INFO = b'INFO {"compression":"s2_fast"}\r\n'


def make_hub() -> Server:
    compression = LeafnodeCompressionOptions(mode="s2_fast")
    return Server(leafnodes=LeafnodeOptions(host="127.0.0.1", port=-1, compression=compression))


async def connect(hub: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect and switch to compression."""
    reader, writer = await asyncio.open_connection("127.0.0.1", hub.leafnode_port)
    async with asyncio.timeout(90):
        await reader.readline()
        writer.write(INFO)
        assert await reader.readexactly(len(HEADER)) == HEADER
    return reader, writer


def get_connection(hub: Server) -> LeafnodeConnection:
    assert hub._leafnodes is not None
    (connection,) = hub._leafnodes.connections.values()
    return connection


async def test_one_turn_compresses_one_part_however_often_it_is_flushed() -> None:
    async with make_hub() as hub:
        _, writer = await connect(hub)
        connection = get_connection(hub)
        connection.session.send(b"x" * (3 * COMPRESSED_PER_TURN))
        for _ in range(3):
            connection.flush()
        assert connection._compression.pending_bytes == 2 * COMPRESSED_PER_TURN
        await until(lambda: connection._compression.pending_bytes == 0)
        writer.close()
        await writer.wait_closed()


async def test_a_closed_connection_is_counted_and_keeps_no_buffer() -> None:
    async with make_hub() as hub:
        _, writer = await connect(hub)
        connection, ended = get_connection(hub), hub.count_ended()
        writer.write(HEADER + bytes([1]) + (60_000).to_bytes(3, "little") + b"x" * 50_000)
        await until(lambda: connection._compression._reader.buffered_bytes > 50_000)  # type: ignore[union-attr]
        writer.close()
        await writer.wait_closed()
        async with asyncio.timeout(90):
            await connection.closed
        assert hub.count_ended() == ended + 1
        assert connection._compression._reader is None
        assert connection._parser is connection._greeting is connection._channel is None
