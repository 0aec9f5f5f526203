"""Names of PySpark that its older versions lack, so that nothing else in the package depends on the version.

PySpark 4.0 pushes down no filters and writes streams row by row; before 4.2 a Python source has no rate limits and does
not see `Trigger.AvailableNow`. Owns the stand-ins, which such a version never calls.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import signature
from itertools import chain, islice
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import (
        DataSourceStreamArrowWriter,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        LessThan,
        LessThanOrEqual,
        StringStartsWith,
    )
except ImportError:  # PySpark 4.0
    from pyspark.sql.datasource import DataSourceStreamWriter

    Filter = type("Filter", (), {})  # type: ignore[misc,assignment]
    EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, StringStartsWith = (  # type: ignore[misc,assignment]
        type(name, (Filter,), {})
        for name in (
            "EqualTo",
            "GreaterThan",
            "GreaterThanOrEqual",
            "LessThan",
            "LessThanOrEqual",
            "StringStartsWith",
        )
    )

    class DataSourceStreamArrowWriter(DataSourceStreamWriter): ...  # type: ignore[no-redef]


try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS = True
except ImportError:  # PySpark 4.0 and 4.1
    HAS_READ_LIMITS = False

    class ReadLimit: ...  # type: ignore[no-redef]

    class ReadAllAvailable(ReadLimit): ...  # type: ignore[no-redef]

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        def __init__(self, max_bytes: int) -> None:
            self.max_bytes = max_bytes

    class SupportsTriggerAvailableNow: ...  # type: ignore[no-redef]


#: PySpark 4.2 made the time zone of timestamps an argument; before, it was always UTC.
_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}


def make_utc_arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow form of a schema, with timestamps in UTC."""
    return to_arrow_schema(schema, prefers_large_types=False, **_UTC)


#: What a process runs in which Spark's driver commits the epochs of a Python sink.
_COMMIT_MODULE = "pyspark.sql.worker.python_streaming_sink_runner"


def is_commit_process() -> bool:
    """Return whether this process commits epochs, so that their tasks have reached the server before."""
    main_spec = getattr(sys.modules["__main__"], "__spec__", None)
    return _COMMIT_MODULE in sys.modules or getattr(main_spec, "name", "") == _COMMIT_MODULE


#: Rows in a batch that is made of single rows.
_ROWS_MAX = 10_000


def to_batches(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield what a writer gets as record batches: PySpark 4.0 passes single rows to the writer of a stream."""
    first = next(rows, None)
    if first is None:
        return
    rows = chain((first,), rows)
    if isinstance(first, pa.RecordBatch):
        yield from rows
        return
    from pyspark.sql.conversion import LocalDataToArrowConversion

    while some := list(islice(rows, _ROWS_MAX)):
        yield from LocalDataToArrowConversion.convert(some, schema, use_large_var_types=False).to_batches()


__all__ = [
    "HAS_READ_LIMITS",
    "DataSourceStreamArrowWriter",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "LessThan",
    "LessThanOrEqual",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "StringStartsWith",
    "SupportsTriggerAvailableNow",
    "is_commit_process",
    "make_utc_arrow_schema",
    "to_batches",
]
