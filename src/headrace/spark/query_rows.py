"""Converts rows of a stream to the rows of a query: columns of the Kafka source, the column `stream`, parsed payloads.

Owns the columns beyond those of a stream. Invariant: a query that needs no conversion gets the batches of the reader as
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.errors import HeadraceError
from headrace.reader.batch_cast import conform_array
from headrace.reader.options import OptionError, ReadOptions
from headrace.spark.pyspark_compat import make_utc_arrow_schema
from headrace.spark.schema import STREAM_SCHEMA, SchemaError, make_stream_schema

_KAFKA_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
#: The columns of Spark's Kafka source, and the stream's columns that they are made of.
KAFKA_SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(_KAFKA_HEADER)),
    ]
)
_KAFKA_SOURCES = {
    "key": "subject",
    "value": "data",
    "offset": "seq",
    "timestamp": "time",
    "headers": "headers",
}
#: The time at which the server stored the message ("LogAppendTime").
_TIMESTAMP_TYPE = 1
STREAM_FIELD = StructField("stream", StringType())
CORRUPT_FIELD = StructField("_corrupt_record", StringType())
_ARROW_STREAM_SCHEMA = make_utc_arrow_schema(STREAM_SCHEMA)


class MalformedPayload(HeadraceError):
    """A payload that is not what the schema says, in a query with mode=FAILFAST."""


def make_query_schema(options: ReadOptions) -> StructType:
    """Return the columns of a query without a schema of its own."""
    if options.value_format:
        raise OptionError(
            "option `valueFormat` needs a schema, which says how payloads are parsed: "
            f'.schema("seq bigint, {_payload_column(options)} struct<price: double, item: string>")'
        )
    if options.columns == "kafka":
        return KAFKA_SCHEMA
    fields = make_stream_schema(options).fields
    return StructType([STREAM_FIELD, *fields] if options.reads_several else fields)


def make_available_schema(options: ReadOptions, schema: StructType) -> StructType:
    """Return the columns that a query's schema can select."""
    if options.columns == "kafka":
        fields = KAFKA_SCHEMA.fields
    else:
        fields = [STREAM_FIELD, *make_stream_schema(options).fields]
    if not options.value_format:
        return StructType(fields)
    payload = _payload_column(options)
    given = {field.name: field.dataType for field in schema.fields}
    fields = [
        StructField(each.name, _check_payload_type(payload, given[payload]))
        if each.name == payload and payload in given
        else each
        for each in fields
    ]
    return StructType([*fields, CORRUPT_FIELD])


def _payload_column(options: ReadOptions) -> str:
    return "value" if options.columns == "kafka" else "data"


def _check_payload_type(name: str, data_type: DataType) -> DataType:
    if not isinstance(data_type, StructType | MapType | ArrayType):
        raise SchemaError(
            f"column {name!r} is {data_type.simpleString()}; with valueFormat=json it must be a struct, map or array"
        )
    return data_type


class RowConverter:
    """Makes the rows of a query from rows with `input_schema`."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._payload = _payload_column(options)
        self._is_kafka = options.columns == "kafka"
        native = [self._find_source(name) for name in schema.names]
        if options.value_format:
            native += ["seq", "data"]
        names = list(dict.fromkeys(name for name in native if name))
        self._is_identity = names == list(schema.names) and not options.value_format and not self._is_kafka
        self.input_schema = schema if self._is_identity else self._make_input_schema(names)

    def _find_source(self, name: str) -> str:
        """Return the stream's column that a column is made of; "" if it is made of none."""
        if self._is_kafka:
            return _KAFKA_SOURCES.get(name, "")
        return "" if name in (STREAM_FIELD.name, CORRUPT_FIELD.name) else name

    def _make_input_schema(self, names: list[str]) -> pa.Schema:
        types = {field.name: field for field in (*self._schema, *_ARROW_STREAM_SCHEMA)}
        # A query of constants only still needs the number of rows.
        return pa.schema([types[name] for name in names or ["seq"]])

    def convert(self, batches: Iterator[pa.RecordBatch], stream: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the query."""
        if self._is_identity:
            return batches
        return (self._convert_batch(batch, stream) for batch in batches)

    def _convert_batch(self, batch: pa.RecordBatch, stream: str) -> pa.RecordBatch:
        rows = batch.num_rows
        makers: dict[str, Callable[[], pa.Array]] = {"stream": lambda: _repeat(stream, rows)}
        if self._is_kafka:
            makers = {
                "topic": lambda: _repeat(stream, rows),
                "partition": lambda: _repeat(0, rows),
                "timestampType": lambda: _repeat(_TIMESTAMP_TYPE, rows),
                "key": lambda: batch["subject"].cast(pa.binary()),
                "headers": lambda: _to_kafka_headers(batch["headers"]),
            }
        if self._options.value_format:
            makers |= self._parse_payloads(batch, stream)
        arrays = []
        for field in self._schema:
            maker = makers.get(field.name)
            array = maker() if maker else batch[self._find_source(field.name)]
            arrays.append(conform_array(array, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _parse_payloads(self, batch: pa.RecordBatch, stream: str) -> dict[str, Callable[[], pa.Array]]:
        # Spark gives a worker ten seconds to start, so few queries should pay for this import.
        from headrace.reader.json_values import parse_json_column

        has_payload = self._payload in self._schema.names
        payload_type = self._schema.field(self._payload).type if has_payload else pa.struct([])
        data = batch["data"]
        values, is_corrupt = parse_json_column(data, payload_type)
        if is_corrupt.any() and self._options.parse_mode == "FAILFAST":
            seq = batch["seq"][int(is_corrupt.argmax())].as_py()
            raise MalformedPayload(
                f"the payload of sequence {seq} of stream {stream!r} is not JSON of the type in the schema. With "
                "mode=PERMISSIVE it becomes null, and column _corrupt_record has its text"
            )

        def make_corrupt_records() -> pa.Array:
            texts = [
                payload.decode(errors="replace") if corrupt else None
                for payload, corrupt in zip(data.to_pylist(), is_corrupt, strict=True)
            ]
            return pa.array(texts, pa.string())

        return {self._payload: lambda: values, CORRUPT_FIELD.name: make_corrupt_records}


def _repeat(value: str | int, rows: int) -> pa.Array:
    return pa.repeat(value, rows)


def _to_kafka_headers(headers: pa.MapArray) -> pa.Array:
    """Return headers as a list of keys and values; one entry for each value."""
    kafka_type = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    if headers.null_count == len(headers):
        return pa.nulls(len(headers), kafka_type)
    rows = [
        None
        if row is None
        else [{"key": key, "value": value.encode()} for key, values in row for value in values]
        for row in headers.to_pylist()
    ]
    return pa.array(rows, kafka_type)
