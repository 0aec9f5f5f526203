"""Fuzz target: WebSocket frames and handshakes: payload or a WebSocketError for any chunks, and bounded inflation."""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

from headrace.protocol import websocket as ws

from .input_generator import Maker
from .target import Pair

INFLATED_MAX = 4096
CHUNK = 64 * 1024
_TEXTS = (b"PING\r\n", b"PUB a 1\r\nx\r\n", b"CONNECT {}\r\n", b"a" * 130, b"\x00" * 70_000, b"")
_HEADS = (
    b"Host: a\r\n", b"Upgrade: websocket\r\n", b"Connection: keep-alive, Upgrade\r\n",
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n", b"Sec-WebSocket-Version: 13\r\n", b"Origin: http://a:1\r\n",
    b"Origin: http://[::1\r\n", b"Origin: http://a:99999\r\n", b"Cookie: jwt=a; b\r\n", b"Cookie: =\r\n", b"X\r\n",
    b"Sec-WebSocket-Extensions: permessage-deflate; x\r\n", b"Host: \xff\r\n", b"Sec-WebSocket-Key: \xff\r\n",
)  # fmt: skip
_WORDS = (*_HEADS, b"HTTP/1.1", b"GET", b"\r\n")


class Case(NamedTuple):
    compress: bool
    data: bytes
    pieces: list[bytes]


def start(maker: Maker) -> Pair:
    return make, check


def make(maker: Maker) -> bytes | Case:
    if maker.chance(0.15):
        return _handshake(maker)
    if maker.chance(0.05):
        data = maker.bytes(60)
    else:
        data = b"".join([_frame(maker) for _ in range(1 + maker.below(4))])
    if maker.chance(0.3):
        data = maker.damaged(data, (b"\x81\x80", b"\x00\x00\xff\xff", b"\x88", b"\xff"))
    return Case(maker.chance(0.6), data, maker.pieces(data))


def _handshake(maker: Maker) -> bytes:
    lines = [maker.pick((b"GET / HTTP/1.1\r\n", b"GET /\r\n", b"POST / HTTP/1.1\r\n", b"GET / HTTP/1.0\r\n"))]
    lines += [line for line in _HEADS[:5] if maker.chance(0.95)]
    lines += [maker.pick(_HEADS) for _ in range(maker.below(4))]
    head = b"".join(lines)
    return (maker.damaged(head, _WORDS) if maker.chance(0.5) else head) + b"\r\n"


def _frame(maker: Maker) -> bytes:
    opcode = maker.pick((0, 0, 1, 2, 2, 2, 2, 8, 9, 10, 3, 11))
    final, packed = maker.chance(0.8), maker.chance(0.4)
    payload = maker.pick(_TEXTS) if maker.chance(0.6) else maker.bytes(20)
    if packed:
        payload = _deflated(maker, payload)
    elif opcode == 8 and maker.chance(0.7):
        payload = struct.pack("!H", maker.pick((1000, 1001, 1005, 999, 3000, 5000, 0))) + payload[:20]
    first = (final << 7) | (packed << 6) | opcode | (maker.chance(0.02) << 5)
    size, key = len(payload), maker.rng.randbytes(4) if maker.chance(0.9) else bytes(4)
    if maker.chance(0.05):
        size = maker.pick((size + 1, 0, 125, 126, 65_536, (1 << 62), (1 << 63), (1 << 64) - 1))
    masked = 0x80 if maker.chance(0.97) else 0
    if size < 126:
        head = struct.pack("!BB", first, masked | size)
    elif size < 65_536 and maker.chance(0.9):
        head = struct.pack("!BBH", first, masked | 126, size)
    else:
        head = struct.pack("!BBQ", first, masked | 127, size)
    return head + key + ws.unmask(payload, key, 0)


def _deflated(maker: Maker, payload: bytes) -> bytes:
    """Compress as the standard requires, or end the stream, with or without its tail, or damaged."""
    how = maker.pick(
        (zlib.Z_SYNC_FLUSH, zlib.Z_SYNC_FLUSH, zlib.Z_SYNC_FLUSH, zlib.Z_FINISH, zlib.Z_FULL_FLUSH)
    )
    deflater = zlib.compressobj(1, zlib.DEFLATED, -15)
    packed = deflater.compress(payload) + deflater.flush(how)
    if how != zlib.Z_FINISH and maker.chance(0.9):
        packed = packed[:-4]
    return maker.damaged(packed, (b"\x00",)) if maker.chance(0.1) else packed


def check(case: bytes | Case) -> None:
    if isinstance(case, bytes):
        _greet(case)
        return
    whole = _outcome(case.compress, [case.data])
    assert _outcome(case.compress, case.pieces) == whole, "cut, it is another message"


def _outcome(compress: bool, pieces: list[bytes]) -> Any:
    frames = ws.WebSocketCodec(compress=compress, inflated_max=INFLATED_MAX)
    got = bytearray()
    try:
        for piece in pieces:
            for plain in frames.receive(piece):
                assert len(plain) <= max(len(piece), CHUNK), f"{len(plain)} bytes at once"
                got += plain
    except ws.WebSocketError as error:
        ws.encode_close(error.status, str(error))
        if error.status in (ws.TOO_BIG, ws.INVALID_DATA):
            # How much of a bad compressed message is inflated before the error depends on the chunks.
            return bytes(frames.replies), "a bad compressed message"
        return bytes(got), bytes(frames.replies), str(error)
    return bytes(got), bytes(frames.replies), frames.close_received


def _greet(head: bytes) -> None:
    try:
        request = ws.parse_request(head)
        ws.check_handshake(request)
        ws.check_origin(request, same=True, allowed=(), secure=False)
        ws.check_origin(request, same=False, allowed=("http://a:1", "x"), secure=False)
    except ws.HandshakeRejected as refusal:
        refusal.encode_response()
        return
    request.cookies()
    assert ws.encode_accept(request, compress=ws.offers_deflate(request)).endswith(b"\r\n\r\n")
