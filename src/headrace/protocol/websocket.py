"""WebSocket (RFC 6455), server side, without a socket: bytes in, payload and bytes out.

Owns the opening handshake, framing, masking, control frames and permessage-deflate. The content of a frame is passed on
as it arrives, so memory does not grow with a length that a peer only announces: a frame's length is a number until its
bytes arrive, and inflated data is bounded. Message boundaries have no meaning here: all messages form one stream of
bytes. See ADR 73.
"""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

import numpy as np

HTTP_HEAD_BYTES_MAX = 8192
CONTROL_BYTES_MAX = 125
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
NORMAL, GOING_AWAY, PROTOCOL_ERROR, INVALID_DATA, POLICY, TOO_BIG = 1000, 1001, 1002, 1007, 1008, 1009

_FINAL, _COMPRESSED, _MASKED = 0x80, 0x40, 0x80
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_DEFLATE = "permessage-deflate"
_DEFLATE_ANSWER = "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
_TAIL = b"\x00\x00\xff\xff"
#: Smaller messages are not compressed.
_COMPRESS_MIN = 64
_CHUNK = 64 * 1024
_NUMPY_MIN_BYTES = 128


class WebSocketError(Exception):
    """The peer violated the protocol; `status` and the text go into the close frame."""

    def __init__(self, text: str, status: int = PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.status = status


class HandshakeRejected(Exception):
    """A request is not a valid handshake; has the HTTP status."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status

    def encode_response(self) -> bytes:
        body = f"{self}\n".encode()
        return (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\nSec-Websocket-Version: 13\r\n"
            f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        ).encode() + body


#: Which of two values counts would be a guess.
_SINGLE_HEADERS = ("host", "origin", "sec-websocket-origin", "sec-websocket-key")

# The handshake


@dataclass(frozen=True, slots=True)
class HandshakeRequest:
    """The head of an HTTP request; header names in lower case, the first value of each counts."""

    method: str
    path: str
    headers: dict[str, list[str]]

    def get(self, name: str) -> str:
        return self.headers.get(name, [""])[0]

    def has_value(self, name: str, value: str) -> bool:
        """Return whether a header's list has this value."""
        return any(
            value.lower() == item.strip().lower()
            for line in self.headers.get(name, ())
            for item in line.split(",")
        )

    def cookies(self) -> dict[str, str]:
        pairs = (
            item.strip().partition("=") for line in self.headers.get("cookie", ()) for item in line.split(";")
        )
        return {name: value.strip('"') for name, sign, value in pairs if sign}


def parse_request(header: bytes) -> HandshakeRequest:
    """Parse the request in a head that ends with an empty line."""
    line, *rest = header[:-4].decode("latin-1").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise HandshakeRejected(HTTPStatus.BAD_REQUEST, "bad request")
    headers: dict[str, list[str]] = {}
    for entry in rest:
        name, colon, value = entry.partition(":")
        if not colon or not name or name != name.strip():
            raise HandshakeRejected(HTTPStatus.BAD_REQUEST, "bad header")
        headers.setdefault(name.lower(), []).append(value.strip())
    if any(len(headers.get(name, ())) > 1 for name in _SINGLE_HEADERS):
        raise HandshakeRejected(HTTPStatus.BAD_REQUEST, "repeated header")
    return HandshakeRequest(words[0], words[1], headers)


def check_handshake(request: HandshakeRequest) -> None:
    """Reject requests that are not an opening handshake."""
    if request.method != "GET":
        raise HandshakeRejected(HTTPStatus.METHOD_NOT_ALLOWED, "request method must be GET")
    if not request.get("host"):
        raise HandshakeRejected(HTTPStatus.BAD_REQUEST, "'Host' missing in request")
    for name, value in (("upgrade", "websocket"), ("connection", "Upgrade")):
        if not request.has_value(name, value):
            raise HandshakeRejected(HTTPStatus.BAD_REQUEST, f"invalid value for header '{name.title()}'")
    try:
        key = base64.b64decode(request.get("sec-websocket-key"), validate=True)
    except ValueError:  # not base64, or not ASCII
        key = b""
    if len(key) != 16:
        raise HandshakeRejected(HTTPStatus.BAD_REQUEST, "invalid websocket key")
    if not request.has_value("sec-websocket-version", "13"):
        raise HandshakeRejected(HTTPStatus.BAD_REQUEST, "invalid version")


def check_origin(request: HandshakeRequest, *, same: bool, allowed: tuple[str, ...], secure: bool) -> None:
    """Reject a web page from another origin; a client that sends no origin is not a browser."""
    origin = request.get("origin") or request.get("sec-websocket-origin")
    if not origin or not (same or allowed):
        return
    found = _parse_origin(origin)
    own_origin = _parse_origin(f"{'https' if secure else 'http'}://{request.get('host')}")
    if found is None or (same and found != own_origin):
        raise HandshakeRejected(HTTPStatus.FORBIDDEN, "origin not allowed: not same origin")
    if allowed and found not in {_parse_origin(text) for text in allowed}:
        raise HandshakeRejected(HTTPStatus.FORBIDDEN, "origin not allowed: not in the allowed list")


def is_from_own_host(request: HandshakeRequest) -> bool:
    """Return whether no web page of another host sent the request. Scheme and port may differ: a proxy changes them."""
    origin = request.get("origin") or request.get("sec-websocket-origin")
    if not origin:
        return True
    found, own = _parse_origin(origin), _parse_origin(f"http://{request.get('host')}")
    return found is not None and own is not None and found[1] == own[1]


def _parse_origin(text: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    if not parts.scheme or not parts.hostname:
        return None
    return (
        parts.scheme.lower(),
        parts.hostname.lower(),
        port or (443 if parts.scheme.lower() == "https" else 80),
    )


def offers_deflate(request: HandshakeRequest) -> bool:
    """Return whether the client offers compression."""
    return any(
        offer.split(";")[0].strip().lower() == _DEFLATE
        for line in request.headers.get("sec-websocket-extensions", ())
        for offer in line.split(",")
    )


def encode_accept(
    request: HandshakeRequest, *, compress: bool, headers: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """Encode the response that opens the connection."""
    digest = hashlib.sha1(request.get("sec-websocket-key").encode() + _GUID, usedforsecurity=False).digest()
    lines = [
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}",
    ]
    if compress:
        lines.append(f"Sec-WebSocket-Extensions: {_DEFLATE_ANSWER}")
    lines += [f"{name}: {value}" for name, value in headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


# Frames


def unmask(data: bytes, key: bytes, position: int) -> bytes:
    """Return the bytes of a frame from `position` on without their mask."""
    size, shift = len(data), position % 4
    key = key[shift:] + key[:shift]
    if size < _NUMPY_MIN_BYTES:
        mask = (key * (size // 4 + 1))[:size]
        return (int.from_bytes(data, "big") ^ int.from_bytes(mask, "big")).to_bytes(size, "big")
    even = size & ~3
    words = np.frombuffer(data, np.uint32, even // 4) ^ np.frombuffer(key, np.uint32)[0]
    return bytes(words.tobytes()) + unmask(data[even:], key, 0)


def encode_frame(opcode: int, payload: bytes | bytearray, *, compressed: bool = False) -> bytes:
    """Encode a complete frame from the server, which is not masked."""
    first = _FINAL | opcode | (_COMPRESSED if compressed else 0)
    size = len(payload)
    if size < 126:
        header = bytes((first, size))
    elif size < 65536:
        header = struct.pack("!BBH", first, 126, size)
    else:
        header = struct.pack("!BBQ", first, 127, size)
    return header + payload


def encode_close(status: int, reason: str) -> bytes:
    """Encode a close frame with a status and a reason."""
    text = reason.encode()[: CONTROL_BYTES_MAX - 2].decode("utf-8", "ignore").encode()
    return encode_frame(CLOSE, struct.pack("!H", status) + text)


class WebSocketCodec:
    """Both directions of an open connection.

    `replies` collects frames to send back; `close_received`: the peer closes the connection.
    """

    def __init__(self, *, compress: bool, inflated_max: int) -> None:
        self._compress = compress
        #: Maximum decompressed size of one message; other rules bound everything else.
        self.inflated_max = inflated_max
        self.replies = bytearray()
        self.close_received = False
        self._header = bytearray()
        self._need = 2
        self._in_message = False  # a message is incomplete
        self._compressed = False
        self._final = True
        self._opcode = CONTINUATION
        self._remaining = 0
        self._position = 0
        self._key = b""
        self._control: bytearray | None = None
        self._inflater: zlib._Decompress | None = None
        self._inflated = 0

    # Receiving

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Yield the payload in the received bytes, piece by piece; a WebSocketError ends the connection."""
        at, end = 0, len(data)
        while at < end and not self.close_received:
            if not self._key:
                at = self._read_header(data, at)
                if not self._key:
                    return
                if self._remaining:
                    continue
            piece = data[at : at + self._remaining]
            plain = unmask(piece, self._key, self._position)
            at += len(piece)
            self._position += len(piece)
            self._remaining -= len(piece)
            yield from self._on_payload(plain)
            if not self._remaining:
                self._key = b""

    def _read_header(self, data: bytes, at: int) -> int:
        """Continue with a frame's header; return where its payload starts, if the header is complete."""
        header = self._header
        while len(header) < self._need:
            missing = self._need - len(header)
            header += data[at : at + missing]
            at = min(at + missing, len(data))
            if len(header) < self._need:
                return at
            if self._need == 2:
                self._check_header(header[0], header[1])
                self._need = 2 + {126: 2, 127: 8}.get(header[1] & 0x7F, 0) + 4
        size = header[1] & 0x7F
        if size >= 126:
            size = int.from_bytes(header[2:-4], "big")
            if size >> 63:
                raise WebSocketError("invalid 64-bit payload length")
        self._key, self._remaining, self._position = bytes(header[-4:]), size, 0
        header.clear()
        self._need = 2
        return at

    def _check_header(self, first: int, second: int) -> None:
        opcode, final, compressed = first & 0x0F, bool(first & _FINAL), bool(first & _COMPRESSED)
        if first & 0x30:
            raise WebSocketError("RSV2 and RSV3 must be clear")
        if compressed and not self._compress:
            raise WebSocketError("compressed frame received without negotiated permessage-deflate")
        if not second & _MASKED:
            raise WebSocketError("mask bit missing")
        if opcode in (CLOSE, PING, PONG):
            if not final or compressed or second & 0x7F > CONTROL_BYTES_MAX:
                raise WebSocketError("control frame is fragmented, compressed or too large")
            self._control = bytearray()
        elif opcode in (TEXT, BINARY):
            if self._in_message:
                raise WebSocketError(
                    "new message started before final frame for previous message was received"
                )
            self._start_message(compressed)
        elif opcode == CONTINUATION:
            if not self._in_message or compressed:
                raise WebSocketError("invalid continuation frame")
        else:
            raise WebSocketError(f"unknown opcode {opcode}")
        self._opcode = opcode
        if opcode < CLOSE:
            self._final, self._in_message = final, not final

    def _start_message(self, compressed: bool) -> None:
        self._compressed = compressed
        self._inflated = 0
        if compressed:
            self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)

    def _on_payload(self, plain: bytes) -> Iterator[bytes]:
        if self._opcode >= CLOSE:
            self._on_control(plain)
        elif not self._compressed:
            if plain:
                yield plain
        else:
            yield from self._inflate_pieces(plain)

    def _inflate_pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed payload in small pieces.

        Data after the last block is skipped and must not reach the inflater, which would keep it.
        """
        if self._final and not self._remaining:
            data += _TAIL
        assert self._inflater is not None
        while data and not self._inflater.eof:
            try:
                piece = self._inflater.decompress(data, _CHUNK)
            except zlib.error as error:
                raise WebSocketError("invalid compressed data", INVALID_DATA) from error
            data = self._inflater.unconsumed_tail
            self._inflated += len(piece)
            if self._inflated > self.inflated_max:
                raise WebSocketError("compressed message is too large", TOO_BIG)
            if piece:
                yield piece

    def _on_control(self, plain: bytes) -> None:
        assert self._control is not None
        self._control += plain
        if self._remaining:
            return
        payload, self._control = bytes(self._control), None
        if self._opcode == PING:
            self.replies += encode_frame(PONG, payload)
        elif self._opcode == CLOSE:
            self._on_close(payload)

    def _on_close(self, payload: bytes) -> None:
        """Reply to a close frame, repeating its content if that is valid."""
        self.close_received = True
        if not payload:
            self.replies += encode_frame(CLOSE, b"")
            return
        status = int.from_bytes(payload[:2], "big")
        try:
            text = payload[2:].decode()
        except UnicodeDecodeError:
            self.replies += encode_close(INVALID_DATA, "invalid utf8 body in close frame")
            return
        if len(payload) == 1 or not _valid_status(status):
            raise WebSocketError("invalid close status code")
        self.replies += encode_close(status, text)

    # Sending

    def encode(self, data: bytes | bytearray) -> bytes:
        """Encode a message with this payload."""
        if not self._compress or len(data) < _COMPRESS_MIN:
            return encode_frame(BINARY, data)
        deflater = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = deflater.compress(data) + deflater.flush(zlib.Z_SYNC_FLUSH)
        return encode_frame(BINARY, packed[: -len(_TAIL)], compressed=True)


def _valid_status(status: int) -> bool:
    if status in (1004, 1005, 1006, 1015):
        return False
    return 1000 <= status < 1016 or 3000 <= status < 5000
