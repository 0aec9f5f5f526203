"""`flush` of a connection: what it has waited for when it returns."""

from __future__ import annotations

import headrace
from headrace.client import connect


async def test_flush_sends_buffered_commands_before_its_ping() -> None:
    async with headrace.Server() as server:
        client = await connect(server.url)
        written: list[bytes] = []
        transport = client._transport
        write, writelines = transport.write, transport.writelines
        transport.write = lambda data: (written.append(data), write(data))
        transport.writelines = lambda chunks: (written.extend(chunks), writelines(chunks))
        await client.subscribe("orders")
        await client.flush()
        assert b"".join(written).startswith(b"SUB orders  1\r\nPING\r\n")
        await client.close()
