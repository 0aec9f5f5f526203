"""Rows up to now: those of a table of `headrace table`, then those that its stream has above it.

Owns the boundary. Invariants: every message is there once: rows of the table count up to its recorded position, and the
stream counts from there on, whatever a worker commits meanwhile; both have the columns and types of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headrace.errors import PositionConflict, TableError
from headrace.reader.backends import filter_subjects, parse_range_bound
from headrace.reader.batch_cast import build_batch, narrow_schema
from headrace.reader.json_columns import JsonColumns
from headrace.reader.landed_table import (
    COMMIT_ID,
    ERROR_COLUMN,
    SEQUENCE,
    LandedTable,
    check_continuation,
    parse_landed_table,
)
from headrace.reader.row_mapper import RowFormat
from headrace.reader.subject_columns import fit_columns, make_subject_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table

    from headrace.reader.read_source import Backend, Batches, ReadRange
    from headrace.reader.stream_admin import StreamInfo

_STREAM_COLUMNS = ("seq", "time", "subject", "headers", "data")


class TableUnion:
    """A table, as it was loaded, and the stream that continues it."""

    def __init__(self, table: Table, info: StreamInfo, backend: Backend, *, fail_on_data_loss: bool) -> None:
        self._table = table
        self._backend = backend
        self._landed = _find_landed(table)
        name = ".".join(table.name())
        check_continuation(self._landed, info, name, fail_on_data_loss=fail_on_data_loss)

    def make_reader(
        self, read_range: ReadRange, columns: Sequence[str] | None
    ) -> tuple[pa.Schema, Callable[[], Batches]]:
        """Return the schema of the rows, and a function that reads them."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        schema = narrow_schema(schema_to_pyarrow(self._table.schema(), include_field_ids=False))
        unknown = [name for name in columns or () if name not in schema.names]
        if unknown:
            raise ValueError(f"unknown column {unknown[0]!r}: the table has {', '.join(schema.names)}")
        wanted = schema if columns is None else _select(schema, columns)
        return wanted, lambda: self._read(read_range, schema, wanted)

    def _read(self, read_range: ReadRange, schema: pa.Schema, wanted: pa.Schema) -> Batches:
        yield from self._read_table(read_range, wanted)
        for batch in self._read_stream(read_range, schema):
            yield batch.select(wanted.names)

    def _read_table(self, read_range: ReadRange, wanted: pa.Schema) -> Batches:
        names = tuple(dict.fromkeys((*wanted.names, "subject")))
        scan = self._table.scan(_make_filter(read_range, self._landed.seq), selected_fields=names)
        for batch in scan.to_arrow_batch_reader():
            yield _cast(filter_subjects(batch, read_range.patterns), wanted)

    def _read_stream(self, read_range: ReadRange, schema: pa.Schema) -> Batches:
        """Yield the rows of the stream above the table, with all columns of the table."""
        import pyarrow as pa
        import pyarrow.compute as pc

        first_seq, first_ns = parse_range_bound(read_range.start)
        above = self._landed.seq + 1
        start = read_range.start if first_ns is not None else max(first_seq or 0, above)
        layout = RowFormat("us", views=False, parse_headers=True).make_layout(_STREAM_COLUMNS)
        declared = self._landed.columns
        json = JsonColumns([schema.field(name) for name in declared.json if name in schema.names])
        for batch in self._backend.make_batch_reader(replace(read_range, start=start), layout)():
            rows = batch.filter(
                pc.greater_equal(batch.column("seq"), pa.scalar(above, batch.column("seq").type))
            )
            columns = dict(zip(rows.schema.names, rows.columns, strict=True))
            tokens, errors = fit_columns(make_subject_columns(columns["subject"], declared.subject), schema)
            columns |= tokens
            if declared.json:
                parsed, json_errors = json.parse(columns["data"])
                columns |= parsed
                errors.insert(0, json_errors)
            if errors:
                columns[ERROR_COLUMN] = pc.coalesce(*errors)
            nulls = {field.name: pa.nulls(rows.num_rows, field.type) for field in schema}
            yield build_batch({**nulls, **columns}, schema)


def _find_landed(table: Table) -> LandedTable:
    """Return how far the table is; raise PositionConflict if it was rolled back."""
    from pyiceberg.table.snapshots import ancestors_of

    name = ".".join(table.name())
    landed = parse_landed_table(table.properties, name)
    if landed is None:
        raise TableError(f"table {name} has no position: it was not written by 'headrace table run'")
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        if SEQUENCE not in summary:
            continue
        if any(summary.get(key) != table.properties.get(key) for key in (SEQUENCE, COMMIT_ID)):
            raise PositionConflict(
                f"table {name} was rolled back, or another program wrote it: set its position with 'headrace table resync'"
            )
        break
    return landed


def _make_filter(read_range: ReadRange, last_seq: int) -> str:
    """Return a condition for the rows of a table that are in a range."""
    (first_seq, first_ns), (end_seq, end_ns) = map(parse_range_bound, (read_range.start, read_range.end))
    conditions = [f"seq <= {last_seq}"]
    if first_seq is not None:
        conditions.append(f"seq >= {first_seq}")
    if end_seq is not None:
        conditions.append(f"seq < {end_seq}")
    if first_ns is not None:
        conditions.append(f"time >= '{_to_text(first_ns)}'")
    if end_ns is not None:
        conditions.append(f"time < '{_to_text(end_ns)}'")
    return " AND ".join(conditions)


def _to_text(time_ns: int) -> str:
    """Return a time as Iceberg's expressions take it; tables have microseconds."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time_ns // 1000)).isoformat()


def _select(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([schema.field(name) for name in columns])


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return build_batch({field.name: batch.column(field.name) for field in schema}, schema)
