"""Casts record batches from any backend to the query's Arrow schema; defines the sequence range a partition covers.

Invariant: every batch of a read has the one Arrow schema that was asked for. Must not know Spark: `headrace.read` also
uses the readers where Spark is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

#: A range with this end continues to the end of the stream at the time of reading.
OPEN_END = 1 << 62


@dataclass(frozen=True)
class SeqRange:
    """Sequences from `start` (included) to `end` (excluded).

    `first_seq` is the stream's first sequence at planning time: messages that existed then and are gone now were lost.
    """

    start: int
    end: int
    first_seq: int = 0


def build_batch(columns: Mapping[str, pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Build a record batch with exactly this schema."""
    arrays = [conform_array(columns[field.name], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def conform_array(array: pa.Array, arrow_type: pa.DataType) -> pa.Array:
    """Convert an array to another type."""
    if array.type == arrow_type:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), arrow_type)
    if pa.types.is_timestamp(arrow_type) or pa.types.is_integer(arrow_type):
        return array.cast(arrow_type, safe=False)
    return array.cast(arrow_type)


def narrow_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with 32-bit offsets: batches are far below 2 GiB."""
    return pa.schema([field.with_type(_narrow(field.type)) for field in schema])


def _narrow(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_narrow(kind.value_type)))
    if pa.types.is_map(kind):
        key = kind.key_field.with_type(_narrow(kind.key_type))
        return pa.map_(key, kind.item_field.with_type(_narrow(kind.item_type)))
    return kind
