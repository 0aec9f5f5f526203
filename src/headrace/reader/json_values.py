"""Parses payloads as JSON to Arrow columns of a given type, as Spark's `from_json` does.

Owns the conversion. Invariant: like `from_json` in PERMISSIVE mode, a payload that is not JSON gives a row of nulls, a
field with a value of another type gives null, and both are marked as corrupt; a missing field is null. Times without a
zone are UTC. Must not know Spark.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

Mask = npt.NDArray[np.bool_]
#: Converts a parsed value; appends to the list if it or a part of it has another type.
_Convert = Callable[[Any, list[str]], Any]
_FLOATS = {"NaN": "nan", "Infinity": "inf", "+Infinity": "inf", "INF": "inf", "+INF": "inf"}
_FLOATS |= {"-Infinity": "-inf", "-INF": "-inf"}
#: Block size of Arrow's parser, which wants a whole row in one block.
_BLOCK_BYTES = 64 << 20
#: One line from `{` to `}`. In JSON no value goes on with `{` on the line after a `}`, so none spans two such lines.
_ONE_LINE = r"\A[ \t]*\{[^\n\r\x00]*\}[ \t]*\z"
#: Has room for the digits of every Arrow decimal.
_DECIMALS = Context(prec=76)


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


def _parse_payload(payload: bytes | None, convert: _Convert, problems: list[str]) -> Any:
    if payload is None or not payload.strip():
        return None
    try:
        value = json.loads(payload.decode(), parse_float=Decimal)
    except (ValueError, RecursionError, InvalidOperation):
        value = None
    if value is None:
        problems.append("not JSON, or null")
        # A row of nulls; null where the type is no struct.
        return convert({}, []) if convert.__name__ == "to_struct" else None
    return convert(value, problems)


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
    """Return whether each payload is UTF-8 and looks like one line with an object."""
    try:
        texts = data.cast(pa.large_string() if pa.types.is_large_binary(data.type) else pa.string())
    except pa.ArrowInvalid:
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
    parse = _find_parser(arrow_type)

    def to_value(value: Any, problems: list[str]) -> Any:
        if value is None:
            return None
        try:
            return parse(value)
        except (ValueError, TypeError, OverflowError, InvalidOperation, OSError, RecursionError):
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


def _find_parser(arrow_type: pa.DataType) -> Callable[[Any], Any]:
    if pa.types.is_integer(arrow_type):
        limit = 1 << (arrow_type.bit_width - 1)
        return lambda value: _parse_int(value, limit)
    if pa.types.is_decimal(arrow_type):
        return lambda value: _parse_decimal(value, arrow_type)
    if pa.types.is_timestamp(arrow_type):
        return lambda value: _parse_time(value, has_zone=arrow_type.tz is not None)
    parsers: list[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]]] = [
        (pa.types.is_string, _parse_string),
        (pa.types.is_large_string, _parse_string),
        (pa.types.is_boolean, lambda value: _require(value, bool)),
        (pa.types.is_floating, _parse_float),
        (pa.types.is_date, lambda value: date.fromisoformat(_require(value, str).strip())),
        (pa.types.is_binary, lambda value: base64.b64decode(_require(value, str), validate=True)),
    ]
    for is_type, parse in parsers:
        if is_type(arrow_type):
            return parse
    raise TypeError(f"JSON cannot be read as {arrow_type}")


def _require(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not {kind.__name__}")
    return value


def _parse_int(value: Any, limit: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -limit <= value < limit:
        raise ValueError("no integer, or too large")
    return value


def _parse_float(value: Any) -> float:
    if isinstance(value, str) and value in _FLOATS:
        return float(_FLOATS[value])
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TypeError("no number")
    return float(value)


def _parse_decimal(value: Any, arrow_type: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        raise TypeError("no number")
    number = Decimal(value).quantize(Decimal(1).scaleb(-arrow_type.scale), ROUND_HALF_UP, _DECIMALS)
    if not number.is_finite() or len(number.as_tuple().digits) > arrow_type.precision:
        raise ValueError("too many digits, or no number")
    return number


def _parse_time(value: Any, *, has_zone: bool) -> datetime:
    if isinstance(value, int) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC if has_zone else None)
    parsed = datetime.fromisoformat(_require(value, str).strip())
    if not has_zone:
        return parsed.replace(tzinfo=None)
    # Arrow converts to UTC too, but fails for the whole column if a year is then not between 1 and 9999.
    return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def _parse_string(value: Any) -> str:
    """Return a text as it is, and anything else as JSON, as `from_json` does."""
    text = value
    if not isinstance(value, str):
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=float)
    text.encode()  # Half of a surrogate pair, as in "\\ud800", is no text: it raises.
    return str(text)
