"""The header of a stored record, which precedes its subject, header block and payload.

The only definition in Python; `record_layout.pxd` is the one of the compiled modules.
"""

from __future__ import annotations

import struct

#: Name and bytes of each field; all are unsigned and little-endian.
RECORD_HEADER_FIELDS = (
    ("size", 4),  # of the whole record
    ("subject_len", 2),
    ("flags", 2),
    ("header_len", 4),
    ("ttl_s", 4),
    ("seq", 8),
    ("time_ns", 8),
)
RECORD_HEADER = struct.Struct(
    "<" + "".join({2: "H", 4: "I", 8: "Q"}[size] for _, size in RECORD_HEADER_FIELDS)
)
RECORD_HEADER_BYTES = RECORD_HEADER.size
