"""Sync marker: records the newest frame whose sync has returned.

Owns `journal/synced`: two slots, written alternately after a frame was synced, and never synced themselves. Invariant:
a readable slot is always true, because it is written after the sync. It may be out of date after a power loss; after
the process alone has ended it covers every acknowledged frame. Must not know what is in a frame.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace._native import crc32, encode_sync_slot
from headrace._native.frame_encoding_pure import SLOT_BYTES, WATERMARKS_OMITTED
from headrace._native.frame_encoding_pure import SLOT_MAGIC as MAGIC
from headrace._native.frame_encoding_pure import SLOT_STRUCT as _SLOT
from headrace.storage.io.disk import Disk, Op

PATH = "journal/synced"
SLOTS = 2


class SyncMarker(NamedTuple):
    """`watermarks` are those of frame `frame_number`, None if they did not fit."""

    frame_number: int
    watermarks: bytes | None


def create_ops(disk: Disk) -> list[Op]:
    """Return the operations that create the file if it is missing, so that writing to it never needs space."""
    if disk.exists(PATH):
        return []
    size = SLOTS * SLOT_BYTES
    return [("create", PATH, size), ("write", PATH, 0, bytes(size)), ("sync", PATH), ("syncdir", "journal")]


def write_op(store_id: int, frame_number: int, watermarks: bytes) -> Op:
    """Return the operation that records a frame as synced; run it after the frame's sync has returned."""
    slot = encode_sync_slot(store_id, frame_number, watermarks)
    assert frame_number > 0
    assert len(slot) <= SLOT_BYTES, "a slot must not reach into the other one"
    return ("write", PATH, frame_number % SLOTS * SLOT_BYTES, slot)


def read_latest(disk: Disk, store_id: int | None = None) -> SyncMarker | None:
    """Read the newest valid marker, of this store or of any."""
    if not disk.exists(PATH):
        return None
    data = disk.read(PATH, 0, SLOTS * SLOT_BYTES)
    slots = [_parse_slot(data[at : at + SLOT_BYTES], store_id) for at in range(0, len(data), SLOT_BYTES)]
    return max((slot for slot in slots if slot is not None), default=None, key=lambda slot: slot.frame_number)


def _parse_slot(data: bytes, store_id: int | None) -> SyncMarker | None:
    if len(data) < _SLOT.size:
        return None
    magic, length, slot_store_id, frame_number, _, crc = _SLOT.unpack_from(data)
    watermarks = data[_SLOT.size :][: 0 if length == WATERMARKS_OMITTED else length]
    if magic != MAGIC or crc32(watermarks, crc32(data[: _SLOT.size - 4])) != crc:
        return None
    if store_id is not None and slot_store_id != store_id:
        return None
    return SyncMarker(frame_number, None if length == WATERMARKS_OMITTED else watermarks)
