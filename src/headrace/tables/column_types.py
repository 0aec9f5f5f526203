"""The types and names of columns that a user declares, and the partitioning by them.

Owns the words of the configuration: `long`, `decimal(10, 2)`, `bucket(16, customer)`. Must not know rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, Transform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestamptzType,
)

from headrace.errors import TableError

#: Columns of streams and of key-value buckets; the first one is the sequence.
RAW_COLUMNS = ("seq", "time", "subject", "headers", "data")
BUCKET_COLUMNS = ("revision", "time", "key", "operation", "value")
SEQUENCE_COLUMNS = (RAW_COLUMNS[0], BUCKET_COLUMNS[0])
CLAIM_COLUMN = "claim"
ERROR_COLUMN = "_error"
_RESERVED = frozenset((*RAW_COLUMNS, *BUCKET_COLUMNS, CLAIM_COLUMN, ERROR_COLUMN))
_TYPES: Mapping[str, PrimitiveType] = {
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
}
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_DECIMAL_DIGITS_MAX = 38
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BUCKET = re.compile(r"bucket\(\s*(\d{1,6})\s*,\s*(\w+)\s*\)")
DAY = "day(time)"


def parse_type(text: str, where: str) -> PrimitiveType:
    """Return the Iceberg type of a word; raise TableError if there is none."""
    if text in _TYPES:
        return _TYPES[text]
    found = _DECIMAL.fullmatch(text)
    if found and int(found[2]) <= int(found[1]) <= _DECIMAL_DIGITS_MAX and int(found[1]):
        return DecimalType(int(found[1]), int(found[2]))
    raise TableError(f"{where}: {text!r} is not a type: use {', '.join(_TYPES)} or decimal(10, 2)")


def check_columns(names: Iterable[str], where: str) -> None:
    """Raise TableError if a name cannot be that of a declared column, or is there twice."""
    seen: set[str] = set()
    for name in names:
        # Spark and DuckDB compare names without their case.
        if not _COLUMN.fullmatch(name) or name.lower() in _RESERVED:
            raise TableError(
                f"{where}: {name!r} cannot be a column: use letters, digits and _, and not a name that tables use themselves"
            )
        if name.lower() in seen:
            raise TableError(f"{where}: column {name!r} is declared twice")
        seen.add(name.lower())


def parse_partition(text: str, where: str) -> tuple[str, Transform]:  # type: ignore[type-arg]
    """Return the column and the transform of `day(time)`, `customer` or `bucket(16, customer)`."""
    if text == DAY:
        return "time", DayTransform()
    if found := _BUCKET.fullmatch(text):
        if not int(found[1]):
            raise TableError(f"{where}: {text!r} has no buckets")
        return found[2], BucketTransform(int(found[1]))
    if _COLUMN.fullmatch(text):
        return text, IdentityTransform()
    raise TableError(f"{where}: {text!r} is not a partition: use {DAY}, a column, or bucket(16, column)")
