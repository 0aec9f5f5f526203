"""Encodes messages as one atomic batch.

Owns the headers of a batch: its id, the number of each message, and the commit in the last one. Must not know what the
messages are.
"""

from __future__ import annotations

from headrace.spark.write.encode_rows import MessageColumns
from headrace.spark.write.write_batches import encode_messages

_COMMIT = b"Nats-Batch-Commit: 1\r\n"


def encode_atomic_batch(
    columns: MessageColumns, inbox: bytes, batch_id: bytes, first_header: bytes = b""
) -> bytearray:
    """Encode the publishes of a batch; the reply to its commit goes to `inbox`, the first message has one more header."""
    prefix = b"Nats-Batch-Id: %s\r\nNats-Batch-Sequence: " % batch_id
    last = len(columns) - 1
    if not last:
        return encode_messages(columns, inbox, first_header + _COMMIT + prefix, 1)
    out = encode_messages(columns.slice(0, 1), b"", first_header + prefix, 1)
    out += encode_messages(columns.slice(1, last), b"", prefix, 2)
    out += encode_messages(columns.slice(last, last + 1), inbox, _COMMIT + prefix, last + 1)
    return out
