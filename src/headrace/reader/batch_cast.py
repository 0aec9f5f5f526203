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
