"""The headers of journal frames, of their entries and of the sync marker in pure Python; the compiled version is
`frame_encoding.pyx`. See ADR 66.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from headrace._native import load_native

FRAME_MAGIC = 0x72665248  # "HRfr"
SLOT_MAGIC = 0x79735248  # "HRsy"
#: The size of a slot of the sync marker.
SLOT_BYTES = 512
#: Stands in for the length: the watermarks of this frame do not fit.
WATERMARKS_OMITTED = 0xFFFFFFFF

FRAME_STRUCT = struct.Struct("<IHHQQQIIII")
ENTRY_STRUCT = struct.Struct("<HHIQ")
SLOT_STRUCT = struct.Struct("<IIQQII")
_U32 = struct.Struct("<I")

_crc32 = load_native("crc32").crc32


def encode_frame_header(
    kind: int, store_id: int, file_number: int, number: int, body: Sequence[Any], prev_crc: int
) -> tuple[bytes, int]:
    """Return the 48 bytes before a body, which is given in pieces, and the frame's checksum."""
    length = sum(len(piece) for piece in body)
    head = FRAME_STRUCT.pack(FRAME_MAGIC, kind, 0, store_id, file_number, number, length, prev_crc, 0, 0)[:-4]
    crc = _crc32(head)
    for piece in body:
        crc = _crc32(piece, crc)
    return head + _U32.pack(crc), crc


def encode_entry(kind: int, ident: int, body: bytes) -> bytes:
    """Encode one entry of a frame."""
    return ENTRY_STRUCT.pack(kind, 0, ident, len(body)) + body


def encode_sync_slot(store_id: int, frame_number: int, watermarks: bytes) -> bytes:
    """Encode a slot of the sync marker; watermarks that do not fit are left out."""
    fits = SLOT_STRUCT.size + len(watermarks) <= SLOT_BYTES
    stored_watermarks = watermarks if fits else b""
    length = len(watermarks) if fits else WATERMARKS_OMITTED
    head = SLOT_STRUCT.pack(SLOT_MAGIC, length, store_id, frame_number, 0, 0)[:-4]
    return head + _U32.pack(_crc32(stored_watermarks, _crc32(head))) + stored_watermarks
