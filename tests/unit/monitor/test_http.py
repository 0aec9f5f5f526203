"""The small HTTP server: framing, limits, and pages that fail."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headrace.monitor.http import HttpRequest, HttpResponse, HttpServer, make_json_response


def hello(request: HttpRequest) -> HttpResponse:
    return make_json_response({"hello": request.query.get("name", "")})


def broken(request: HttpRequest) -> HttpResponse:
    raise RuntimeError("inner secret")


@asynccontextmanager
async def running(failures: list[str] | None = None) -> AsyncIterator[HttpServer]:
    reports = [] if failures is None else failures
    server = HttpServer({"/hello": hello, "/broken": broken}, reports.append)
    await server.start("127.0.0.1", -1)
    try:
        yield server
    finally:
        await server.stop()


async def exchange(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /hello HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"GET /nothing HTTP/1.0\r\n\r\n", b"404 Not Found"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"404 Not Found"),
        (b"POST /hello HTTP/1.0\r\nContent-Length: 0\r\n\r\n", b"405 Method Not Allowed"),
        (b"nonsense\r\n\r\n", b"400 Bad Request"),
        (b"GET /hello SPDY/3\r\n\r\n", b"400 Bad Request"),
        (b"GET http://[hello HTTP/1.0\r\n\r\n", b"400 Bad Request"),
        (b"POST /hello HTTP/1.0\r\nContent-Length: %s\r\n\r\n" % (b"9" * 5000), b"400 Bad Request"),
        (b"POST /hello HTTP/1.0\r\nContent-Length: 65537\r\n\r\n", b"413 Content Too Large"),
        (b"GET /hello HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"400 Bad Request"),
        (b"GET /hello HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", b"400 Bad Request"),
        (b"GET /hello HTTP/1.1\r\n\r\n", b"400 Bad Request"),
        (b"GET /hello HTTP/2.0\r\nHost: a\r\n\r\n", b"400 Bad Request"),
        (b"GET /hello HTTP/1.0\r\nContent-Length: 0\r\nContent-Length: 7\r\n\r\n", b"400 Bad Request"),
        (
            b"GET /hello HTTP/1.0\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"400 Bad Request",
        ),
        (
            b"GET /hello HTTP/1.0\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
            b"400 Bad Request",
        ),
        (b"GET /hello HTTP/1.0\r\nOrigin: http://a\r\nOrigin: http://b\r\n\r\n", b"400 Bad Request"),
        (b"GET /hello HTTP/1.0\r\nA b: c\r\n\r\n", b"400 Bad Request"),
        (b"GET /hello HTTP/1.0\r\nA: b\rc\r\n\r\n", b"400 Bad Request"),
    ],
)
async def test_invalid_requests_get_their_status(request_: bytes, status: bytes) -> None:
    async with running() as server:
        answer = await exchange(server.port, request_)
    assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")


async def test_query_and_body() -> None:
    async with running() as server:
        answer = await exchange(server.port, b"GET /hello?name=a%20b&x HTTP/1.0\r\n\r\n")
        assert server.page_counts == {"/hello": 1, "/broken": 0}
    head, _, body = answer.partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert json.loads(body) == {"hello": "a b"}


async def test_head_has_no_body() -> None:
    async with running() as server:
        answer = await exchange(server.port, b"HEAD /hello HTTP/1.0\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n")


async def test_one_connection_serves_several_requests() -> None:
    async with running() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(3):
            writer.write(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
            assert json.loads(await reader.readexactly(size)) == {"hello": ""}
        writer.close()


async def test_a_page_that_fails_tells_the_log_not_the_peer() -> None:
    failures: list[str] = []
    async with running(failures) as server:
        answer = await exchange(server.port, b"GET /broken HTTP/1.0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 ")
    assert b"inner secret" not in answer
    assert "inner secret" in failures[0]


async def test_an_endless_request_is_cut() -> None:
    async with running() as server:
        try:
            answer = await exchange(server.port, b"GET /" + b"x" * 200_000)
        except ConnectionError:
            answer = b""
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")


async def test_stop_does_not_wait_for_idle_peers() -> None:
    async with running() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /hello HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
    assert (await reader.read()).endswith(b"}")
    writer.close()


async def test_a_body_is_read_and_bounded() -> None:
    def echo(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, "text/plain", request.body, (("X-Kind", request.headers["x-kind"]),))

    server = HttpServer({"/echo/": echo}, print, methods={"/echo/": ("POST",)})
    await server.start("127.0.0.1", -1)
    try:
        answer = await exchange(
            server.port, b"POST /echo/deep HTTP/1.0\r\nX-Kind: a\r\nContent-Length: 3\r\n\r\nabc"
        )
        assert b"200 OK" in answer
        assert b"X-Kind: a\r\n" in answer
        assert answer.endswith(b"\r\n\r\nabc")
        large = await exchange(server.port, b"POST /echo/ HTTP/1.0\r\nContent-Length: 70000\r\n\r\n")
        assert large.startswith(b"HTTP/1.1 413 ")
        for length in (b"-1", b"1e3", b"\xc2\xb2"):
            bad = await exchange(
                server.port, b"POST /echo/ HTTP/1.0\r\nContent-Length: " + length + b"\r\n\r\n"
            )
            assert bad.startswith(b"HTTP/1.1 400 ")
    finally:
        await server.stop()


async def test_a_server_whose_lease_has_ended_sends_no_page() -> None:
    """It was suspended while it made a page, and a standby has taken over meanwhile."""
    may_send = True

    async def suspend(request: HttpRequest) -> HttpResponse:
        nonlocal may_send
        may_send = request.path != "/read"
        return HttpResponse(200, "text/plain", b"a message")

    server = HttpServer({"/read": suspend, "/other": suspend}, print, may_send=lambda: may_send)
    await server.start("127.0.0.1", -1)
    try:
        assert (await exchange(server.port, b"GET /other HTTP/1.0\r\n\r\n")).endswith(b"a message")
        assert await exchange(server.port, b"GET /read HTTP/1.0\r\n\r\n") == b""
    finally:
        await server.stop()
