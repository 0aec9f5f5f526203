"""The witness beside the journal: which frame was the newest that a sync has returned for.

Owns `journal/synced`: two slots, written in turn after the sync of a frame and never synced themselves.
Invariant: what a slot says is true whenever it can be read, because it is written after the fact; so it may
be old after a power loss, but after the end of a process it knows every frame that was acknowledged. Must
not know what is in a frame.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from headrace.kernel import crc32
from headrace.store.disk import Disk, Op

PATH = "journal/synced"
SLOT_BYTES = 512
SLOTS = 2
MAGIC = 0x79735248  # "HRsy"
#: In place of their length: the watermarks of this frame do not fit.
TOO_MANY = 0xFFFFFFFF

_SLOT = struct.Struct("<IIQQII")


class Synced(NamedTuple):
    """`marks` are the watermarks of frame `number`, None where they did not fit."""

    number: int
    marks: bytes | None


def made(disk: Disk) -> list[Op]:
    """Operations that make the file where there is none yet, so that writing to it never needs space."""
    if disk.exists(PATH):
        return []
    size = SLOTS * SLOT_BYTES
    return [("create", PATH, size), ("write", PATH, 0, bytes(size)), ("sync", PATH), ("syncdir", "journal")]


def said(store: int, number: int, marks: bytes) -> Op:
    """The operation that bears witness to a frame; to be run when its sync has returned."""
    fits = _SLOT.size + len(marks) <= SLOT_BYTES
    kept = marks if fits else b""
    head = _SLOT.pack(MAGIC, len(marks) if fits else TOO_MANY, store, number, 0, 0)[:-4]
    crc = crc32(kept, crc32(head))
    return ("write", PATH, number % SLOTS * SLOT_BYTES, head + crc.to_bytes(4, "little") + kept)


def heard(disk: Disk, store: int | None = None) -> Synced | None:
    """The newest witness that can be read, of this store or of any."""
    if not disk.exists(PATH):
        return None
    data = disk.read(PATH, 0, SLOTS * SLOT_BYTES)
    slots = [_slot(data[at : at + SLOT_BYTES], store) for at in range(0, len(data), SLOT_BYTES)]
    return max((slot for slot in slots if slot is not None), default=None, key=lambda slot: slot.number)


def _slot(data: bytes, store: int | None) -> Synced | None:
    if len(data) < _SLOT.size:
        return None
    magic, length, owner, number, _, crc = _SLOT.unpack_from(data)
    marks = data[_SLOT.size :][: 0 if length == TOO_MANY else length]
    if magic != MAGIC or crc32(marks, crc32(data[: _SLOT.size - 4])) != crc:
        return None
    if store is not None and owner != store:
        return None
    return Synced(number, None if length == TOO_MANY else marks)
