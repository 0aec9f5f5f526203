"""Rows as they are read of a stream: their schema, the references of claims, and the payloads behind them.

Owns what is read. Invariants: a claim whose object cannot be read any more does not stop a table: column `_error` says why,
and `data` keeps the reference; an object store that does not answer is an error, and the rows are read again. A payload
above the limit stays a reference. Must not know tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import IcebergType, LongType, NestedField, StringType, StructType, TimestamptzType

from headrace.reader.claim_reference_column import CLAIM_ARROW_TYPE, CLAIM_FIELDS
from headrace.reader.options import ReadOptions
from headrace.tables.column_types import CLAIM_COLUMN
from headrace.tables.config import TableConfig

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_HEADERS = pa.map_(pa.string(), pa.list_(pa.string()))
#: What is read of a stream.
STREAM_SCHEMA = pa.schema(
    [
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("subject", pa.string(), nullable=False),
        pa.field("headers", _HEADERS),
        pa.field("data", pa.binary(), nullable=False),
    ]
)
#: Why the payload of a claim is not there.
CLAIM_ERROR = "claim_error"
_TOO_LARGE = "too-large"


def make_claim_field(field_id: int) -> NestedField:
    """Return the column with the references of claims."""
    fields = [
        NestedField(number, name, _find_type(kind), required=False)
        for number, (name, kind) in enumerate(CLAIM_FIELDS, field_id + 1)
    ]
    return NestedField(
        field_id, CLAIM_COLUMN, StructType(*fields), required=False, doc="Reference to the payload"
    )


def _find_type(kind: pa.DataType) -> IcebergType:
    if kind == pa.string():
        return StringType()
    return TimestamptzType() if pa.types.is_timestamp(kind) else LongType()


def make_read_schema(config: TableConfig) -> pa.Schema:
    """Return what is read of a stream for a table."""
    return STREAM_SCHEMA.append(pa.field(CLAIM_COLUMN, CLAIM_ARROW_TYPE)) if config.claims else STREAM_SCHEMA


def make_claim_options(options: ReadOptions, config: TableConfig) -> ReadOptions:
    """Return the options with the configuration of claims whose payloads are fetched."""
    if config.claims != "inline":
        return options
    from headrace.extras import require_extra

    require_extra("claims", "obstore")
    from headrace.reader.claim_fetch import load_claim_configs

    return replace(
        options,
        claims="inline",
        claim_configs=load_claim_configs(config.claim_config),
        claim_errors="column",
        claim_bytes_max=config.claim_bytes_max,
    )


def fetch_payloads(batches: Iterator[RecordBatch], options: ReadOptions) -> Iterator[RecordBatch]:
    """Yield the rows with the payloads of claims in `data`, and column `claim_error`."""
    from headrace.reader.claim_inline import inline_payloads

    for batch in batches:
        fields = [field.with_nullable(True) if field.name == "data" else field for field in batch.schema]
        schema = pa.schema([*fields, pa.field(CLAIM_ERROR, pa.string())])
        offset = 0
        for piece in inline_payloads(iter([batch]), schema, options):
            references = batch.column("data").slice(offset, piece.num_rows)
            offset += piece.num_rows
            yield _with_references(piece, references)


def _with_references(piece: RecordBatch, references: pa.Array) -> RecordBatch:
    """Return the rows with the reference instead of a payload that was not fetched."""
    columns = dict(zip(piece.schema.names, piece.columns, strict=True))
    columns["data"] = pc.coalesce(columns["data"], references)
    is_large = pc.fill_null(pc.starts_with(columns[CLAIM_ERROR], _TOO_LARGE), False)
    columns[CLAIM_ERROR] = pc.if_else(is_large, pa.nulls(piece.num_rows, pa.string()), columns[CLAIM_ERROR])
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
