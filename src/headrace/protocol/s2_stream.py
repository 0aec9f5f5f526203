"""The S2 stream format: chunks of a kind, a length, and data with a masked checksum, compressed or not.

Used for backups and leafnode connections. Accepts bytes in pieces of any size; invalid input raises ProtocolError. A
chunk holds at most 4 MiB of data, whatever it claims. Must not know what the data means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._native import load_native
from headrace.errors import ProtocolError

if TYPE_CHECKING:
    from headrace._native import snappy as _snappy
else:
    _snappy = load_native("snappy")

#: The data of one chunk that is written.
CHUNK_BYTES = 65_536
HEADER = b"\xff\x06\x00\x00S2sTwO"
_IDENTIFIERS = (b"S2sTwO", b"sNaPpY")
_COMPRESSED, _PLAIN, _IDENTIFIER = 0x00, 0x01, 0xFF
_SKIPPABLE = 0x80
#: The largest block that nats-server's compressor makes. A chunk may be a quarter larger than its data.
DATA_MAX = 4 * 1024 * 1024
_CRC_BYTES = 4
#: Maximum number of consecutive chunks without data.
_EMPTY_CHUNKS_MAX = 64
_CORRUPT = "s2: corrupt input"


def encode_chunk(data: bytes, *, compress: bool = True) -> bytes:
    """Encode at most CHUNK_BYTES of data as one chunk; it stays plain if compression does not make it smaller."""
    block = _snappy.compress(data) if compress else data
    kind = _COMPRESSED
    if len(block) >= len(data):
        kind, block = _PLAIN, data
    return b"".join(
        (bytes((kind,)), (len(block) + _CRC_BYTES).to_bytes(3, "little"), _masked_crc(data), block)
    )


def _masked_crc(data: bytes) -> bytes:
    """Return the checksum, masked as the format requires, because checksums of checksums are weak."""
    crc = _snappy.crc32c(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


class S2Reader:
    """Decodes a stream, chunk by chunk, so that its user can bound the work of one turn."""

    __slots__ = ("_empty_chunks", "_raw")

    def __init__(self) -> None:
        self._raw = bytearray()
        self._empty_chunks = 0  # consecutive chunks without data

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait for the rest of their chunk, or to be read."""
        return len(self._raw)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        self._raw += data

    def next(self, data_max: int = DATA_MAX) -> bytes | None:
        """Return the data of the next chunk, b"" if it has none; None if more bytes are needed.

        A chunk for more than `data_max` is rejected when its header is there, before its data is kept.
        """
        raw = self._raw
        if len(raw) < 4:
            return None
        kind, size = raw[0], int.from_bytes(raw[1:4], "little")
        if size > data_max + data_max // 4:
            raise ProtocolError(_CORRUPT)
        if len(raw) < 4 + size:
            return None
        body = bytes(raw[4 : 4 + size])
        del raw[: 4 + size]
        data = _decode_chunk(kind, body, data_max) if kind in (_COMPRESSED, _PLAIN) else b""
        self._empty_chunks = 0 if data else self._empty_chunks + 1
        if self._empty_chunks > _EMPTY_CHUNKS_MAX or (kind == _IDENTIFIER and body not in _IDENTIFIERS):
            raise ProtocolError(_CORRUPT)
        if _PLAIN < kind < _SKIPPABLE:
            raise ProtocolError("s2: unsupported input")
        return data


def _decode_chunk(kind: int, body: bytes, data_max: int) -> bytes:
    crc, data = body[:_CRC_BYTES], body[_CRC_BYTES:]
    if kind == _COMPRESSED:
        try:
            data = _snappy.decompress(data, data_max)
        except ValueError:
            raise ProtocolError(_CORRUPT) from None
    if len(crc) < _CRC_BYTES or crc != _masked_crc(data):
        raise ProtocolError(_CORRUPT)
    return data


class S2Writer:
    """Encodes a stream; the first bytes identify the format."""

    __slots__ = ("_started",)

    def __init__(self) -> None:
        self._started = False

    def encode(self, data: bytes | bytearray | memoryview, *, compress: bool) -> bytes:
        """Return all of the data as chunks, compressed or plain."""
        view = memoryview(data)
        parts = [] if self._started else [HEADER]
        self._started = True
        for at in range(0, len(view), CHUNK_BYTES):
            parts.append(encode_chunk(bytes(view[at : at + CHUNK_BYTES]), compress=compress))
        return b"".join(parts)
