"""Columns of a key-value bucket: a row for each change of a key. Must not know tables."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import BinaryType, LongType, NestedField, StringType, TimestamptzType

from headrace.reader.kv_rows import get_operations

#: What subjects of keys begin with; mirrors have the bucket of their upstream there.
_PREFIX = r"^\$KV\.[^.]+\."


def make_bucket_fields() -> list[NestedField]:
    """Return the fields of a new table."""
    return [
        NestedField(1, "revision", LongType(), required=True, doc="Revision of the change"),
        NestedField(2, "time", TimestamptzType(), required=True, doc="When the bucket stored the change"),
        NestedField(3, "key", StringType(), required=True, doc="Key"),
        NestedField(4, "operation", StringType(), required=True, doc="put, delete, purge or expired"),
        NestedField(5, "value", BinaryType(), required=False, doc="Value of a put; null otherwise"),
    ]


def make_bucket_columns(columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Return the columns of changes, from those of messages."""
    operations, data = get_operations(columns["headers"]), columns["data"]
    return {
        "revision": columns["seq"],
        "time": columns["time"],
        "key": pc.replace_substring_regex(columns["subject"], _PREFIX, ""),
        "operation": operations,
        "value": pc.if_else(pc.equal(operations, "put"), data, pa.nulls(len(data), data.type)),
    }
