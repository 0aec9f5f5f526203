"""The bytes of a block of staged rows.

Owns the format: an Arrow record batch without its schema, after the claims that its rows refer to. Invariant: what is
decoded equals what was encoded, byte by byte. Must not know where blocks are stored.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.spark.write.encode_rows import MessageColumns

_LENGTH_BYTES = 4
_SCHEMA = pa.schema([("subject", pa.binary()), ("header_lines", pa.binary()), ("payload", pa.binary())])


@dataclass(frozen=True)
class RowBlock:
    """Rows of a task attempt, and the claims in them: row number -> claim record."""

    columns: MessageColumns
    claims: dict[int, dict[str, Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns)


def encode_block(block: RowBlock) -> bytes:
    """Encode a block."""
    columns = block.columns
    # A column of nulls says that no row has headers.
    header_lines = (
        pa.nulls(len(columns), pa.binary()) if columns.header_lines is None else columns.header_lines
    )
    batch = pa.record_batch([columns.subjects, header_lines, columns.payloads], schema=_SCHEMA)
    claims = json.dumps({str(row): claim for row, claim in block.claims.items()}).encode()
    return b"".join(
        (len(claims).to_bytes(_LENGTH_BYTES, "big"), claims, memoryview(batch.serialize())),
    )


def decode_block(data: bytes) -> RowBlock:
    """Decode a block; the columns refer to `data`."""
    size = int.from_bytes(data[:_LENGTH_BYTES], "big")
    claims = json.loads(data[_LENGTH_BYTES : _LENGTH_BYTES + size])
    # Arrow wants its buffers aligned.
    rest = pa.py_buffer(bytes(memoryview(data)[_LENGTH_BYTES + size :]))
    batch = pa.ipc.read_record_batch(rest, _SCHEMA)
    subjects, header_lines, payloads = batch.columns
    columns = MessageColumns(subjects, None if header_lines.null_count else header_lines, payloads)
    return RowBlock(columns, {int(row): claim for row, claim in claims.items()})
