"""A small HTTP/1.1 server on asyncio alone, for figures, the web page and pinned files.

Owns the framing: a request line, headers, a short body, a response with its length. The size of requests and the time
to wait for them are limited. It must not know the contents of the pages.
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
REQUEST_TIMEOUT_S = 5.0
#: A whole file may take longer to send, but the client has to keep reading it.
WRITE_TIMEOUT_S = 30.0
_CHUNK_BYTES = 256 * 1024
_DIGITS_MAX = 9


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request; header names are in lower case."""

    method: str
    path: str
    query: Query = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class HttpResponse(NamedTuple):
    """The response of a page. The body may be a view of a mapped file: it is sent in pieces."""

    status: int
    content_type: str
    body: bytes | memoryview
    headers: tuple[tuple[str, str], ...] = ()


PageHandler = Callable[[HttpRequest], "HttpResponse | Awaitable[HttpResponse]"]

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


class HttpError(Exception):
    """A request that is not valid or not supported; the connection ends with the response."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.response = make_text_response(status, text)


def make_json_response(value: Any, status: int = 200) -> HttpResponse:
    return HttpResponse(status, "application/json", json.dumps(value, indent=2).encode())


def make_text_response(status: int, text: str) -> HttpResponse:
    return HttpResponse(status, "text/plain; charset=utf-8", text.encode() + b"\n")


class HttpServer:
    """Serves pages by path; a path that ends in "/" serves everything below it. `page_counts` counts the requests."""

    def __init__(
        self,
        pages: Mapping[str, PageHandler],
        on_error: Callable[[str], None],
        *,
        methods: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        """`methods` has the methods that a path accepts besides GET and HEAD."""
        self._pages = dict(pages)
        self._methods = dict(methods or {})
        self._on_error = on_error
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.page_counts = dict.fromkeys(self._pages, 0)
        self.port = 0

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(
            self._serve_connection, host, max(port, 0), ssl=tls, limit=HEAD_BYTES_MAX, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._handle_request(reader, writer):
                pass
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            # The client disconnected, sent nothing, or sent too much: no response is possible.
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _handle_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Handle one request; return whether the connection stays open for another."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request, keep_alive = await _read_request(reader)
        except HttpError as error:
            await _send_response(writer, error.response, keep_alive=False, with_body=True)
            return False
        await _send_response(
            writer,
            await self._make_response(request),
            keep_alive=keep_alive,
            with_body=request.method != "HEAD",
        )
        return keep_alive

    async def _make_response(self, request: HttpRequest) -> HttpResponse:
        path = self._find_page(request.path)
        if request.method not in ("GET", "HEAD", *self._methods.get(path, ())):
            return make_text_response(405, "method not allowed")
        if not path:
            return make_text_response(404, "404 page not found")
        self.page_counts[path] += 1
        try:
            result = self._pages[path](request)
            return await result if isawaitable(result) else result
        except Exception as error:
            # A page that fails must not end the server; the log gets the reason, the client does not.
            self._on_error(f"Error in monitoring page {path}: {error!r}")
            return make_text_response(500, "internal error")

    def _find_page(self, path: str) -> str:
        if path in self._pages:
            return path
        prefix = path[: path.find("/", 1) + 1]
        return prefix if len(prefix) > 1 and prefix in self._pages else ""


async def _read_request(reader: asyncio.StreamReader) -> tuple[HttpRequest, bool]:
    """Read one request; return it and whether the client wants to keep the connection."""
    head = await reader.readuntil(b"\r\n\r\n")
    line, *rest = head.decode("latin-1").split("\r\n")
    parts = line.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise HttpError(400, "bad request")
    headers = {name.strip().lower(): value.strip() for name, _, value in (h.partition(":") for h in rest)}
    body = await _read_body(reader, headers)
    try:
        target = urlsplit(parts[1])
        query = dict(parse_qsl(target.query, keep_blank_values=True))
    except ValueError:
        raise HttpError(400, "bad request") from None
    keep_alive = parts[2] == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    return HttpRequest(parts[0], unquote(target.path), query, headers, body), keep_alive


async def _read_body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "transfer-encoding" in headers:
        raise HttpError(400, "Content-Length is required")
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit()):
        raise HttpError(400, "bad Content-Length")
    if len(text) > _DIGITS_MAX or int(text) > BODY_BYTES_MAX:
        raise HttpError(413, f"the body exceeds {BODY_BYTES_MAX} bytes")
    return await reader.readexactly(int(text))


async def _send_response(
    writer: asyncio.StreamWriter, response: HttpResponse, *, keep_alive: bool, with_body: bool
) -> None:
    writer.write(_encode_head(response, keep_alive=keep_alive))
    if with_body:
        view = memoryview(response.body)
        for start in range(0, len(view), _CHUNK_BYTES):
            writer.write(bytes(view[start : start + _CHUNK_BYTES]))
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await writer.drain()
    async with asyncio.timeout(REQUEST_TIMEOUT_S):
        await writer.drain()


def _encode_head(response: HttpResponse, *, keep_alive: bool) -> bytes:
    lines = [
        f"HTTP/1.1 {response.status} {_REASONS[response.status]}",
        f"Content-Type: {response.content_type}",
        f"Content-Length: {len(response.body)}",
        "X-Content-Type-Options: nosniff",
        *(f"{name}: {value}" for name, value in response.headers),
        f"Connection: {'keep-alive' if keep_alive else 'close'}",
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
