"""The format of a stream's backup, as the reference writes it: entries in an archive, the archive in compressed blocks.

    archive = "NATSARC1" entry*
    entry   = name length, time (zigzag), sequence, header length, payload length (all varints), name, header, payload

and an entry of zeros at the end. Around it the framing of Snappy: chunks of a type, a length and a masked checksum.
Bytes in, entries out, in pieces of any size; what is not right raises ProtocolError. Knows no streams and no disk.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import ProtocolError
from headrace.kernel import twin
from headrace.kernel.blocks_pure import varint

if TYPE_CHECKING:
    from headrace.kernel import blocks as _blocks
else:
    _blocks = twin("blocks")

MAGIC = b"NATSARC1"
_IDENTIFIERS = (b"S2sTwO", b"sNaPpY")
_COMPRESSED, _PLAIN, _IDENTIFIER = 0x00, 0x01, 0xFF
_SKIPPABLE = 0x80
_BLOCK_BYTES = 65_536
#: The largest block that the reference's compressor makes, and what it may take when nothing could be compressed.
_EXPANDED_MAX = 4 * 1024 * 1024
_CHUNK_MAX = 5 * 1024 * 1024
_NAME_MAX = 1 << 20
_AT_ONCE = 256
_CRC_BYTES = 4
#: As many chunks may bring nothing, one after the other.
_HOLLOW_MAX = 64


class Entry(NamedTuple):
    """A file of the archive, or a message: its subject is the name."""

    name: bytes
    time_ns: int
    seq: int
    header: bytes
    payload: bytes


END = Entry(b"", 0, 0, b"", b"")


#: Stored records as entries: (view, sequences) -> the bytes of those that are among them, and how many.
entries_of = _blocks.entries


def encode_entry(entry: Entry) -> bytes:
    time_ns = entry.time_ns
    zigzag = time_ns << 1 if time_ns >= 0 else ~(time_ns << 1)
    lengths = b"".join(
        map(varint, (len(entry.name), zigzag, entry.seq, len(entry.header), len(entry.payload)))
    )
    return b"".join((lengths, entry.name, entry.header, entry.payload))


class Packer:
    """Entries in, compressed chunks out."""

    __slots__ = ("_open", "_waiting")

    def __init__(self) -> None:
        self._waiting = bytearray(MAGIC)
        self._open = False

    def add(self, entry: Entry) -> bytes:
        """What there is to write after this entry; b"" until there is a block of it."""
        return self.add_encoded(encode_entry(entry))

    def add_encoded(self, data: bytes) -> bytes:
        """The same for entries that are encoded already."""
        self._waiting += data
        return self._take(_BLOCK_BYTES) if len(self._waiting) >= _BLOCK_BYTES else b""

    def end(self) -> bytes:
        """The end of the archive, and everything that is left."""
        self._waiting += encode_entry(END)
        return self._take(1)

    def _take(self, least: int) -> bytes:
        parts = [] if self._open else [b"\xff\x06\x00\x00" + _IDENTIFIERS[0]]
        self._open = True
        while len(self._waiting) >= least:
            parts.append(_chunk(bytes(self._waiting[:_BLOCK_BYTES])))
            del self._waiting[:_BLOCK_BYTES]
        return b"".join(parts)


def _chunk(data: bytes) -> bytes:
    block = _blocks.shrink(data)
    kind = _COMPRESSED
    if len(block) >= len(data):
        kind, block = _PLAIN, data
    return b"".join((bytes((kind,)), (len(block) + _CRC_BYTES).to_bytes(3, "little"), _masked(data), block))


def _masked(data: bytes) -> bytes:
    """Checksums of checksums are weak, so the format mixes them up."""
    crc = _blocks.crc32c(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


class Unpacker:
    """Compressed bytes in, entries out. At most `entry_max` bytes an entry."""

    __slots__ = ("_at", "_begun", "_entry_max", "_hollow", "_parsed", "_plain", "_raw", "expanded")

    def __init__(self, entry_max: int) -> None:
        self._raw = bytearray()
        self._parsed: deque[tuple[bytes, int, int, bytes, bytes]] = deque()
        self._plain = bytearray()
        self._at = 0
        self._begun = False
        self._hollow = 0  # chunks in a row that brought nothing
        self._entry_max = entry_max
        self.expanded = 0  # bytes that came out of blocks so far

    @property
    def empty(self) -> bool:
        """Whether nothing is left over."""
        return not self._raw and not self._parsed and self._at == len(self._plain)

    @property
    def held(self) -> int:
        """Bytes that wait for the rest of their entry, or to be taken."""
        return len(self._raw) + len(self._plain) - self._at + sum(len(each[4]) for each in self._parsed)

    def feed(self, data: bytes) -> None:
        self._raw += data

    def next(self) -> Entry | None:
        """The next entry; None if more bytes are needed."""
        while not self._parsed:
            if self._begun or self._begin():
                self._parse()
            if not self._parsed and not self._expand():
                return None
        return Entry(*self._parsed.popleft())

    # Blocks

    def _expand(self) -> bool:
        """Open the next chunk; whether there was a whole one."""
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
        data = _opened(kind, body) if kind in (_COMPRESSED, _PLAIN) else b""
        self._hollow = 0 if data else self._hollow + 1
        if self._hollow > _HOLLOW_MAX:
            raise ProtocolError("s2: corrupt input")
        if data:
            self._keep(data)
        elif kind == _IDENTIFIER and body not in _IDENTIFIERS:
            raise ProtocolError("s2: corrupt input")
        elif _PLAIN < kind < _SKIPPABLE:
            raise ProtocolError("s2: unsupported input")
        return True

    def _keep(self, data: bytes) -> None:
        if self._at > _BLOCK_BYTES:
            del self._plain[: self._at]
            self._at = 0
        self._plain += data
        self.expanded += len(data)

    # Entries

    def _begin(self) -> bool:
        if len(self._plain) < len(MAGIC):
            return False
        if not self._plain.startswith(MAGIC):
            raise ProtocolError("archive: invalid archive stream")
        self._begun, self._at = True, len(MAGIC)
        return True

    def _parse(self) -> None:
        """Take the entries apart that are all there, some at a time."""
        try:
            found, self._at = _blocks.parse(self._plain, self._at, _NAME_MAX, self._entry_max, _AT_ONCE)
        except ValueError:
            raise ProtocolError("archive: invalid archive stream") from None
        self._parsed.extend(found)


def _opened(kind: int, body: bytes) -> bytes:
    crc, data = body[:_CRC_BYTES], body[_CRC_BYTES:]
    if kind == _COMPRESSED:
        try:
            data = _blocks.expand(data, _EXPANDED_MAX)
        except ValueError:
            raise ProtocolError("s2: corrupt input") from None
    if len(crc) < _CRC_BYTES or crc != _masked(data):
        raise ProtocolError("s2: corrupt input")
    return data
