"""A client on a WebSocket: a connection whose bytes come and go in frames.

Owns the patience with the handshake and what the door for browsers asks of it: origins, cookies, compression.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.net.connection import Connection
from headrace.net.doors import Door
from headrace.protocol import websocket
from headrace.protocol.websocket import Frames, Refusal, WebSocketError

if TYPE_CHECKING:
    from headrace.broker import Identity
    from headrace.net.listener import Listener
    from headrace.net.options import WebSocketOptions

#: What may come out of a compressed message of somebody who is not known yet.
STRANGER_BYTES_MAX = 64 * 1024
#: What a closing frame says for the errors of the protocol inside it.
_STATUS = {
    "Authorization Violation": (websocket.POLICY, "Authentication Failure"),
    "Authentication Timeout": (websocket.POLICY, "Authentication Timeout"),
    "User Authentication Expired": (websocket.POLICY, "Authentication Expired"),
    "maximum connections exceeded": (websocket.POLICY, "Maximum Connections Exceeded"),
    "maximum control line exceeded": (websocket.POLICY, "Maximum Control Line Exceeded"),
    "Maximum Payload Violation": (websocket.TOO_BIG, "Maximum Message Payload Exceeded"),
    "Stale Connection": (websocket.GOING_AWAY, "Stale Connection"),
}
#: Paths by which others than clients would come.
_OTHERS = ("/leafnode", "/mqtt")
_BROKEN = (websocket.PROTOCOL_ERROR, "Protocol Violation")


class WebConnection(Connection):
    """A browser's client, as a rule."""

    __slots__ = ("_cookies", "_farewell", "_frames", "_head", "_settings")

    in_parts: ClassVar[bool] = False

    def __init__(self, listener: Listener, door: Door, settings: WebSocketOptions) -> None:
        super().__init__(listener, door)
        self._settings = settings
        self._head: bytearray | None = bytearray()
        self._frames: Frames | None = None
        self._cookies: dict[str, str] = {}
        self._farewell = (websocket.NORMAL, "Client Closed")

    # The handshake

    def _begin_tls(self, context: ssl.SSLContext) -> None:
        self._make_channel(context)
        self._listener.wheel.appoint(self, self._settings.handshake_timeout_s)

    def _begin_plain(self) -> None:
        self._listener.wheel.appoint(self, self._settings.handshake_timeout_s)

    def _secured(self) -> None:
        """TLS stands; the request comes next."""

    def _arrived(self, data: bytes | bytearray, size: int) -> None:
        if self._head is not None:
            self._read_head(self._head, bytes(memoryview(data)[:size]))
        else:
            self._read_frames(bytes(memoryview(data)[:size]))

    def _read_head(self, head: bytearray, data: bytes) -> None:
        head += data
        end = head.find(b"\r\n\r\n")
        try:
            if end < 0 and len(head) <= websocket.HEAD_BYTES_MAX:
                return
            if end < 0 or end > websocket.HEAD_BYTES_MAX:
                raise Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too long")
            if end + 4 != len(head):
                raise Refusal(HTTPStatus.BAD_REQUEST, "client sent data before handshake is complete")
            self._upgrade(bytes(head))
        except Refusal as refusal:
            self._send_plain(refusal.answer())
            self._listener.log.debug(f"cid {self.session.cid}: no WebSocket: {refusal}")
            self.close()

    def _upgrade(self, head: bytes) -> None:
        settings, listener = self._settings, self._listener
        request = websocket.read_request(head)
        websocket.check(request)
        if request.path.partition("?")[0].endswith(_OTHERS):
            raise Refusal(HTTPStatus.NOT_FOUND, "only clients are served here")
        secure = self._channel is not None
        websocket.check_origin(
            request, same=settings.same_origin, allowed=settings.allowed_origins, secure=secure
        )
        compress = settings.compression and websocket.wants_deflate(request)
        self._send_plain(websocket.accept(request, compress=compress, headers=settings.headers))
        self._head = None
        self._cookies = request.cookies()
        self._frames = Frames(compress=compress, inflated_max=STRANGER_BYTES_MAX)
        if self.session.ready:
            self._frames.inflated_max = listener.options.max_pending
        self._greet()
        self._begin_session()

    # Frames

    def _read_frames(self, data: bytes) -> None:
        frames = self._frames
        if frames is None:
            return
        try:
            for piece in frames.receive(data):
                if self._closing:
                    return
                self._feed(piece, len(piece))
        except WebSocketError as error:
            self._farewell = (error.status, str(error))
            self.close()
            return
        if frames.answers:
            answers = bytes(frames.answers)
            frames.answers.clear()
            if frames.ended:
                self.flush()  # what was said goes before the goodbye
            self._send_plain(answers)
        if frames.ended:
            self._frames = None  # it has had its answer
            self.close()

    def _greet(self) -> None:
        self._greeted = True
        if self._frames is not None:
            self._send_plain(self._frames.encode(self.greeting()))

    def _framed(self, out: bytearray) -> bytes | bytearray:
        return self._frames.encode(out) if self._frames is not None else b""

    # The end

    def fail(self, text: str | None) -> None:
        self._farewell = _STATUS.get(text or "", _BROKEN)
        super().fail(text)

    def _say_goodbye(self) -> None:
        if self._frames is not None:
            self._send_plain(websocket.closing(*self._farewell))

    def look(self) -> None:
        if not self._closing and self._head is not None:
            self.abort()
        else:
            super().look()

    # Who it is

    def authenticate(self, fields: Mapping[str, Any]) -> Identity | None:
        """Cookies stand in for what CONNECT does not say: a page cannot always see them itself."""
        settings = self._settings
        names = {
            "jwt": settings.jwt_cookie,
            "user": settings.user_cookie,
            "pass": settings.pass_cookie,
            "auth_token": settings.token_cookie,
        }
        offered = {
            key: self._cookies[name]
            for key, name in names.items()
            if name in self._cookies and not fields.get(key)
        }
        return super().authenticate({**fields, **offered})

    def connected(self) -> None:
        if self._frames is not None:
            self._frames.inflated_max = self._listener.options.max_pending
        super().connected()


async def open_web(
    listener: Listener, door: Callable[[], tuple[Door, WebSocketOptions]], host: str, port: int
) -> asyncio.Server:
    """Accept WebSocket clients; raises OSError when the address is not to be had."""
    return await listener.loop.create_server(
        lambda: WebConnection(listener, *door()), host, max(port, 0), start_serving=False
    )
