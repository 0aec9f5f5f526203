"""Converts single JSON values to Python values for Arrow columns, as Spark's `from_json` does.

Owns the rules for numbers, texts and times. Invariant: a value that `from_json` would not accept for a type raises one of
the errors of Python's conversions. Times without a zone are UTC. Must not know Spark.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

_INFINITY = float("inf")
_FLOATS = {"NaN": float("nan"), "Infinity": _INFINITY, "+Infinity": _INFINITY, "+INF": _INFINITY}
_FLOATS |= {"-Infinity": -_INFINITY, "-INF": -_INFINITY}
#: Has room for the digits of every Arrow decimal.
_DECIMALS = Context(prec=76)
_DATE = r"(\d{4})(?:-(\d{1,2})(?:-(\d{1,2})"
_TIME = r"(?:[T ](\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,9}))?\s*(\S.*)?)?)?"
#: Year, month, day, hour, minute, second, fraction, zone. What follows the first may be missing.
_TIMESTAMP = re.compile(rf"{_DATE}{_TIME})?)?", re.ASCII)
_DAY = re.compile(rf"{_DATE}(?:[T ].*)?)?)?", re.ASCII)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?", re.ASCII)
#: Java writes smaller and larger numbers with an exponent.
_PLAIN_MIN, _PLAIN_END = 1e-3, 1e7


def find_parser(arrow_type: pa.DataType) -> Callable[[Any], Any]:
    """Return the conversion for values of a type that has no parts."""
    if pa.types.is_integer(arrow_type):
        limit = 1 << (arrow_type.bit_width - 1)
        return lambda value: _parse_int(value, limit)
    if pa.types.is_decimal(arrow_type):
        return lambda value: _parse_decimal(value, arrow_type)
    if pa.types.is_timestamp(arrow_type):
        return _parse_time if arrow_type.tz is not None else _parse_local_time
    parsers: list[tuple[Callable[[pa.DataType], bool], Callable[[Any], Any]]] = [
        (pa.types.is_string, _parse_string),
        (pa.types.is_large_string, _parse_string),
        (pa.types.is_boolean, lambda value: _require(value, bool)),
        (pa.types.is_floating, _parse_float),
        (pa.types.is_date, _parse_date),
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
        return _FLOATS[value]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TypeError("no number")
    return float(Decimal(value))  # infinity if it is too large, also for an integer


def _parse_decimal(value: Any, arrow_type: Any) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        raise TypeError("no number")
    number = Decimal(value).quantize(Decimal(1).scaleb(-arrow_type.scale), ROUND_HALF_UP, _DECIMALS)
    if not number.is_finite() or len(number.as_tuple().digits) > arrow_type.precision:
        raise ValueError("too many digits, or no number")
    return number


def _parse_date(value: Any) -> date:
    found = _DAY.fullmatch(_require(value, str).strip())
    if found is None:
        raise ValueError("no date")
    year, month, day = found.groups()
    return date(int(year), int(month or 1), int(day or 1))


def _parse_time(value: Any) -> datetime:
    """Return the time of a text, or of a number of seconds since 1970."""
    if isinstance(value, int) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC)
    local, zone = _split_time(value)
    # Arrow converts to UTC too, but fails for the whole column if a year is then not between 1 and 9999.
    return local.replace(tzinfo=_find_zone(zone) if zone else UTC).astimezone(UTC)


def _parse_local_time(value: Any) -> datetime:
    """Return the time of a text without a zone: `from_json` accepts nothing else for a time without a zone."""
    local, zone = _split_time(value)
    if zone:
        raise ValueError("it has a zone")
    return local


def _split_time(value: Any) -> tuple[datetime, str]:
    """Return the time that a text shows, and its zone, "" if it has none."""
    found = _TIMESTAMP.fullmatch(_require(value, str).strip())
    if found is None:
        raise ValueError("no time")
    year, month, day, *clock, fraction, zone = found.groups()
    hour, minute, second = (int(each or 0) for each in clock)
    micros = int((fraction or "")[:6].ljust(6, "0"))
    return datetime(int(year), int(month or 1), int(day or 1), hour, minute, second, micros), zone or ""


def _find_zone(name: str) -> tzinfo:
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    found = _OFFSET.fullmatch(name)
    if found is None:
        return ZoneInfo(name)  # raises KeyError, a LookupError, if there is none
    offset = timedelta(hours=int(found[2]), minutes=int(found[3] or 0))
    return timezone(-offset if found[1] == "-" else offset)


def _parse_string(value: Any) -> str:
    """Return a text as it is, and anything else as JSON, as `from_json` does."""
    text = value if isinstance(value, str) else _to_text(value)
    text.encode()  # Half of a surrogate pair, as in "\\ud800", is no text: it raises.
    return text


def _to_text(value: Any) -> str:
    """Return a value as JSON, with numbers as Java writes them."""
    if isinstance(value, dict):
        fields = ",".join(f"{_to_text(key)}:{_to_text(each)}" for key, each in value.items())
        return f"{{{fields}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_to_text, value))}]"
    if isinstance(value, float | Decimal):
        return _format_double(float(value))
    return json.dumps(value, ensure_ascii=False)


def _format_double(value: float) -> str:
    if not math.isfinite(value):
        return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
    if not value or _PLAIN_MIN <= abs(value) < _PLAIN_END:
        return repr(value)
    sign, digits, _ = Decimal(repr(value)).normalize().as_tuple()
    first, *rest = map(str, digits)
    return f"{'-' if sign else ''}{first}.{''.join(rest) or '0'}E{Decimal(repr(value)).adjusted()}"
