"""Connects nats-py's client, whose `jetstream()` returns our context."""

from __future__ import annotations

from typing import Any

import nats.aio.client

from headrace.client.context import JetStream


class Client(nats.aio.client.Client):
    """A connection; everything else is nats-py's."""

    def jetstream(self, **opts: Any) -> JetStream:
        """Return a JetStream context; options `prefix`, `domain`, `timeout` in seconds and nats-py's others."""
        return JetStream(self, **opts)


async def connect(servers: str | list[str] = "nats://127.0.0.1:4222", **options: Any) -> Client:
    """Connect to one of the servers; options as for `nats.connect`.

    ::

        import asyncio
        from headrace.client import connect

        async def main():
            async with await connect() as nc:
                js = nc.jetstream()
                await js.add_stream(name="ORDERS", subjects=["orders.>"])
                print((await js.publish("orders.1", b"3 pears")).seq)

        asyncio.run(main())
    """
    client = Client()
    await client.connect(servers, **options)
    return client


def jetstream(connection: nats.aio.client.Client, **options: Any) -> JetStream:
    """Return a JetStream context on a connection made with nats-py."""
    return JetStream(connection, **options)
