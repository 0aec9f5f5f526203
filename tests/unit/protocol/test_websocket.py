"""WebSocket frames: the result does not depend on chunks, and invalid input ends the connection."""

from __future__ import annotations

import base64
import struct
import tracemalloc
import zlib
from http import HTTPStatus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

from headrace.protocol import websocket
from headrace.protocol.websocket import HandshakeRejected, HandshakeRequest, WebSocketCodec, WebSocketError

KEY = base64.b64encode(b"0123456789abcdef").decode()


def client_frame(first: int, payload: bytes, key: bytes = b"\x11\x22\x33\x44") -> bytes:
    size = len(payload)
    if size < 126:
        head = bytes((first, 0x80 | size))
    elif size < 65536:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    return head + key + bytes(byte ^ key[i % 4] for i, byte in enumerate(payload))


def fed(
    chunks: list[bytes], *, compress: bool = True, inflated_max: int = 1 << 20
) -> tuple[bytes, bytes, int]:
    """Return the payload, the reply, and the status that ended the connection (0: none)."""
    frames = WebSocketCodec(compress=compress, inflated_max=inflated_max)
    payload = b""
    try:
        for chunk in chunks:
            for piece in frames.receive(chunk):
                payload += piece
    except WebSocketError as error:
        return payload, bytes(frames.replies), error.status
    return payload, bytes(frames.replies), 0


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(
    payloads=st.lists(st.binary(max_size=400), max_size=5),
    compressed=st.booleans(),
    places=st.lists(st.integers(0, 5000), max_size=12),
    key=st.binary(min_size=4, max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_wherever_it_is_cut(payloads: list[bytes], compressed: bool, places: list[int], key: bytes) -> None:
    data = b""
    for payload in payloads:
        if compressed:
            deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
            packed = (deflater.compress(payload) + deflater.flush(zlib.Z_SYNC_FLUSH))[:-4]
            data += client_frame(0xC2, packed, key)
        else:
            data += client_frame(0x02, payload[:7], key) + client_frame(0x89, b"ping", key)
            data += client_frame(0x80, payload[7:], key)
    pongs = b"" if compressed else (bytes((0x8A, 4)) + b"ping") * len(payloads)
    assert fed(cut(data, places)) == (b"".join(payloads), pongs, 0)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
def test_byte_by_byte(size: int) -> None:
    payload = bytes(i % 251 for i in range(size))
    data = client_frame(0x82, payload) + client_frame(0x89, b"x") + client_frame(0x82, b"end")
    assert fed([bytes((byte,)) for byte in data]) == (payload + b"end", bytes((0x8A, 1)) + b"x", 0)


@given(data=st.binary(max_size=600), places=st.lists(st.integers(0, 600), max_size=6))
@settings(max_examples=150, deadline=None)
def test_arbitrary_bytes_mean_the_same_however_they_are_cut(data: bytes, places: list[int]) -> None:
    """The only error is WebSocketError, and it is the same for any chunks."""
    assert fed(cut(data, places)) == fed([data])


@given(size=st.integers(0, 700), position=st.integers(0, 7), key=st.binary(min_size=4, max_size=4))
@settings(max_examples=100, deadline=None)
def test_unmask_applies_the_key_from_any_position(size: int, position: int, key: bytes) -> None:
    data = bytes(i % 256 for i in range(size))
    expected = bytes(byte ^ key[(position + i) % 4] for i, byte in enumerate(data))
    assert websocket.unmask(data, key, position) == expected


def test_a_foreign_peer_understands_what_is_sent() -> None:
    """The library's parser reads our frames (as if we were its client, only unmasked)."""
    for size in (0, 1, 63, 64, 125, 126, 65535, 65536):
        payload = bytes(i % 7 for i in range(size))
        packed = WebSocketCodec(compress=True, inflated_max=1).encode(payload)
        first, length = packed[0], packed[1]
        start = {126: 4, 127: 10}.get(length, 2)
        body = packed[start:]
        if first & 0x40:
            body = zlib.decompressobj(-15).decompress(body + b"\0\0\xff\xff")
        assert (first & 0x8F, body) == (0x82, payload)
    assert Frame(Opcode.CLOSE, b"\x03\xe8bye").serialize(mask=False) == websocket.encode_close(1000, "bye")


def test_the_library_agrees_on_the_handshake() -> None:
    head = (
        f"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {KEY}\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
    ).encode()
    factory = ServerPerMessageDeflateFactory(server_no_context_takeover=True, client_no_context_takeover=True)
    theirs = ServerProtocol(extensions=[factory])
    theirs.receive_data(head)
    [event] = theirs.events_received()
    answer = theirs.accept(event)  # type: ignore[arg-type]
    request = websocket.parse_request(head)
    websocket.check_handshake(request)
    ours = websocket.encode_accept(request, compress=websocket.offers_deflate(request)).decode()
    assert f"Sec-WebSocket-Accept: {answer.headers['Sec-WebSocket-Accept']}\r\n" in ours
    offered = {part.strip() for part in answer.headers["Sec-WebSocket-Extensions"].split(";")}
    line = next(line for line in ours.split("\r\n") if line.startswith("Sec-WebSocket-Extensions: "))
    assert {part.strip() for part in line.partition(": ")[2].split(";")} == offered


def test_what_is_inflated_is_bounded() -> None:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = (deflater.compress(b"\0" * 10_000_000) + deflater.flush(zlib.Z_SYNC_FLUSH))[:-4]
    payload, _, status = fed([client_frame(0xC2, bomb)], inflated_max=100_000)
    assert status == websocket.TOO_BIG
    assert len(payload) <= 200_000


def request(**headers: str) -> HandshakeRequest:
    return HandshakeRequest("GET", "/", {name.replace("_", "-"): [value] for name, value in headers.items()})


@pytest.mark.parametrize(
    ("origin", "same", "allowed", "secure", "good"),
    [
        ("", True, (), False, True),
        ("http://h", False, (), False, True),
        ("http://h", True, (), False, True),
        ("http://h:80", True, (), False, True),
        ("http://h:81", True, (), False, False),
        ("https://h", True, (), False, False),
        ("https://h", True, (), True, True),
        ("http://evil", True, (), False, False),
        ("http://a", False, ("http://a",), False, True),
        ("http://a.b", False, ("http://a",), False, False),
        ("null", True, (), False, False),
        ("http://h:port", True, (), False, False),
    ],
)
def test_only_allowed_origins_pass(
    origin: str, same: bool, allowed: tuple[str, ...], secure: bool, good: bool
) -> None:
    asked = request(host="h", origin=origin)
    if good:
        websocket.check_origin(asked, same=same, allowed=allowed, secure=secure)
    else:
        with pytest.raises(HandshakeRejected) as caught:
            websocket.check_origin(asked, same=same, allowed=allowed, secure=secure)
        assert caught.value.status is HTTPStatus.FORBIDDEN


def test_cookies_are_parsed() -> None:
    assert request(cookie='a=1; b="two"; broken; c=x=y').cookies() == {"a": "1", "b": "two", "c": "x=y"}


@pytest.mark.parametrize("head", [b"\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/1.1\r\n X: folded\r\n\r\n"])
def test_invalid_handshakes_are_refused(head: bytes) -> None:
    with pytest.raises(HandshakeRejected):
        websocket.parse_request(head)


def test_a_websocket_key_outside_ascii_is_refused() -> None:
    head = "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: \xff\r\n\r\n"
    with pytest.raises(HandshakeRejected, match="invalid websocket key"):
        websocket.check_handshake(websocket.parse_request(head.encode("latin-1")))


def test_what_follows_the_last_block_of_a_compressed_message_is_not_kept() -> None:
    """A frame may announce any length, and its compressed data may end with the first byte: the rest is not buffered."""
    frames = WebSocketCodec(compress=True, inflated_max=1 << 20)
    deflater = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    over = deflater.compress(b"PING\r\n") + deflater.flush(zlib.Z_FINISH)
    head = b"\xc2\xff" + (1 << 40).to_bytes(8, "big") + bytes(4)
    assert b"".join(frames.receive(head + over)) == b"PING\r\n"
    chunk = bytes(65_536)
    tracemalloc.start()
    try:
        for _ in range(64):
            assert b"".join(frames.receive(chunk)) == b""
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 256 * 1024
