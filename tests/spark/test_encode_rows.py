"""Rows are encoded as messages: allowed columns and their effect. Needs no server and no session."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
)

from headrace.spark.schema import SchemaError
from headrace.spark.write.encode_rows import encode_batch, find_header, make_row_layout

TEXT = StringType()


def lines_of(schema: StructType, arrow: dict[str, pa.DataType], **columns: list[Any]) -> list[bytes]:
    """Return the header lines of rows."""
    arrays = [pa.array(values, arrow[name]) for name, values in columns.items()]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    lines = encode_batch(batch, make_row_layout(schema, "s")).header_lines
    assert lines is not None
    return list(lines.to_pylist())


def test_a_null_among_the_values_of_a_header_is_left_out() -> None:
    schema = StructType().add("data", TEXT).add("headers", MapType(TEXT, ArrayType(TEXT)))
    arrow = {"data": pa.string(), "headers": pa.map_(pa.string(), pa.list_(pa.string()))}
    found = lines_of(schema, arrow, data=["x", "y"], headers=[[("a", ["x", None, "y"]), ("b", None)], None])
    assert found == [b"a: x\r\na: y\r\n", b""]


def test_a_null_for_a_header_is_left_out() -> None:
    schema = StructType().add("data", TEXT).add("headers", MapType(TEXT, TEXT))
    arrow = {"data": pa.string(), "headers": pa.map_(pa.string(), pa.string())}
    assert lines_of(schema, arrow, data=["x"], headers=[[("a", None), ("b", "")]]) == [b"b: \r\n"]


def test_an_id_may_be_a_number_and_nothing_is_none() -> None:
    schema = StructType().add("data", TEXT).add("msg_id", LongType())
    arrow = {"data": pa.string(), "msg_id": pa.int64()}
    found = lines_of(schema, arrow, data=["x"] * 3, msg_id=[0, 7, None])
    assert [find_header(line, b"Nats-Msg-Id") for line in found] == [b"0", b"7", None]


WRONG = [
    ("headers", MapType(TEXT, BinaryType())),
    ("headers", MapType(TEXT, ArrayType(BinaryType()))),
    ("headers", MapType(BinaryType(), TEXT)),
    ("headers", MapType(TEXT, IntegerType())),
    ("headers", TEXT),
    ("msg_id", BinaryType()),
    ("data", IntegerType()),
]


@pytest.mark.parametrize(("name", "kind"), WRONG, ids=lambda value: getattr(value, "simpleString", str)())
def test_a_column_that_would_be_sent_as_something_else_is_refused(name: str, kind: DataType) -> None:
    schema = StructType().add(name, kind)
    with pytest.raises(SchemaError, match=f"column '{name}' is"):
        make_row_layout(schema if name == "data" else schema.add("data", TEXT), "s")


RIGHT = [MapType(TEXT, TEXT), MapType(TEXT, ArrayType(TEXT)), MapType(NullType(), NullType()), NullType()]


@pytest.mark.parametrize("kind", RIGHT, ids=lambda kind: kind.simpleString())
def test_headers_may_be_of_one_value_or_more_or_none(kind: DataType) -> None:
    assert make_row_layout(StructType().add("data", TEXT).add("headers", kind), "s").names == (
        "data",
        "headers",
    )
