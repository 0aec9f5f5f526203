"""The header of a stored record, which precedes its subject, header block and payload, and iteration over records.

The only definition in Python; `record_layout.pxd` is the one of the compiled modules.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

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


def iter_selected_records(
    view: memoryview, seqs: npt.NDArray[np.uint64], at: int, most: int
) -> Iterator[tuple[int, int, bytes, bytes, bytes]]:
    """Yield sequence, time, subject, header and payload of the records in `seqs[at : at + most]`."""
    wanted = iter(seqs[at : at + most].tolist())
    next_seq = next(wanted, 0)
    offset, end = 0, len(view)
    while next_seq and end - offset >= RECORD_HEADER_BYTES:
        size, subject_size, _, header_size, _, seq, time_ns = RECORD_HEADER.unpack_from(view, offset)
        start = offset + RECORD_HEADER_BYTES
        offset += size
        if seq < next_seq:
            continue
        if seq > next_seq or offset > end:
            return
        header_at = start + subject_size
        payload_at = header_at + header_size
        yield (
            seq,
            time_ns,
            bytes(view[start:header_at]),
            bytes(view[header_at:payload_at]) if header_size else b"",
            bytes(view[payload_at:offset]),
        )
        next_seq = next(wanted, 0)
