"""The format of a group: a header, then whole frames and the large messages that they refer to.

Owns the bytes of an object of the log. Invariant: what decodes is what was written, under this number; checksums cover
all of it. A group that is too large for one object is written in parts, which have consecutive numbers. Must not know
where objects are stored. See ADR 91.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from headrace._native import crc32
from headrace.errors import ArchiveDamaged, ArchiveError

MAGIC = b"HRgrp001"
VERSION = 1
FRAME, LARGE = 1, 2
LOG_PREFIX, BASE_FOLDER = "log/", "base"

_LENGTH = struct.Struct("<I")
_ENTRY = struct.Struct("<HHIQQQQ")


class GroupHeader(msgspec.Struct, frozen=True):
    """What a group says about itself.

    `heads` has for each store the last frame that was ever archived, this group included; `frames` the first and last one
    of this group; `idle` the frame before the first one that this epoch will archive, for stores without one. `base` is
    the newest complete base: the number of its record, and the group that it continues.
    `reserved` is for promotions: the highest sequence that each stream may use.
    """

    server: int
    epoch: int
    writer: str
    number: int
    part: int
    parts: int
    time_ns: int
    frames: dict[int, tuple[int, int]]
    heads: dict[int, int]
    base: tuple[int, int]
    floor: int
    prev_crc: int
    body_length: int
    body_crc: int
    reserved: dict[str, int] = {}
    idle: dict[int, int] = {}
    version: int = VERSION

    @property
    def is_last_part(self) -> bool:
        """Whether the group is complete with this object."""
        return self.part == self.parts


@dataclass(frozen=True, slots=True)
class Group:
    """A decoded object; `crc` is that of all its bytes."""

    header: GroupHeader
    body: memoryview
    crc: int


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """A frame, or the block of a large message at `offset` of a segment."""

    kind: int
    store_id: int
    data: memoryview
    ident: int = 0
    segment: int = 0
    offset: int = 0


def log_key(number: int) -> str:
    """Return the name of an object of the log."""
    return f"{LOG_PREFIX}{number:016x}"


def parse_log_key(key: str) -> int:
    """Return the number of a group; 0 if the name is not one of a group."""
    try:
        number = int(key.removeprefix(LOG_PREFIX), 16)
    except ValueError:
        return 0
    return number if log_key(number) == key else 0


def server_folder(server: int) -> str:
    """Return the folder of a server's archive."""
    return f"{server:016x}"


def encode_group(header: GroupHeader, *body: bytes | memoryview) -> bytes:
    """Return the bytes of an object; length and checksum of the body's pieces are added to the header."""
    length = crc = 0
    for piece in body:
        length, crc = length + len(piece), crc32(piece, crc)
    head = msgspec.msgpack.encode(msgspec.structs.replace(header, body_length=length, body_crc=crc))
    return b"".join((MAGIC, _LENGTH.pack(len(head)), head, _LENGTH.pack(crc32(MAGIC + head)), *body))


def decode_group(data: bytes, server: int, number: int) -> Group:
    """Decode an object; raise ArchiveDamaged if it is not what was written under this number."""
    key = log_key(number)
    if len(data) >= len(MAGIC) and data[:5] == MAGIC[:5] and data[: len(MAGIC)] != MAGIC:
        raise ArchiveError(f"{key} has a format that this version does not know: a newer version wrote it")
    header = _decode_header(data, key)
    body = memoryview(data)[len(MAGIC) + 8 + _LENGTH.unpack_from(data, len(MAGIC))[0] :]
    if len(body) != header.body_length or crc32(body) != header.body_crc:
        raise ArchiveDamaged(f"group {key} is damaged: its checksum is wrong")
    if header.server != server or header.number != number:
        raise ArchiveDamaged(f"group {key} belongs to {log_key(header.number)} of {header.server:016x}")
    return Group(header, body, crc32(data))


def _decode_header(data: bytes, key: str) -> GroupHeader:
    start = len(MAGIC) + _LENGTH.size
    if len(data) < start or data[: len(MAGIC)] != MAGIC:
        raise ArchiveDamaged(f"group {key} is damaged: it does not begin like one")
    (length,) = _LENGTH.unpack_from(data, len(MAGIC))
    if len(data) < start + length + _LENGTH.size:
        raise ArchiveDamaged(f"group {key} is damaged: it is too short")
    head = data[start : start + length]
    if _LENGTH.unpack_from(data, start + length)[0] != crc32(MAGIC + head):
        raise ArchiveDamaged(f"group {key} is damaged: the checksum of its header is wrong")
    header = msgspec.msgpack.decode(head, type=GroupHeader)
    if header.version != VERSION:
        raise ArchiveError(f"{key} has version {header.version}: a newer version of Headrace wrote it")
    return header


def encode_frame_entry(store_id: int, length: int) -> bytes:
    """Return what precedes the bytes of a frame."""
    return _ENTRY.pack(FRAME, 0, 0, store_id, 0, 0, length)


def encode_block_entry(store_id: int, ident: int, segment: int, offset: int, length: int) -> bytes:
    """Return what precedes the block of a large message."""
    return _ENTRY.pack(LARGE, 0, ident, store_id, segment, offset, length)


def iter_entries(body: bytes | memoryview) -> Iterator[GroupEntry]:
    """Iterate over the entries of a complete body."""
    view, at = memoryview(body), 0
    while at < len(view):
        if len(view) - at < _ENTRY.size:
            raise ArchiveDamaged("an entry of a group is truncated")
        kind, _, ident, store_id, segment, offset, length = _ENTRY.unpack_from(view, at)
        at += _ENTRY.size
        if length > len(view) - at or kind not in (FRAME, LARGE):
            raise ArchiveDamaged(f"an entry of a group is invalid: kind {kind}, {length} bytes")
        yield GroupEntry(kind, store_id, view[at : at + length], ident, segment, offset)
        at += length
