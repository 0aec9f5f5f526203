"""A client on a WebSocket: a connection whose bytes are sent and received in frames.

Owns the handshake timeout, the frames that were received and not decoded yet, and what the WebSocket listener checks in
the handshake: origins, cookies, compression.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.net.client_input import PIECE_BYTES_MIN
from headrace.net.client_tls import ClientTls
from headrace.net.connection import Connection
from headrace.net.connection_context import ConnectionContext
from headrace.net.listen_socket import start_listening
from headrace.net.listener_profile import ListenerProfile
from headrace.protocol import websocket
from headrace.protocol.websocket import HandshakeRejected, WebSocketCodec, WebSocketError

if TYPE_CHECKING:
    from headrace.broker import SessionIdentity
    from headrace.config.options import WebSocketOptions

#: The maximum size of a decompressed message before authentication.
UNAUTHENTICATED_BYTES_MAX = 64 * 1024
#: Status and reason of the close frame for errors of the NATS protocol.
_CLOSE_STATUS = {
    "Authorization Violation": (websocket.POLICY, "Authentication Failure"),
    "Authentication Timeout": (websocket.POLICY, "Authentication Timeout"),
    "User Authentication Expired": (websocket.POLICY, "Authentication Expired"),
    "maximum connections exceeded": (websocket.POLICY, "Maximum Connections Exceeded"),
    "maximum control line exceeded": (websocket.POLICY, "Maximum Control Line Exceeded"),
    "Maximum Payload Violation": (websocket.TOO_BIG, "Maximum Message Payload Exceeded"),
    "Stale Connection": (websocket.GOING_AWAY, "Stale Connection"),
}
#: Paths for connections other than clients.
_NON_CLIENT_PATHS = ("/leafnode", "/mqtt")
_PROTOCOL_VIOLATION = (websocket.PROTOCOL_ERROR, "Protocol Violation")


class WebSocketConnection(Connection):
    """A client on a WebSocket, usually in a browser."""

    __slots__ = (
        "_close_status",
        "_codec",
        "_cookies",
        "_http_head",
        "_pieces",
        "_settings",
        "_undecoded",
    )

    writes_chunks: ClassVar[bool] = False

    def __init__(
        self, context: ConnectionContext, profile: ListenerProfile, settings: WebSocketOptions
    ) -> None:
        super().__init__(context, profile)
        self._settings = settings
        self._http_head: bytearray | None = bytearray()
        self._codec: WebSocketCodec | None = None
        #: What is left of the frames that are being decoded, and frames that were received after those.
        self._pieces: Iterator[bytes] | None = None
        self._undecoded = bytearray()
        self._cookies: dict[str, str] = {}
        self._close_status = (websocket.NORMAL, "Client Closed")

    # The handshake

    def _start_tls(self, ssl_context: ssl.SSLContext) -> None:
        self._tls = ClientTls(self, self._context, ssl_context)
        self._context.timer_wheel.schedule(self, self._settings.handshake_timeout_s)

    def _start_plain(self) -> None:
        self._context.timer_wheel.schedule(self, self._settings.handshake_timeout_s)

    def on_tls_established(self) -> None:
        """Do nothing: the HTTP request comes next."""

    def on_plaintext(self, data: bytes | bytearray, size: int) -> None:
        if self._http_head is not None:
            self._read_http_head(self._http_head, bytes(memoryview(data)[:size]))
        else:
            self._read_frames(bytes(memoryview(data)[:size]))

    def _read_http_head(self, http_head: bytearray, data: bytes) -> None:
        http_head += data
        end = http_head.find(b"\r\n\r\n")
        try:
            if end < 0 and len(http_head) <= websocket.HTTP_HEAD_BYTES_MAX:
                return
            if end < 0 or end > websocket.HTTP_HEAD_BYTES_MAX:
                raise HandshakeRejected(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "request header is too long"
                )
            if end + 4 != len(http_head):
                raise HandshakeRejected(
                    HTTPStatus.BAD_REQUEST, "client sent data before handshake is complete"
                )
            self._upgrade(bytes(http_head))
        except HandshakeRejected as rejection:
            self._send(rejection.encode_response())
            self._context.log.debug(f"cid {self.session.cid}: WebSocket handshake rejected: {rejection}")
            self.close()

    def _upgrade(self, http_head: bytes) -> None:
        settings, context = self._settings, self._context
        request = websocket.parse_request(http_head)
        websocket.check_handshake(request)
        if request.path.partition("?")[0].endswith(_NON_CLIENT_PATHS):
            raise HandshakeRejected(HTTPStatus.NOT_FOUND, "only client connections are supported")
        secure = self._tls is not None
        websocket.check_origin(
            request, same=settings.same_origin, allowed=settings.allowed_origins, secure=secure
        )
        compress = settings.compression and websocket.offers_deflate(request)
        self._send(websocket.encode_accept(request, compress=compress, headers=settings.headers))
        self._http_head = None
        # Without a list of origins any page may connect, but not with the cookies of its visitors.
        if settings.same_origin or settings.allowed_origins or websocket.is_from_own_host(request):
            self._cookies = request.cookies()
        self._codec = WebSocketCodec(compress=compress, inflated_max=UNAUTHENTICATED_BYTES_MAX)
        if self.session.authenticated:
            self._codec.inflated_max = context.options.max_pending
        self.send_info()
        self._on_ready()

    # Frames

    def _read_frames(self, data: bytes) -> None:
        codec = self._codec
        if codec is None:
            return
        if self._pieces is not None:
            self._undecoded += data
            return
        self._pieces = codec.receive(data)
        self._parse_pieces(codec)

    def _parse_slice(self) -> None:
        super()._parse_slice()
        if self._unparsed is None and self._codec is not None and not self.closing:
            self._parse_pieces(self._codec)

    def _parse_pieces(self, codec: WebSocketCodec) -> None:
        """Decode and parse frames for the time of a slice; nothing more is decompressed before it is needed."""
        size, end_s = 0, perf_counter() + self._get_slice_s()
        try:
            for piece in self._pieces or ():
                if self.closing:
                    return
                self._parse(piece, len(piece))
                size += len(piece)
                if self._unparsed is not None:
                    return
                if size >= PIECE_BYTES_MIN and self._greeting is None and perf_counter() >= end_s:
                    self._unparsed = bytearray()  # the next slice continues with the next piece
                    return
        except WebSocketError as error:
            self._close_status = (error.status, str(error))
            self.close()
            return
        self._pieces = None
        if self._undecoded and not codec.close_received:
            data = bytes(self._undecoded)
            self._undecoded.clear()
            self._read_frames(data)
        else:
            self._after_frames(codec)

    def _after_frames(self, codec: WebSocketCodec) -> None:
        """Answer control frames."""
        if codec.replies:
            replies = bytes(codec.replies)
            codec.replies.clear()
            if codec.close_received:
                self.flush()  # pending output goes before the close frame
            self._send(replies)
        if codec.close_received:
            self._codec = None  # the close frame has been answered
            self.close()

    def send_info(self) -> None:
        self.info_sent = True
        if self._codec is not None:
            self._send(self._codec.encode(self.info_line()))

    def _encode(self, output: bytearray) -> bytes | bytearray:
        return self._codec.encode(output) if self._codec is not None else b""

    # Closing

    def connection_lost(self, exc: Exception | None) -> None:
        self._codec = self._http_head = None
        super().connection_lost(exc)

    def fail(self, text: str | None) -> None:
        self._close_status = _CLOSE_STATUS.get(text or "", _PROTOCOL_VIOLATION)
        super().fail(text)

    def _send_close(self) -> None:
        if self._codec is not None:
            self._send(websocket.encode_close(*self._close_status))

    def on_timeout(self) -> None:
        if not self.closing and self._http_head is not None:
            self.abort()
        else:
            super().on_timeout()

    # Authentication

    def authenticate(self, fields: Mapping[str, Any]) -> SessionIdentity | None:
        """Use cookies for credentials that CONNECT does not have: a page cannot always read its cookies itself."""
        settings = self._settings
        names = {
            "jwt": settings.jwt_cookie,
            "user": settings.user_cookie,
            "pass": settings.pass_cookie,
            "auth_token": settings.token_cookie,
        }
        from_cookies = {
            key: self._cookies[name]
            for key, name in names.items()
            if name in self._cookies and not fields.get(key)
        }
        return super().authenticate({**fields, **from_cookies})

    def on_connected(self) -> None:
        if self._codec is not None:
            self._codec.inflated_max = self._context.options.max_pending
        super().on_connected()


async def create_websocket_server(
    context: ConnectionContext,
    get_profile: Callable[[], tuple[ListenerProfile, WebSocketOptions]],
    host: str,
    port: int,
) -> asyncio.Server:
    """Create the server for WebSocket clients; raise OSError if the address is not available."""
    return await start_listening(
        lambda: WebSocketConnection(context, *get_profile()), host, port, start_serving=False
    )
