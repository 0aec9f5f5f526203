"""Columns of JSON payloads: the declared fields, and what is wrong with a payload that does not fit.

Owns the texts of column `_error`. Invariants: no payload stops a table; a field whose value has another type is null, the
other fields of the payload are there, and `_error` says why. The payload itself stays in column `data`. Values are read by
the rules of `headrace.reader.json_values`, which are those of Spark.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.reader.json_scalars import find_parser
from headrace.reader.json_values import can_parse, parse_json_column

_ERROR_LENGTH_MAX = 300
_CONVERSION_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, OSError, RecursionError)


class JsonColumns:
    """The declared fields of JSON payloads."""

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._fields = [pa.field(field.name, field.type) for field in fields]
        #: Their values fit no JSON value: they are read as texts, to find the payloads that have one.
        self._unreadable = [field for field in self._fields if not can_parse(field.type)]
        self._type = pa.struct(
            [field.with_type(pa.string()) if field in self._unreadable else field for field in self._fields]
        )

    def parse(self, data: pa.Array) -> tuple[dict[str, pa.Array], pa.Array]:
        """Return the columns of these payloads, and the errors: null where there is none."""
        values, is_corrupt = parse_json_column(data, self._type)
        columns = dict(zip((field.name for field in self._fields), values.flatten(), strict=True))
        is_wrong = is_corrupt | (np.asarray(values.is_null()) if values.null_count else False)
        for field in self._unreadable:
            is_wrong |= np.asarray(pc.is_valid(columns[field.name]))
            columns[field.name] = pa.nulls(len(data), field.type)
        if data.null_count:
            # Deleted keys of a bucket have no value.
            is_wrong &= np.asarray(data.is_valid())
        if not is_wrong.any():
            return columns, pa.nulls(len(data), pa.string())
        errors: list[str | None] = [None] * len(data)
        for row in np.flatnonzero(is_wrong).tolist():
            errors[row] = self.describe_error(data[row].as_py())[:_ERROR_LENGTH_MAX]
        return columns, pa.array(errors, pa.string())

    def describe_error(self, payload: bytes) -> str:
        """Return why a payload does not fit."""
        if not payload.strip():
            return "the payload is empty"
        try:
            value = json.loads(payload)
        except (ValueError, RecursionError) as error:
            return f"not JSON: {error}"
        if not isinstance(value, dict):
            return f"not a JSON object: {type(value).__name__}"
        wrong = [
            f"{field.name}: {json.dumps(value[field.name])} is not {field.type}"
            for field in self._fields
            if value.get(field.name) is not None and not _fits(value[field.name], field.type)
        ]
        return "; ".join(wrong) or "a value has another type"


def _fits(value: object, arrow_type: pa.DataType) -> bool:
    try:
        find_parser(arrow_type)(value)
    except _CONVERSION_ERRORS:
        return False
    return True
