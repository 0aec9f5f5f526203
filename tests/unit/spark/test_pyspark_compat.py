"""Rows and batches that Spark passes to a writer, in all versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import BinaryType, MapType, StringType, StructField, StructType

from headrace.spark.pyspark_compat import make_utc_arrow_schema, to_batches

SCHEMA = StructType(
    [
        StructField("subject", StringType()),
        StructField("data", BinaryType()),
        StructField("headers", MapType(StringType(), StringType())),
    ]
)


def read(rows: Iterator[Any]) -> list[dict[str, Any]]:
    return [row for batch in to_batches(rows, SCHEMA) for row in batch.to_pylist()]


def test_single_rows_become_batches() -> None:
    rows = [Row(subject=f"s.{n}", data=b"%d" % n, headers={"a": "b"} if n else None) for n in range(3)]
    assert read(iter(rows)) == [
        {"subject": f"s.{n}", "data": b"%d" % n, "headers": [("a", "b")] if n else None} for n in range(3)
    ]
    assert read(iter([])) == []


def test_batches_pass_as_they_are() -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"subject": "s", "data": b"1", "headers": None}], make_utc_arrow_schema(SCHEMA)
    )
    assert list(to_batches(iter([batch, batch]), SCHEMA)) == [batch, batch]
