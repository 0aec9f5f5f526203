"""Limits on the subscriptions of a leafnode."""

from __future__ import annotations

import asyncio

from headrace.config.leafnode_options import LeafnodeOptions
from headrace.config.options import ANY_PORT
from headrace.server import Server


async def test_subscriptions_are_counted_for_leafnodes_too() -> None:
    leafnodes = LeafnodeOptions(host="127.0.0.1", port=ANY_PORT)
    async with Server(max_subscriptions=2, leafnodes=leafnodes) as hub:
        reader, writer = await asyncio.open_connection("127.0.0.1", hub.leafnode_port)
        writer.write(
            b'CONNECT {"name":"edge"}\r\nLS+ a\r\nLS+ b\r\nLS+ b\r\nLS+ c\r\nLS- a\r\nLS+ d\r\nPING\r\n'
        )
        async with asyncio.timeout(90):
            said = await reader.readuntil(b"PONG\r\n")
        assert said.count(b"-ERR 'maximum subscriptions exceeded'") == 1
        assert [entry["subscriptions"] for entry in hub.leafz_entries()] == [2]
        writer.close()
        await writer.wait_closed()
