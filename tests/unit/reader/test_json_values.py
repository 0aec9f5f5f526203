"""Payloads that are JSON become Arrow columns: every payload gives its own row, and none stops the query."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from headrace.reader import json_values
from headrace.reader.json_values import parse_json_column

NUMBER = pa.struct([("a", pa.int64())])
TEXT = pa.struct([("s", pa.string())])


def parse(payloads: list[bytes], arrow_type: pa.DataType) -> tuple[list[object], list[bool]]:
    values, is_corrupt = parse_json_column(pa.array(payloads, pa.binary()), arrow_type)
    values.validate(full=True)
    return values.to_pylist(), is_corrupt.tolist()


def test_a_first_payload_of_null_does_not_crash() -> None:
    """In a process of its own: Arrow's parser ends the process."""
    code = (
        "import pyarrow as pa; from headrace.reader.json_values import parse_json_column as parse;"
        "print(parse(pa.array([b'null', b'{\"a\": 1}']), pa.struct([('a', pa.int64())]))[0].to_pylist())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode != -signal.SIGSEGV
    assert done.stdout.strip() == "[{'a': None}, {'a': 1}]"


@pytest.mark.parametrize(
    ("payloads", "numbers", "corrupt"),
    [
        ([b'{"a":1} {"a":2}', b"", b'{"a":3}'], [None, None, 3], [True, False, False]),
        ([b'{"a":1', b"}", b'{"a":2}{"a":3}'], [None, None, None], [True, True, True]),
        ([b'{"a":1,"x":{}', b'{"a":2}}', b'{"a":3}{"a":4}'], [None, None, None], [True, True, True]),
        ([b'{"a":1} null {"a":2}', b"{}"], [None, None], [True, False]),
        ([b'{"a":1}{"a":2}', b'{"a":3}', b'{"a":4}\0{}'], [None, 3, None], [True, False, True]),
        ([b'{"x":"}', b'{"}', b'{"a":2}{"a":3}'], [None, None, None], [True, True, True]),
        ([b'{"a":1},{"a":2}', b'{"a":3}'], [None, 3], [True, False]),
        ([b'{"a":\n1}', b'{"a":2}'], [1, 2], [False, False]),
    ],
)
def test_every_payload_gives_its_own_row(
    payloads: list[bytes], numbers: list[int | None], corrupt: list[bool]
) -> None:
    rows, is_corrupt = parse(payloads, NUMBER)
    assert [row and row["a"] for row in rows] == numbers  # type: ignore[index]
    assert is_corrupt == corrupt


def test_plain_payloads_are_parsed_at_once() -> None:
    data = pa.array([b'{"a": 1}', b' {"a": null}\t', b'{"s": "} {", "a": 3}', b"{}"])
    fast = json_values._parse_at_once(data, NUMBER)
    assert fast is not None
    assert fast.to_pylist() == [{"a": 1}, {"a": None}, {"a": 3}, {"a": None}]
    assert fast.to_pylist() == parse(data.to_pylist(), NUMBER)[0]


@pytest.mark.parametrize(
    "payload", [b'{"s":"\xff"}', b'{"s":"\\ud800"}', b'{"s":"\\udc00"}', b'{"s":["\\ud800"]}']
)
def test_a_text_that_is_not_unicode_is_corrupt(payload: bytes) -> None:
    assert parse([payload, b'{"s":"x"}'], TEXT) == ([{"s": None}, {"s": "x"}], [True, False])


def test_a_map_with_a_key_that_is_not_unicode_is_corrupt() -> None:
    arrow_type = pa.struct([("m", pa.map_(pa.string(), pa.int64()))])
    rows, is_corrupt = parse([b'{"m":{"\\ud800":1}}', b'{"m":{"k":2}}'], arrow_type)
    assert rows == [{"m": None}, {"m": [("k", 2)]}]
    assert is_corrupt == [True, False]


@pytest.mark.parametrize(
    "value", [b'"NaN"', b'"sNaN"', b'"Infinity"', b"NaN", b"1e99", b"1e99999999999999999999999"]
)
def test_a_decimal_that_is_no_number_is_corrupt(value: bytes) -> None:
    arrow_type = pa.struct([("d", pa.decimal128(6, 2))])
    rows, is_corrupt = parse([b'{"d":%s}' % value, b'{"d":1.5}'], arrow_type)
    assert rows == [{"d": None}, {"d": Decimal("1.50")}]
    assert is_corrupt == [True, False]


def test_a_decimal_may_have_all_its_digits() -> None:
    digits = "12345678901234567890.123456789012345678"
    arrow_type = pa.struct([("d", pa.decimal128(38, 18))])
    assert parse([b'{"d":%s}' % digits.encode()], arrow_type) == ([{"d": Decimal(digits)}], [False])


@pytest.mark.parametrize("value", [b'"0001-01-01T00:00:00+05:00"', b'"9999-12-31T23:59:59-05:00"', b"9" * 30])
def test_a_time_out_of_range_is_corrupt(value: bytes) -> None:
    arrow_type = pa.struct([("t", pa.timestamp("us", "UTC"))])
    rows, is_corrupt = parse([b'{"t":%s}' % value, b'{"t":"2026-01-31T12:00:00+02:00"}'], arrow_type)
    assert rows == [{"t": None}, {"t": datetime(2026, 1, 31, 10, tzinfo=UTC)}]
    assert is_corrupt == [True, False]


def test_a_time_without_a_zone_does_not_depend_on_the_zone_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        rows, is_corrupt = parse(
            [b'{"t":1700000000}', b'{"t":"2026-01-31T12:00:00"}', b'{"t":"2026-01-31T12:00:00Z"}'],
            pa.struct([("t", pa.timestamp("us"))]),
        )
    finally:
        monkeypatch.undo()
        time.tzset()
    assert rows == [{"t": None}, {"t": datetime(2026, 1, 31, 12)}, {"t": None}]
    assert is_corrupt == [True, False, True], "from_json accepts neither numbers nor zones"


@pytest.mark.parametrize("other", [b"NaN", b"Inf", b"-Inf", b"Infinity", b"-INF", b"+INF", b"INF"])
def test_spellings_of_infinity_are_the_same_for_both_parsers(other: bytes) -> None:
    """Plain columns are parsed by Arrow, whose rules are different."""
    payloads = [b'{"d": %s, "s": "-INF +Infinity :Inf"}' % other, b'{"d": 1}']
    fast = parse(payloads, pa.struct([("d", pa.float64()), ("s", pa.string())]))
    slow = parse(payloads, pa.struct([("d", pa.float64()), ("s", pa.string()), ("x", pa.date32())]))
    assert fast[1] == slow[1] == [other in (b"Inf", b"-Inf", b"INF"), False]
    for fast_row, slow_row in zip(fast[0], slow[0], strict=True):
        assert repr({**fast_row, "x": None}) == repr(slow_row)  # type: ignore[dict-item]
