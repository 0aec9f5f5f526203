"""A NATS client with little overhead: it sends prebuilt bytes and creates no object per received message.

For load tests in which the server, not the client, is to be the bottleneck.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

#: Callback for a message: the words of its control line, and its payload (none if it has a status).
Hear = Callable[[list[bytes], bytes], None]


class Wire(asyncio.Protocol):
    """One connection."""

    def __init__(self, hear: Hear) -> None:
        self._hear = hear
        self._rest = b""
        self.transport: Any = None
        self.errors: list[str] = []

    @classmethod
    async def connect(cls, url: str, hear: Hear) -> Wire:
        address = urlsplit(url)
        _, wire = await asyncio.get_running_loop().create_connection(
            lambda: cls(hear), address.hostname, address.port
        )
        wire.send(b'CONNECT {"verbose":false,"headers":true,"no_responders":true,"protocol":1}\r\n')
        return wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self.errors.append(f"connection lost: {error}")

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    def close(self) -> None:
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        data, at = self._rest + data, 0
        while (end := data.find(b"\r\n", at)) >= 0:
            verb = data[at : at + 4]
            if verb in (b"MSG ", b"HMSG"):
                words = data[at:end].split()
                after = end + 4 + int(words[-1])
                if len(data) < after:
                    break
                if verb == b"MSG ":
                    self._hear(words, data[end + 2 : after - 2])
                at = after
            else:
                self._answer(verb, data[at:end])
                at = end + 2
        self._rest = data[at:]

    def _answer(self, verb: bytes, line: bytes) -> None:
        if verb == b"PING":
            self.send(b"PONG\r\n")
        elif verb == b"-ERR":
            self.errors.append(line.decode())
