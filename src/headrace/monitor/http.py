"""A small HTTP/1.1 server on asyncio alone, for figures, the web page and pinned files.

Owns the framing: a request line, headers, a short body, an answer with its length. Bounded in what it reads and in how
long it waits. It must not know what the pages say.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.monitor.query import Query

HEAD_BYTES_MAX = 8192
BODY_BYTES_MAX = 64 * 1024
PATIENCE_S = 5.0
#: A whole file may take longer to leave, but somebody has to be reading it.
DRAIN_PATIENCE_S = 30.0
_CHUNK_BYTES = 256 * 1024
_DIGITS_MAX = 9


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What was asked for; header names are in lower case."""

    method: str
    path: str
    query: Query = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class Answer(NamedTuple):
    """What a page answers. The body may be a view of a mapped file: it is sent in pieces."""

    status: int
    content_type: str
    body: bytes | memoryview
    headers: tuple[tuple[str, str], ...] = ()


Page = Callable[[HttpRequest], "Answer | Awaitable[Answer]"]

_REASONS = {
    200: "OK",
    206: "Partial Content",
    304: "Not Modified",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    410: "Gone",
    413: "Content Too Large",
    416: "Range Not Satisfiable",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class BadRequest(Exception):
    """The peer's bytes are no request that is served here; the connection ends with the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.answer = text_answer(status, text)


def json_answer(value: Any, status: int = 200) -> Answer:
    return Answer(status, "application/json", json.dumps(value, indent=2).encode())


def text_answer(status: int, text: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", text.encode() + b"\n")


class HttpServer:
    """Serves pages by path; a path that ends in "/" serves all below it. `counts` tells how often each was asked for."""

    def __init__(
        self,
        pages: Mapping[str, Page],
        failed: Callable[[str], None],
        *,
        methods: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """`methods` names what a path takes besides GET and HEAD."""
        self._pages = dict(pages)
        self._methods = dict(methods or {})
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
        try:
            async with asyncio.timeout(PATIENCE_S):
                request, keep = await _read(reader)
        except BadRequest as error:
            await _send(writer, error.answer, keep=False, body=True)
            return False
        await _send(writer, await self._answer(request), keep=keep, body=request.method != "HEAD")
        return keep

    async def _answer(self, request: HttpRequest) -> Answer:
        path = self._find(request.path)
        if request.method not in ("GET", "HEAD", *self._methods.get(path, ())):
            return text_answer(405, "method not allowed")
        if not path:
            return text_answer(404, "404 page not found")
        self.counts[path] += 1
        try:
            found = self._pages[path](request)
            return await found if isawaitable(found) else found
        except Exception as error:
            # A page that fails must not end the server; the log gets the reason, the peer does not.
            self._failed(f"Monitoring page {path} failed: {error!r}")
            return text_answer(500, "internal error")

    def _find(self, path: str) -> str:
        if path in self._pages:
            return path
        above = path[: path.find("/", 1) + 1]
        return above if len(above) > 1 and above in self._pages else ""


async def _read(reader: asyncio.StreamReader) -> tuple[HttpRequest, bool]:
    """One request, and whether the peer wants to go on afterwards."""
    head = await reader.readuntil(b"\r\n\r\n")
    line, *rest = head.decode("latin-1").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(400, "bad request")
    headers = {name.strip().lower(): value.strip() for name, _, value in (h.partition(":") for h in rest)}
    body = await _read_body(reader, headers)
    try:
        target = urlsplit(words[1])
        query = dict(parse_qsl(target.query, keep_blank_values=True))
    except ValueError:
        raise BadRequest(400, "bad request") from None
    keep = words[2] == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    return HttpRequest(words[0], unquote(target.path), query, headers, body), keep


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "transfer-encoding" in headers:
        raise BadRequest(400, "bodies need a Content-Length")
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit()):
        raise BadRequest(400, "bad Content-Length")
    if len(text) > _DIGITS_MAX or int(text) > BODY_BYTES_MAX:
        raise BadRequest(413, f"a body of at most {BODY_BYTES_MAX} bytes is taken")
    return await reader.readexactly(int(text))


async def _send(writer: asyncio.StreamWriter, answer: Answer, *, keep: bool, body: bool) -> None:
    writer.write(_head(answer, keep=keep))
    if body:
        view = memoryview(answer.body)
        for start in range(0, len(view), _CHUNK_BYTES):
            writer.write(bytes(view[start : start + _CHUNK_BYTES]))
            async with asyncio.timeout(DRAIN_PATIENCE_S):
                await writer.drain()
    async with asyncio.timeout(PATIENCE_S):
        await writer.drain()


def _head(answer: Answer, *, keep: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "X-Content-Type-Options: nosniff",
        *(f"{name}: {value}" for name, value in answer.headers),
        f"Connection: {'keep-alive' if keep else 'close'}",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
