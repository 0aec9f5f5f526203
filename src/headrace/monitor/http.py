"""A small HTTP/1.1 server on asyncio and h11, for figures, the web page and pinned files.

Owns the connections. The size of requests and the time to wait for them are limited, and a request that two readers could
understand differently is refused. It must not know the contents of the pages.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import isawaitable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import h11

from headrace.monitor.query import Query
from headrace.net.listen_socket import start_listening

HEAD_BYTES_MAX = 8192
BODY_BYTES_MAX = 64 * 1024
REQUEST_TIMEOUT_S = 5.0
#: A whole file may take longer to send, but the client has to keep reading it.
WRITE_TIMEOUT_S = 30.0
_CHUNK_BYTES = 256 * 1024
#: Which of two values counts would be a guess. h11 itself refuses a second Host and different lengths.
_SINGLE_HEADERS = frozenset(("host", "content-length", "authorization", "origin", "range", "sec-fetch-site"))


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request; header names are in lower case."""

    method: str
    path: str
    query: Query = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class HttpResponse(NamedTuple):
    """The response of a page. The body may be a view of a mapped file, which is sent in pieces, or have several parts."""

    status: int
    content_type: str
    body: bytes | memoryview | list[bytes]
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
    431: "Request Header Fields Too Large",
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
        may_send: Callable[[], bool] | None = None,
    ) -> None:
        """`methods` has the methods that a path accepts besides GET and HEAD.

        `may_send` returns whether this server may still send anything: a standby may have taken over.
        """
        self._pages = dict(pages)
        self._methods = dict(methods or {})
        self._on_error = on_error
        self._may_send = may_send
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.page_counts = dict.fromkeys(self._pages, 0)
        self.port = 0

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        def make_protocol() -> asyncio.StreamReaderProtocol:
            reader = asyncio.StreamReader(limit=HEAD_BYTES_MAX)
            return asyncio.StreamReaderProtocol(reader, self._serve_connection)

        self._server = await start_listening(make_protocol, host, port, ssl=tls)
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
        connection = HttpConnection(reader, writer, self._may_send)
        try:
            while await self._handle_request(connection):
                pass
        except (OSError, EOFError, TimeoutError):
            pass  # the client disconnected, or sent nothing: no response is possible
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _handle_request(self, connection: HttpConnection) -> bool:
        """Handle one request; return whether the connection stays open for another."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                request = await connection.receive()
        except HttpError as error:
            return await connection.respond(error.response, close=True)
        if request is None:
            return False
        return await connection.respond(
            await self._make_response(request), with_body=request.method != "HEAD"
        )

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


class HttpConnection:
    """One connection: reads requests and writes responses. h11 does the framing and refuses what is ambiguous."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        may_send: Callable[[], bool] | None = None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._may_send = may_send
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)

    async def receive(self) -> HttpRequest | None:
        """Read one request; return None if the client has no more, raise HttpError if it is not valid."""
        try:
            head = await self._next_event()
            if not isinstance(head, h11.Request):
                return None
            headers = _check_head(head)
            body = bytearray()
            while isinstance(event := await self._next_event(), h11.Data):
                body += event.data
        except h11.RemoteProtocolError as error:
            raise HttpError(error.error_status_hint, str(error)) from None
        return _make_request(head, headers, bytes(body)) if isinstance(event, h11.EndOfMessage) else None

    async def _next_event(self) -> Any:
        """Return the next event of the protocol, after reading until there is one."""
        connection = self._h11
        while (event := connection.next_event()) is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                go_on = h11.InformationalResponse(status_code=100, headers=[], reason="Continue")
                self._write(connection.send(go_on))
            connection.receive_data(await self._reader.read(HEAD_BYTES_MAX))
        return event

    def _write(self, data: bytes | None) -> None:
        if self._may_send is not None and not self._may_send():
            self._writer.transport.abort()
            raise ConnectionAbortedError("this server may not send anything any more")
        self._writer.write(data or b"")

    async def respond(self, response: HttpResponse, *, with_body: bool = True, close: bool = False) -> bool:
        """Send a response; return whether the connection stays open for another request."""
        connection, writer = self._h11, self._writer
        headers = [*_list_headers(response), *([("Connection", "close")] if close else [])]
        reason = _REASONS.get(response.status, "")
        head = h11.Response(status_code=response.status, headers=headers, reason=reason)
        self._write(connection.send(head))
        for chunk in _iter_chunks(response) if with_body else ():
            self._write(connection.send(h11.Data(data=chunk)))
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await writer.drain()
        self._write(connection.send(h11.EndOfMessage()))
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            await writer.drain()
        if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
            return False
        connection.start_next_cycle()
        return True


def _check_head(head: h11.Request) -> dict[str, str]:
    """Return the headers by name; raise HttpError if one that must be single is repeated, or the body is too large."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in head.headers:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        if name in headers and name in _SINGLE_HEADERS:
            raise HttpError(400, f"repeated header {name}")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if head.http_version not in (b"1.0", b"1.1"):
        raise HttpError(400, "bad request")
    if "transfer-encoding" in headers:
        raise HttpError(400, "Content-Length is required")
    if int(headers.get("content-length", "0")) > BODY_BYTES_MAX:
        raise HttpError(413, f"the body exceeds {BODY_BYTES_MAX} bytes")
    return headers


def _make_request(head: h11.Request, headers: Mapping[str, str], body: bytes) -> HttpRequest:
    try:
        target = urlsplit(head.target.decode("latin-1"))
        query = dict(parse_qsl(target.query, keep_blank_values=True))
    except ValueError:
        raise HttpError(400, "bad request") from None
    return HttpRequest(head.method.decode("latin-1"), unquote(target.path), query, headers, body)


def _iter_chunks(response: HttpResponse) -> Iterator[bytes]:
    for part in response.body if isinstance(response.body, list) else [response.body]:
        view = memoryview(part)
        for start in range(0, len(view), _CHUNK_BYTES):
            yield bytes(view[start : start + _CHUNK_BYTES])


def _list_headers(response: HttpResponse) -> list[tuple[str, str]]:
    body = response.body
    size = sum(map(len, body)) if isinstance(body, list) else len(body)
    return [
        ("Content-Type", response.content_type),
        ("Content-Length", str(size)),
        ("X-Content-Type-Options", "nosniff"),
        *response.headers,
    ]
