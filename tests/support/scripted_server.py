"""A NATS server whose replies a test decides: for servers that are slow, silent or stop reading.

It knows one client's subscriptions well enough for requests and publishers; nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"
ACK = b'{"stream":"S","seq":1}'


@dataclass(frozen=True)
class Published:
    """A message that the client has published."""

    subject: str
    reply: str
    header: bytes
    payload: bytes
    send: Callable[[str, bytes, bytes], None]

    def respond(self, payload: bytes = ACK, header: bytes = b"") -> None:
        self.send(self.reply, payload, header)


class ScriptedServer:
    """Calls `on_publish` for each message; by default every one is acknowledged."""

    def __init__(self) -> None:
        self.on_publish: Callable[[Published], None] = Published.respond
        self.published: list[Published] = []
        self.url = ""
        self._reads = asyncio.Event()
        self._reads.set()
        self._writers: list[asyncio.StreamWriter] = []

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[ScriptedServer]:
        server = await asyncio.start_server(self._serve_client, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self._reads.set()
            self.cut()
            await server.wait_closed()

    @contextlib.contextmanager
    def stalled(self) -> Iterator[None]:
        """Read nothing within the context."""
        self._reads.clear()
        try:
            yield
        finally:
            self._reads.set()

    def cut(self) -> None:
        """Break all connections as a network does."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        info = {"server_id": "S", "version": "2.14.0", "headers": True, "max_payload": 1 << 20, "proto": 1}
        writer.write(b"INFO %b\r\n" % json.dumps(info).encode())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._read_commands(reader, writer)
        writer.close()

    async def _read_commands(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        prefixes: dict[str, str] = {}

        def send(subject: str, payload: bytes, header: bytes) -> None:
            sid = next((sid for sid, prefix in prefixes.items() if subject.startswith(prefix)), None)
            if sid is None:
                return
            kind, sizes = ("HMSG", f"{len(header)} ") if header else ("MSG", "")
            command = f"{kind} {subject} {sid} {sizes}{len(header) + len(payload)}\r\n"
            writer.write(command.encode() + header + payload + b"\r\n")

        while line := await reader.readline():
            await self._reads.wait()
            name, *arguments = line.decode().split() or [""]
            if name == "PING":
                writer.write(b"PONG\r\n")
            elif name == "SUB":
                prefixes[arguments[-1]] = arguments[0].rstrip(">*")
            elif name in ("PUB", "HPUB"):
                body = (await reader.readexactly(int(arguments[-1]) + 2))[:-2]
                size = int(arguments[-2]) if name == "HPUB" else 0
                reply = arguments[1] if len(arguments) == (3 if name == "PUB" else 4) else ""
                message = Published(arguments[0], reply, body[:size], body[size:], send)
                self.published.append(message)
                self.on_publish(message)
