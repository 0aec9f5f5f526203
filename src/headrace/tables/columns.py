"""The columns of a table, and how the rows of a stream become them.

Owns names and types. Invariant: every batch has the Arrow schema of the table's current schema, with its field ids.
Must not know where rows come from, nor where they go.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)

from headrace.errors import TableError
from headrace.reader.batch_cast import narrow_schema
from headrace.reader.json_columns import JsonColumns
from headrace.reader.subject_columns import fit_columns, make_subject_columns
from headrace.tables.bucket_columns import make_bucket_columns, make_bucket_fields
from headrace.tables.claim_rows import CLAIM_ERROR, make_claim_field
from headrace.tables.column_types import (
    BUCKET_COLUMNS,
    ERROR_COLUMN,
    RAW_COLUMNS,
    parse_partition,
    parse_type,
)
from headrace.tables.config import TableConfig

#: First ids of declared columns and of partition fields.
_DECLARED_ID, _PARTITION_ID = 9, 1000


def make_schema(config: TableConfig) -> Schema:
    """Return the schema of a new table."""
    if config.bucket:
        return Schema(*make_bucket_fields(), *_make_declared_fields(config))
    headers = MapType(
        6, StringType(), 7, ListType(8, StringType(), element_required=False), value_required=False
    )
    return Schema(
        NestedField(1, "seq", LongType(), required=True, doc="Sequence of the message in the stream"),
        NestedField(2, "time", TimestamptzType(), required=True, doc="When the stream stored the message"),
        NestedField(3, "subject", StringType(), required=True, doc="Subject of the message"),
        NestedField(4, "headers", headers, required=False, doc="Headers of the message"),
        NestedField(5, "data", BinaryType(), required=True, doc="Payload of the message"),
        *_make_declared_fields(config),
    )


def _make_declared_fields(config: TableConfig) -> list[NestedField]:
    types: dict[str, Any] = dict.fromkeys(config.subject_columns, StringType())
    types |= {name: parse_type(text, name) for name, text in config.schema.items()}
    if config.payload == "json" or config.claims == "inline":
        types[ERROR_COLUMN] = StringType()
    fields = [
        NestedField(number, name, kind, required=False)
        for number, (name, kind) in enumerate(types.items(), _DECLARED_ID)
    ]
    return [*fields, make_claim_field(_DECLARED_ID + len(fields))] if config.claims else fields


def make_partition_spec(schema: Schema, config: TableConfig) -> PartitionSpec:
    """Return how a new table is partitioned."""
    fields = []
    for number, text in enumerate(config.partition_by, _PARTITION_ID):
        column, transform = parse_partition(text, config.table)
        name = column if text == column else f"{column}_{text.partition('(')[0]}"
        fields.append(PartitionField(schema.find_field(column).field_id, number, transform, name))
    return PartitionSpec(*fields)


class RowMapper:
    """Maps rows of a stream to the columns of a table."""

    def __init__(self, schema: Schema, config: TableConfig) -> None:
        self._config = config
        self.schema = narrow_schema(schema_to_pyarrow(schema))
        own = BUCKET_COLUMNS if config.bucket else RAW_COLUMNS
        missing = [column for column in own if column not in self.schema.names]
        foreign = [field.name for field in self.schema if field.name not in own and not field.nullable]
        if missing or foreign:
            problem = f"has no column {missing[0]!r}" if missing else f"requires column {foreign[0]!r}"
            raise TableError(
                f"table {config.table} {problem}: it was not created by 'headrace table'; use another table name"
            )
        if ERROR_COLUMN in self.schema.names and not pa.types.is_string(self.schema.field(ERROR_COLUMN).type):
            raise TableError(
                f"table {config.table} has a column {ERROR_COLUMN!r} that is {self.schema.field(ERROR_COLUMN).type}, not "
                "string: rename it, or use another table name"
            )
        declared = [self.schema.field(name) for name in config.schema if name in self.schema.names]
        self._json = JsonColumns(declared) if declared else None

    def to_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the table's columns; columns that others added are null."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        subjects, payloads = columns["subject"], columns["data"]
        if self._config.bucket:
            columns = make_bucket_columns(columns)
            subjects, payloads = columns["key"], columns["value"]
        # A declared column may have the same name.
        errors = [columns.pop(CLAIM_ERROR)] if CLAIM_ERROR in columns else []
        if self._json is not None:
            parsed, json_errors = self._json.parse(payloads)
            columns |= parsed
            errors.append(json_errors)
        tokens, token_errors = fit_columns(
            make_subject_columns(subjects, self._config.subject_columns), self.schema
        )
        columns |= tokens
        if errors := errors + token_errors:
            columns[ERROR_COLUMN] = pc.coalesce(*errors)
        arrays = []
        for field in self.schema:
            column = columns.get(field.name)
            if column is None:
                arrays.append(pa.nulls(batch.num_rows, field.type))
                continue
            arrays.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
