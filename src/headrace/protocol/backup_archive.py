"""Format of a stream backup, as nats-server writes it: entries in an archive, the archive in compressed blocks.

    archive = "NATSARC1" entry*
    entry   = name length, time (zigzag), sequence, header length, payload length (all varints), name, header, payload

An entry of zeros ends the archive. It is wrapped in an S2 stream (`s2_stream`). Accepts bytes in pieces of any size and
returns entries; invalid input raises ProtocolError. Must not know streams or disks. See ADR 42.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from headrace._native import load_native
from headrace._native.snappy_pure import encode_varint
from headrace.errors import ProtocolError
from headrace.protocol import s2_stream

if TYPE_CHECKING:
    from headrace._native import snappy as _blocks
else:
    _blocks = load_native("snappy")

MAGIC = b"NATSARC1"
_NAME_MAX = 1 << 20
_ENTRIES_PER_PARSE = 256


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
        return (
            self._drain_chunks(s2_stream.CHUNK_BYTES) if len(self._buffer) >= s2_stream.CHUNK_BYTES else b""
        )

    def finish(self) -> bytes:
        """Return the end of the archive and everything that is left."""
        self._buffer += encode_entry(END_ENTRY)
        return self._drain_chunks(1)

    def _drain_chunks(self, least: int) -> bytes:
        parts = [] if self._header_written else [s2_stream.HEADER]
        self._header_written = True
        while len(self._buffer) >= least:
            parts.append(s2_stream.encode_chunk(bytes(self._buffer[: s2_stream.CHUNK_BYTES])))
            del self._buffer[: s2_stream.CHUNK_BYTES]
        return b"".join(parts)


class ArchiveReader:
    """Decodes compressed bytes to entries of at most `entry_max` bytes."""

    __slots__ = (
        "_at",
        "_chunks",
        "_entry_max",
        "_magic_read",
        "_parsed",
        "_plain",
        "decompressed_bytes",
    )

    def __init__(self, entry_max: int) -> None:
        self._chunks = s2_stream.S2Reader()
        self._parsed: deque[tuple[bytes, int, int, bytes, bytes]] = deque()
        self._plain = bytearray()
        self._at = 0
        self._magic_read = False
        self._entry_max = entry_max
        self.decompressed_bytes = 0  # bytes decompressed so far

    @property
    def empty(self) -> bool:
        """Whether nothing is left over."""
        return not self._chunks.buffered_bytes and not self._parsed and self._at == len(self._plain)

    @property
    def buffered_bytes(self) -> int:
        """Bytes that wait for the rest of their entry, or to be read."""
        waiting = self._chunks.buffered_bytes + len(self._plain) - self._at
        return waiting + sum(len(each[4]) for each in self._parsed)

    def feed(self, data: bytes) -> None:
        self._chunks.feed(data)

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
        data = self._chunks.next()
        if data:
            self._append_decompressed(data)
        return data is not None

    def _append_decompressed(self, data: bytes) -> None:
        if self._at > s2_stream.CHUNK_BYTES:
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
