"""A proxy in front of an object store that can reject requests, delay them, or cut the connection."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """Forwards bytes to `endpoint` unless a fault is set; use it with `async with`."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._target = (parts.hostname or "", parts.port or 80)
        self._tasks: set[asyncio.Task[None]] = set()
        self.heal()

    def heal(self) -> None:
        """Forward everything again."""
        self.status = 0
        self.times = 0
        self.delay_s = 0.0
        self.cut_after = 0

    def refuse(self, status: int, times: int = 1_000_000) -> None:
        """Reply to this many requests with an error status."""
        self.status, self.times = status, times

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(OSError, asyncio.CancelledError):  # cancelled when the proxy is closed
            try:
                await self._pass(reader, writer)
            finally:
                writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(65536)
        if self.times > 0 and first:
            self.times -= 1
            head = f"HTTP/1.1 {self.status} No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            await writer.drain()
            return
        there, back = await asyncio.open_connection(*self._target)
        back.write(first)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._copy(reader, back, len(first)))
                group.create_task(self._copy(there, writer, None))
        except* OSError:
            pass
        finally:
            back.close()

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, sent: int | None
    ) -> None:
        """Copy bytes; `sent` counts those that go to the store, and is None for the other direction."""
        while data := await source.read(65536):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if sent is not None:
                sent += len(data)
                if 0 < self.cut_after < sent or self.times > 0:
                    raise ConnectionResetError("cut")
            target.write(data)
            await target.drain()
        target.close()
