"""Columns of a stream in Spark, and the cast of batches from any backend to the form that Spark expects.

Owns names and types. Invariant: every batch of a query has the one Arrow schema derived from the query's Spark schema;
Spark checks only the first batch of a task and fails in the JVM on a later one that differs.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.errors import HeadraceError
from headrace.reader.batch_cast import build_batch as build_batch
from headrace.reader.options import ReadOptions
from headrace.spark.pyspark_compat import make_utc_arrow_schema

#: Fields of a claim's reference; null in messages that carry their payload themselves.
CLAIM_TYPE = StructType(
    [
        StructField("claim_id", StringType()),
        StructField("bucket", StringType()),
        StructField("object_key", StringType()),
        StructField("original_size", LongType()),
        StructField("compression", StringType()),
        StructField("checksum", StringType()),
        StructField("stored_size", LongType()),
        StructField("stored_checksum", StringType()),
        StructField("content_type", StringType()),
        StructField("created_at", TimestampType()),
        StructField("expires_at", TimestampType()),
    ]
)
HEADERS_TYPE = MapType(StringType(), ArrayType(StringType()))
STREAM_SCHEMA = StructType(
    [
        StructField("seq", LongType()),
        StructField("time", TimestampType()),
        StructField("subject", StringType()),
        StructField("headers", HEADERS_TYPE),
        StructField("data", BinaryType()),
        StructField("expires_at", TimestampType()),
        StructField("claim", CLAIM_TYPE),
    ]
)


#: Column for bad claims that do not fail the query; only in reads that ask for it.
CLAIM_ERROR_FIELD = StructField("claim_error", StringType())


def make_stream_schema(options: ReadOptions) -> StructType:
    """Return the columns of a stream read with these options."""
    has_error_column = options.claims == "inline" and options.claim_errors == "column"
    return StructType([*STREAM_SCHEMA.fields, CLAIM_ERROR_FIELD]) if has_error_column else STREAM_SCHEMA


class SchemaError(HeadraceError):
    """A schema that the source cannot deliver, or rows that the sink cannot send."""


def make_arrow_schema(schema: StructType, available: StructType) -> pa.Schema:
    """Return the Arrow form of a query's schema, which may omit available columns but not change them."""
    types = {field.name: field.dataType for field in available.fields}
    for field in schema.fields:
        known = types.get(field.name)
        if known is None:
            raise SchemaError(f"there is no column {field.name!r}; available columns: {', '.join(types)}")
        if known.simpleString() != field.dataType.simpleString():
            raise SchemaError(
                f"column {field.name!r} is {known.simpleString()}, not {field.dataType.simpleString()}; "
                "read it as it is and cast it in the query"
            )
    if not schema.fields:
        raise SchemaError(f"the schema has no columns; available columns: {', '.join(types)}")
    return make_utc_arrow_schema(schema)
