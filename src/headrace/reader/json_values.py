"""Parses payloads as JSON to Arrow columns of a given type, as Spark's `from_json` does.

Owns the conversion. Invariant: like `from_json` in PERMISSIVE mode, a payload that is not JSON gives a row of nulls, a
field with a value of another type gives null, and both are marked as corrupt; a missing field is null. `json_scalars`
has the rules of single values. Must not know Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from headrace.reader.json_scalars import find_parser

Mask = npt.NDArray[np.bool_]
#: Converts a parsed value; appends to the list if it or a part of it has another type.
_Convert = Callable[[Any, list[str]], Any]
#: Infinity, which Arrow's parser also accepts in other spellings than `from_json`.
_INFINITY = r"[:,\[][ \t]*-?Inf"
#: A text, which stays as it is, or a spelling of infinity that `from_json` accepts and Python does not.
_OTHER_INFINITY = re.compile(r'"(?:[^"\\]|\\.)*"|\+Infinity\b|\+INF\b|-INF\b', re.DOTALL)
_SPELLINGS = {"+Infinity": "Infinity", "+INF": "Infinity", "-INF": "-Infinity"}
#: Block size of Arrow's parser, which wants a whole row in one block.
_BLOCK_BYTES = 64 << 20
#: One line from `{` to `}`. In JSON no value goes on with `{` on the line after a `}`, so none spans two such lines.
_ONE_LINE = r"\A[ \t]*\{[^\n\r\x00]*\}[ \t]*\z"


def parse_json_column(data: pa.Array, arrow_type: pa.DataType) -> tuple[pa.Array, Mask]:
    """Return the parsed payloads, and which of them are corrupt."""
    if (fast := _parse_at_once(data, arrow_type)) is not None:
        return fast, np.zeros(len(data), np.bool_)
    convert = _make_converter(arrow_type)
    values, is_corrupt = [], np.zeros(len(data), np.bool_)
    for row, payload in enumerate(data.to_pylist()):
        problems: list[str] = []
        values.append(_parse_payload(payload, convert, problems))
        is_corrupt[row] = bool(problems)
    return pa.array(values, arrow_type), is_corrupt


def can_parse(arrow_type: pa.DataType) -> bool:
    """Return whether JSON has values of a type."""
    try:
        _make_converter(arrow_type)
    except TypeError:
        return False
    return True


def _parse_payload(payload: bytes | None, convert: _Convert, problems: list[str]) -> Any:
    if payload is None or not payload.strip():
        return None
    value = _load(payload)
    if value is None:
        problems.append("not JSON, or null")
        # A row of nulls; null where the type is no struct.
        return convert({}, []) if convert.__name__ == "to_struct" else None
    return convert(value, problems)


def _load(payload: bytes) -> Any:
    """Return the value of a payload; None if it is null or not JSON."""
    try:
        text = payload.decode()
        if "INF" in text or "+Infinity" in text:
            text = _OTHER_INFINITY.sub(lambda found: _SPELLINGS.get(found[0], found[0]), text)
        return json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError, InvalidOperation):
        return None


def _parse_at_once(data: pa.Array, arrow_type: pa.DataType) -> pa.Array | None:
    """Parse all payloads with Arrow's parser, which is many times faster; None if it or its rules do not fit."""
    if not len(data) or data.null_count or not pa.types.is_struct(arrow_type) or not _is_plain(arrow_type):
        return None
    if not _has_one_line_each(data):
        return None
    lines = pc.binary_join(pa.scalar([*data.to_pylist(), b""], pa.list_(pa.binary())), b"\n").as_py()
    schema = pa.schema(list(arrow_type))
    try:
        table = pa_json.read_json(
            pa.BufferReader(lines),
            pa_json.ReadOptions(use_threads=False, block_size=min(len(lines) + 1, _BLOCK_BYTES)),
            pa_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
        table.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    # No value spans two payloads, and each has at least one: with as many rows as payloads, each has exactly one.
    if table.num_rows != len(data):
        return None
    return table.combine_chunks().to_struct_array().combine_chunks().cast(arrow_type)


def _has_one_line_each(data: pa.Array) -> bool:
    """Return whether each payload is UTF-8 and looks like one line with an object, and none has an infinity."""
    try:
        texts = data.cast(pa.large_string() if pa.types.is_large_binary(data.type) else pa.string())
    except pa.ArrowInvalid:
        return False
    if pc.any(pc.match_substring_regex(texts, _INFINITY)).as_py():
        return False
    return bool(pc.all(pc.match_substring_regex(texts, _ONE_LINE)).as_py())


def _is_plain(arrow_type: pa.DataType) -> bool:
    """Return whether Arrow's parser reads this type as `from_json` does."""
    if pa.types.is_struct(arrow_type):
        return arrow_type.num_fields > 0 and all(_is_plain(field.type) for field in arrow_type)
    if pa.types.is_list(arrow_type):
        return _is_plain(arrow_type.value_type)
    return bool(
        pa.types.is_int64(arrow_type)
        or pa.types.is_float64(arrow_type)
        or pa.types.is_string(arrow_type)
        or pa.types.is_boolean(arrow_type)
    )


def _make_converter(arrow_type: pa.DataType) -> _Convert:
    if pa.types.is_struct(arrow_type):
        return _make_struct_converter(arrow_type)
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return _make_list_converter(arrow_type)
    if pa.types.is_map(arrow_type):
        return _make_map_converter(arrow_type)
    parse = find_parser(arrow_type)

    def to_value(value: Any, problems: list[str]) -> Any:
        if value is None:
            return None
        try:
            return parse(value)
        except (ValueError, TypeError, LookupError, ArithmeticError, OSError, RecursionError):
            problems.append(f"{type(value).__name__} is not {arrow_type}")
            return None

    return to_value


def _make_struct_converter(arrow_type: pa.StructType) -> _Convert:
    fields = [(field.name, _make_converter(field.type)) for field in arrow_type]

    def to_struct(value: Any, problems: list[str]) -> Any:
        if value is None:
            return None
        if not isinstance(value, dict):
            problems.append("no object")
            return {name: None for name, _ in fields}
        return {name: convert(value.get(name), problems) for name, convert in fields}

    return to_struct


def _make_list_converter(arrow_type: Any) -> _Convert:
    convert = _make_converter(arrow_type.value_type)

    def to_list(value: Any, problems: list[str]) -> Any:
        if value is not None and not isinstance(value, list):
            problems.append("no array")
            return None
        return None if value is None else [convert(each, problems) for each in value]

    return to_list


def _make_map_converter(arrow_type: pa.MapType) -> _Convert:
    convert_key, convert = _make_converter(arrow_type.key_type), _make_converter(arrow_type.item_type)

    def to_map(value: Any, problems: list[str]) -> Any:
        if value is not None and not isinstance(value, dict):
            problems.append("no object")
            return None
        if value is None:
            return None
        bad_keys: list[str] = []
        keys = [convert_key(key, bad_keys) for key in value]
        problems += bad_keys
        # A key cannot be null.
        return (
            None
            if bad_keys
            else [(key, convert(each, problems)) for key, each in zip(keys, value.values(), strict=True)]
        )

    return to_map
