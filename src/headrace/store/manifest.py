"""What a pin promises: one stream as of one position, and the files that hold it.

Owns the manifest's bytes. Invariant: a manifest that loads is whole, and it never changes once written.
Must not know how pins are made or how rows are read.
"""

from __future__ import annotations

import struct
from typing import Protocol
from zlib import crc32

import msgspec

from headrace.errors import Corrupt, StoreError
from headrace.store.report import Damage
from headrace.store.states import StreamState

NAME = "manifest"
_HEAD = struct.Struct("<8sQI")
_MAGIC = b"HRpin001"


class Manifest(msgspec.Struct, frozen=True):
    """A stream as of `state.last_seq`, alive until `expires_ns` (the lease).

    `state` is what a checkpoint would say of the stream: segments with their committed end and live bits, and
    the records that are in no block yet. `columns` names, by segment number, the column files in the pin's
    folder; `subjects` names the files of the subject table, in order. `lost` is damage not yet accepted.
    """

    pin: str
    store: int
    state: StreamState
    as_of_ns: int
    expires_ns: int
    messages: int
    columns: dict[int, str]
    subjects: list[str]
    lost: list[Damage]

    @property
    def stream(self) -> str:
        return self.state.name

    @property
    def committed_seq(self) -> int:
        return self.state.last_seq

    @property
    def folder(self) -> str:
        return f"pins/{self.pin}"

    def segment(self, number: int) -> str:
        """The path of a pinned segment."""
        return f"{self.folder}/{number:08x}.seg"

    def encode(self) -> bytes:
        body = msgspec.msgpack.encode(self)
        return _HEAD.pack(_MAGIC, len(body), crc32(body)) + body


class _Readable(Protocol):
    def exists(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...
    def read(self, path: str, offset: int, length: int) -> bytes: ...


def load(disk: _Readable, pin: str) -> Manifest:
    """The manifest of a pin. StoreError: there is no such pin (any more); Corrupt: it is damaged."""
    path = f"pins/{pin}/{NAME}"
    try:
        data = disk.read(path, 0, disk.size(path))
    except OSError:
        raise StoreError(
            f"there is no pin {pin}: it was released, its lease ran out, or it was never made"
        ) from None
    if len(data) < _HEAD.size:
        raise Corrupt(f"{path} is cut short")
    magic, length, crc = _HEAD.unpack_from(data)
    body = data[_HEAD.size : _HEAD.size + length]
    if magic != _MAGIC or len(body) != length or crc32(body) != crc:
        raise Corrupt(f"{path} is damaged; ask for a new pin")
    return msgspec.msgpack.decode(body, type=Manifest)
