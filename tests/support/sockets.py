"""Listeners on free ports and clients that send and receive raw bytes, in the test's own event loop."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

from headrace.broker import Accounts
from headrace.config.options import ServerOptions
from headrace.net import connection
from headrace.net.listener import Listener
from headrace.net.tls_context import make_server_context

TIMEOUT_S = 60
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"protocol":0,"headers":true,"no_responders":true}\r\n'

Start = Callable[..., Awaitable[Listener]]


@asynccontextmanager
async def listeners() -> AsyncIterator[Start]:
    """Listeners on free ports, stopped at the end; no state of their clients may remain then.

    They send no PING before `ping_interval_s`, so that a slow test receives only what it waits for.
    """
    running: list[Listener] = []

    async def begin(**settings: Any) -> Listener:
        options = ServerOptions(port=0, **settings)
        listener = Listener(Accounts(), options, tls=make_server_context(options), server_id="N1")
        await listener.start()
        running.append(listener)
        return listener

    with mock.patch.object(connection, "FIRST_PING_S", 3600.0):
        yield begin
    for listener in running:
        await listener.stop()
        assert listener.connections == {}
        assert listener.accounts.subscriptions == 0


class Wire:
    """A client that sends and receives raw bytes."""

    info: dict[str, Any]

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def dial(cls, listener: Listener, greeting: bytes = CONNECT, **more: Any) -> Wire:
        wire = cls(*await asyncio.open_connection("127.0.0.1", listener.port, limit=1 << 24, **more))
        wire.info = json.loads((await wire.line()).removeprefix(b"INFO "))
        wire.writer.write(greeting)
        return wire

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def line(self) -> bytes:
        async with asyncio.timeout(TIMEOUT_S):
            return await self.reader.readline()

    async def rest(self) -> bytes:
        """Return everything up to the end of the connection."""
        async with asyncio.timeout(TIMEOUT_S):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b"reset"

    async def ask(self, data: bytes) -> bytes:
        """Send bytes and a PING; return everything received before the PONG."""
        self.writer.write(data + b"PING\r\n")
        heard = b""
        while not heard.endswith(b"PONG\r\n"):
            line = await self.line()
            assert line, heard
            heard += line
        return heard.removesuffix(b"PONG\r\n")

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (OSError, ssl.SSLError):
            pass


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.005)
