"""Manifest of a pin: one stream as of one position, and the files that contain it.

Owns the manifest's bytes. Invariant: a manifest that loads is complete, and it never changes once written. Must not
know how pins are made or how rows are read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Protocol
from zlib import crc32

import msgspec

from headrace.errors import CorruptData, StoreError
from headrace.storage import format_features
from headrace.storage.checkpoint_schema import SegmentState
from headrace.storage.damage_report import Damage

FILE_NAME = "manifest"
_HEAD = struct.Struct("<8sQI")
_MAGIC = b"HRpin001"
_MAGIC_ENCLOSED = b"HRpin002"  # the body is an envelope with features


class TailRecords(msgspec.Struct, frozen=True, array_like=True):
    """Records that were in no file yet when the pin was made; `live` as in a segment."""

    first_seq: int
    last_seq: int
    records: bytes
    live: bytes


class Manifest(msgspec.Struct, frozen=True):
    """A stream as of `committed_seq`, valid until `expires_ns` (the lease).

    `segments` has for each pinned segment what a checkpoint would record: its committed end and live bits. `columns`
    are the numbers of those with a column file, `generation` names the subject table that they refer to (-1: none).
    `lost` is damage that was not accepted yet.
    """

    pin: str
    store: int
    stream: str
    ident: int
    committed_seq: int
    messages: int
    as_of_ns: int
    expires_ns: int
    segments: list[SegmentState]
    columns: list[int]
    generation: int
    loose: list[TailRecords]
    lost: list[Damage]
    writer: str = ""

    @property
    def folder(self) -> str:
        return f"pins/{self.pin}"

    def segment_path(self, number: int) -> str:
        """Return the path of a pinned segment."""
        return f"{self.folder}/{number:08x}.seg"

    def columns_path(self, number: int) -> str:
        return f"{self.folder}/{number:08x}.col"

    @property
    def subjects_path(self) -> str:
        return f"{self.folder}/subjects.{self.generation}"

    def encode(self, needed: Iterable[str] = ()) -> bytes:
        """Return the file's content; `needed` are the features that a reader of the pinned files must understand."""
        assert self.pin
        assert set(self.columns) <= {segment.number for segment in self.segments}
        plain = msgspec.msgpack.encode(self)
        body = format_features.encode_envelope(plain, needed)
        magic = _MAGIC if body is plain else _MAGIC_ENCLOSED
        return _HEAD.pack(magic, len(body), crc32(body)) + body


class _ReadableFiles(Protocol):
    def exists(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...
    def read(self, path: str, offset: int, length: int) -> bytes: ...


def load(disk: _ReadableFiles, pin: str) -> Manifest:
    """Load the manifest of a pin.

    Raises StoreError if the pin does not exist (any more) or cannot be read, and CorruptData if it is damaged.
    """
    try:
        return read(disk, pin)
    except FileNotFoundError:
        raise StoreError(
            f"there is no pin {pin}: it was released, its lease has expired, or it never existed"
        ) from None
    except OSError as error:
        raise StoreError(f"pin {pin} cannot be read: {error}") from error


def read(disk: _ReadableFiles, pin: str) -> Manifest:
    """Like `load`, but raises the disk's own errors, for callers that need the reason."""
    path = f"pins/{pin}/{FILE_NAME}"
    return decode(disk.read(path, 0, disk.size(path)), path)


def decode(data: bytes, path: str) -> Manifest:
    """Decode a manifest. Raises CorruptData if it is damaged, UnknownFeature if a newer version wrote it."""
    if len(data) < _HEAD.size:
        raise CorruptData(f"{path} is truncated; request a new pin")
    magic, length, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size : _HEAD.size + length]
    if magic not in (_MAGIC, _MAGIC_ENCLOSED) or len(body) != length or crc32(body) != crc:
        raise CorruptData(f"{path} is damaged; request a new pin")
    plain = format_features.decode_envelope(body, path)[1] if magic == _MAGIC_ENCLOSED else body
    return msgspec.msgpack.decode(plain, type=Manifest)
