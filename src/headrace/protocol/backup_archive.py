"""Format of a stream backup, as nats-server writes it: entries in an archive, the archive in compressed blocks.

    archive = "NATSARC1" entry*
    entry   = name length, time (zigzag), sequence, header length, payload length (all varints), name, header, payload

An entry of zeros ends the archive. It is wrapped in Snappy framing: chunks of a type, a length and a masked checksum.
Accepts bytes in pieces of any size and returns entries; invalid input raises ProtocolError. Must not know streams or
disks. See ADR 42.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from headrace._native import load_native
from headrace._native.snappy_pure import encode_varint
from headrace.errors import ProtocolError

if TYPE_CHECKING:
    from headrace._native import snappy as _blocks
else:
    _blocks = load_native("snappy")

MAGIC = b"NATSARC1"
_IDENTIFIERS = (b"S2sTwO", b"sNaPpY")
_COMPRESSED, _PLAIN, _IDENTIFIER = 0x00, 0x01, 0xFF
_SKIPPABLE = 0x80
_BLOCK_BYTES = 65_536
#: The largest block that nats-server's compressor makes, and its maximum size if nothing could be compressed.
_DECOMPRESSED_MAX = 4 * 1024 * 1024
_CHUNK_MAX = 5 * 1024 * 1024
_NAME_MAX = 1 << 20
_ENTRIES_PER_PARSE = 256
_CRC_BYTES = 4
#: Maximum number of consecutive chunks without data.
_EMPTY_CHUNKS_MAX = 64


class BackupEntry(NamedTuple):
    """A file of the archive, or a message, whose name is its subject."""

    name: bytes
    time_ns: int
    seq: int
    header: bytes
    payload: bytes


END_ENTRY = BackupEntry(b"", 0, 0, b"", b"")


#: Encodes stored records as entries: (view, sequences) -> the bytes of those records, and their number.
encode_record_entries = _blocks.encode_entries


def encode_entry(entry: BackupEntry) -> bytes:
    time_ns = entry.time_ns
    zigzag = time_ns << 1 if time_ns >= 0 else ~(time_ns << 1)
    lengths = b"".join(
        map(encode_varint, (len(entry.name), zigzag, entry.seq, len(entry.header), len(entry.payload)))
    )
    return b"".join((lengths, entry.name, entry.header, entry.payload))


class ArchiveWriter:
    """Encodes entries as compressed chunks."""

    __slots__ = ("_buffer", "_header_written")

    def __init__(self) -> None:
        self._buffer = bytearray(MAGIC)
        self._header_written = False

    def add(self, entry: BackupEntry) -> bytes:
        """Add an entry; return the bytes to write, b"" until a block is full."""
        return self.add_encoded(encode_entry(entry))

    def add_encoded(self, data: bytes) -> bytes:
        """Like `add`, for entries that are already encoded."""
        self._buffer += data
        return self._drain_chunks(_BLOCK_BYTES) if len(self._buffer) >= _BLOCK_BYTES else b""

    def finish(self) -> bytes:
        """Return the end of the archive and everything that is left."""
        self._buffer += encode_entry(END_ENTRY)
        return self._drain_chunks(1)

    def _drain_chunks(self, least: int) -> bytes:
        parts = [] if self._header_written else [b"\xff\x06\x00\x00" + _IDENTIFIERS[0]]
        self._header_written = True
        while len(self._buffer) >= least:
            parts.append(_encode_chunk(bytes(self._buffer[:_BLOCK_BYTES])))
            del self._buffer[:_BLOCK_BYTES]
        return b"".join(parts)


def _encode_chunk(data: bytes) -> bytes:
    block = _blocks.compress(data)
    kind = _COMPRESSED
    if len(block) >= len(data):
        kind, block = _PLAIN, data
    return b"".join(
        (bytes((kind,)), (len(block) + _CRC_BYTES).to_bytes(3, "little"), _masked_crc(data), block)
    )


def _masked_crc(data: bytes) -> bytes:
    """Return the checksum, masked as the format requires, because checksums of checksums are weak."""
    crc = _blocks.crc32c(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


class ArchiveReader:
    """Decodes compressed bytes to entries of at most `entry_max` bytes."""

    __slots__ = (
        "_at",
        "_empty_chunks",
        "_entry_max",
        "_magic_read",
        "_parsed",
        "_plain",
        "_raw",
        "decompressed_bytes",
    )

    def __init__(self, entry_max: int) -> None:
        self._raw = bytearray()
        self._parsed: deque[tuple[bytes, int, int, bytes, bytes]] = deque()
        self._plain = bytearray()
        self._at = 0
        self._magic_read = False
        self._empty_chunks = 0  # consecutive chunks without data
        self._entry_max = entry_max
        self.decompressed_bytes = 0  # bytes decompressed so far

    @property
    def empty(self) -> bool:
        """Whether nothing is left over."""
        return not self._raw and not self._parsed and self._at == len(self._plain)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait for the rest of their entry, or to be read."""
        return len(self._raw) + len(self._plain) - self._at + sum(len(each[4]) for each in self._parsed)

    def feed(self, data: bytes) -> None:
        self._raw += data

    def next(self) -> BackupEntry | None:
        """Return the next entry; None if more bytes are needed."""
        while not self._parsed:
            if self._magic_read or self._read_magic():
                self._parse()
            if not self._parsed and not self._decompress_next():
                return None
        return BackupEntry(*self._parsed.popleft())

    # Blocks

    def _decompress_next(self) -> bool:
        """Decompress the next chunk; return whether there was a complete one."""
        raw = self._raw
        if len(raw) < 4:
            return False
        kind, size = raw[0], int.from_bytes(raw[1:4], "little")
        if size > _CHUNK_MAX:
            raise ProtocolError("s2: corrupt input")
        if len(raw) < 4 + size:
            return False
        body = bytes(raw[4 : 4 + size])
        del raw[: 4 + size]
        data = _decode_chunk(kind, body) if kind in (_COMPRESSED, _PLAIN) else b""
        self._empty_chunks = 0 if data else self._empty_chunks + 1
        if self._empty_chunks > _EMPTY_CHUNKS_MAX:
            raise ProtocolError("s2: corrupt input")
        if data:
            self._append_decompressed(data)
        elif kind == _IDENTIFIER and body not in _IDENTIFIERS:
            raise ProtocolError("s2: corrupt input")
        elif _PLAIN < kind < _SKIPPABLE:
            raise ProtocolError("s2: unsupported input")
        return True

    def _append_decompressed(self, data: bytes) -> None:
        if self._at > _BLOCK_BYTES:
            del self._plain[: self._at]
            self._at = 0
        self._plain += data
        self.decompressed_bytes += len(data)

    # Entries

    def _read_magic(self) -> bool:
        if len(self._plain) < len(MAGIC):
            return False
        if not self._plain.startswith(MAGIC):
            raise ProtocolError("archive: invalid archive stream")
        self._magic_read, self._at = True, len(MAGIC)
        return True

    def _parse(self) -> None:
        """Parse the complete entries, some at a time."""
        try:
            found, self._at = _blocks.parse_entries(
                self._plain, self._at, _NAME_MAX, self._entry_max, _ENTRIES_PER_PARSE
            )
        except ValueError:
            raise ProtocolError("archive: invalid archive stream") from None
        self._parsed.extend(found)


def _decode_chunk(kind: int, body: bytes) -> bytes:
    crc, data = body[:_CRC_BYTES], body[_CRC_BYTES:]
    if kind == _COMPRESSED:
        try:
            data = _blocks.decompress(data, _DECOMPRESSED_MAX)
        except ValueError:
            raise ProtocolError("s2: corrupt input") from None
    if len(crc) < _CRC_BYTES or crc != _masked_crc(data):
        raise ProtocolError("s2: corrupt input")
    return data
