"""HTTP requests to the monitoring port: a request or an HttpError, the same however they are cut; nothing counts twice."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, NamedTuple

from headrace.monitor.http import BODY_BYTES_MAX, HEAD_BYTES_MAX, HttpConnection, HttpError, HttpRequest

from .input_generator import NUMBERS, Maker
from .target import Pair

_LINES = (
    b"GET /varz HTTP/1.1", b"GET / HTTP/1.0", b"POST /headrace/request HTTP/1.1", b"HEAD /%2e%2e/?a=b&a=%ff HTTP/1.1",
    b"GET http://[x HTTP/1.1", b"GET /a b HTTP/1.1", b"GET / HTTP/2.0", b"GET /\xff HTTP/1.1", b"PRI * HTTP/2.0", b"",
    b"CONNECT a:1 HTTP/1.1", b"OPTIONS * HTTP/1.1",
)  # fmt: skip
_NAMES = (
    b"Host", b"host", b"Content-Length", b"Authorization", b"Origin", b"Range", b"Sec-Fetch-Site", b"Connection",
    b"Transfer-Encoding", b"Expect", b"Upgrade", b"X", b"", b"A b", b" Host", b"Host ",
)  # fmt: skip
_VALUES = (
    b"a", b"localhost:8222", b"Bearer x", b"close", b"keep-alive", b"chunked", b"100-continue", b"bytes=0-", b"\xff",
    b"", b"a, b", b"websocket", b"3", b"3, 3", b"a\x00b", b"a\rb",
)  # fmt: skip
_SINGLE = ("host", "content-length", "authorization", "origin", "range", "sec-fetch-site")
_ENDS = (b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"")
_WORDS = (*_LINES, *_NAMES, *_VALUES, b"\r\n", b"\r\n\r\n", b": ", b"HTTP/1.1")


class Case(NamedTuple):
    data: bytes
    pieces: list[bytes]


class Reader:
    """The pieces, one for each read, then the end."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    async def read(self, size: int) -> bytes:
        if not self._pieces:
            return b""
        piece = self._pieces.pop(0)
        if len(piece) > size:
            self._pieces.insert(0, piece[size:])
        return piece[:size]


class Writer:
    def write(self, data: bytes) -> None:
        assert data.startswith(b"HTTP/1.1 100 ")


def start(maker: Maker) -> Pair:
    return make, check


def make(maker: Maker) -> Case:
    lines = [maker.pick(_LINES), maker.pick(_ENDS)]
    if maker.chance(0.7):
        lines += [b"Host: a", b"\r\n"]
    for _ in range(maker.below(5)):
        value = maker.pick(_VALUES) if maker.chance(0.7) else maker.pick(NUMBERS)
        lines += [maker.pick(_NAMES), maker.pick((b": ", b":", b" : ", b"")), value, maker.pick(_ENDS)]
    data = b"".join(lines) + b"\r\n" + maker.pick((b"", b"abc", b"0\r\n\r\n", b"x" * 5000))
    if maker.chance(0.4):
        data = maker.damaged(data, _WORDS)
    return Case(data, maker.pieces(data))


def check(case: Case) -> None:
    whole, cut = _outcome([case.data]), _outcome(case.pieces)
    # Whether a head is too long is noticed before its end comes, or not, and before other mistakes in it.
    both_refused = isinstance(whole, int) and isinstance(cut, int)
    assert cut == whole or both_refused or len(case.data) > HEAD_BYTES_MAX, "cut, it is another request"
    if not isinstance(whole, HttpRequest):
        return
    assert len(whole.body) <= BODY_BYTES_MAX
    head = case.data.lower().replace(b"\r", b"\n").split(b"\n\n")[0]
    lines = [
        line for line in head.split(b"\n")[1:] if not line.startswith((b" ", b"\t"))
    ]  # others continue a value
    names = [line.partition(b":")[0].strip() for line in lines]
    for name in _SINGLE:
        assert names.count(name.encode()) <= 1, f"{name} is there twice"


def _outcome(pieces: list[bytes]) -> Any:
    """The request, None, or the status of its refusal."""
    connection = HttpConnection(Reader(pieces), Writer())  # type: ignore[arg-type]
    try:
        return _run(connection.receive())
    except HttpError as error:
        return error.response.status


def _run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        return finished.value
    raise AssertionError("it waits")
