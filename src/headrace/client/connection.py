"""Connects nats-py's client, whose `jetstream()` returns our context."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import nats.aio.client

from headrace.client.context import JetStream


class Client(nats.aio.client.Client):
    """A nats-py connection with our JetStream context, whose `flush` waits for all commands sent before it."""

    def jetstream(self, **opts: Any) -> JetStream:
        """Return a JetStream context; options `prefix`, `domain`, `timeout` in seconds and nats-py's others."""
        return JetStream(self, **opts)

    async def __aenter__(self) -> Self:
        """Return the connection, which is closed at the end of the context."""
        return self

    async def _send_ping(self, future: asyncio.Future[Any] | None = None) -> None:
        """Write the buffered commands, then the PING.

        nats-py writes the PING ahead of the commands in its buffer, so `flush` could return before the server has
        seen a new subscription.
        """
        if self._transport and self.is_connected and self._pending:
            self._transport.writelines(self._pending[:])
            self._pending = []
            self._pending_data_size = 0
        await super()._send_ping(future)


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
