"""A small HTTP/1.1 server for GET requests, on asyncio alone.

Owns the framing: one request line, headers that are read and ignored (except Connection), an answer with its
length. Bounded in what it reads and in how long it waits. It must not know what the pages say.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

HEAD_BYTES_MAX = 8192
PATIENCE_S = 5.0

Query = Mapping[str, str]


class Answer(NamedTuple):
    """What a page answers."""

    status: int
    content_type: str
    body: bytes


Page = Callable[[Query], Answer]

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def json_answer(value: Any, status: int = 200) -> Answer:
    return Answer(status, "application/json", json.dumps(value, indent=2).encode())


def _text_answer(status: int, text: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", text.encode() + b"\n")


class HttpServer:
    """Serves pages by path. `counts` tells how often each was asked for."""

    def __init__(self, pages: Mapping[str, Page], failed: Callable[[str], None]) -> None:
        self._pages = dict(pages)
        self._failed = failed
        self._server: asyncio.Server | None = None
        self._busy: set[asyncio.Task[None]] = set()
        self.counts = dict.fromkeys(self._pages, 0)
        self.port = 0

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(
            self._serve, host, max(port, 0), ssl=tls, limit=HEAD_BYTES_MAX, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in self._busy:
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            # The peer left, sent nothing, or sent too much: there is nobody to tell.
            pass
        finally:
            self._busy.discard(task)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; true when the connection stays open for another."""
        async with asyncio.timeout(PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
        request, *headers = head.decode("latin-1").split("\r\n")
        words = request.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            writer.write(_encode(_text_answer(400, "bad request"), keep=False, body=True))
            return False
        keep = words[2] == "HTTP/1.1" and not any(h.lower() == "connection: close" for h in headers)
        writer.write(_encode(self._answer(words[0], words[1]), keep=keep, body=words[0] != "HEAD"))
        async with asyncio.timeout(PATIENCE_S):
            await writer.drain()
        return keep

    def _answer(self, method: str, target: str) -> Answer:
        if method not in ("GET", "HEAD"):
            return _text_answer(405, "method not allowed")
        parts = urlsplit(target)
        path = unquote(parts.path)
        page = self._pages.get(path)
        if page is None:
            return _text_answer(404, "404 page not found")
        self.counts[path] += 1
        try:
            return page(dict(parse_qsl(parts.query, keep_blank_values=True)))
        except Exception as error:
            # A page that fails must not end the server; the log gets the reason, the peer does not.
            self._failed(f"Monitoring page {path} failed: {error!r}")
            return _text_answer(500, "internal error")


def _encode(answer: Answer, *, keep: bool, body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        f"Connection: {'keep-alive' if keep else 'close'}\r\n\r\n"
    ).encode("latin-1")
    return head + answer.body if body else head
