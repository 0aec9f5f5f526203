"""Payloads that are JSON become columns, as `from_json` makes them."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from spark.conftest import Broker

TYPE = (
    "struct<i: int, l: bigint, d: double, f: float, s: string, b: boolean, t: timestamp, z: timestamp_ntz, day: date, "
    "n: decimal(6,2), raw: binary, list: array<int>, map: map<string,double>, in: struct<x: bigint, y: array<string>>>"
)
_INFINITIES = [
    b"NaN",
    b"nan",
    b"Infinity",
    b"+Infinity",
    b"-Infinity",
    b"INF",
    b"+INF",
    b"-INF",
    b"Inf",
    b"-Inf",
]
PAYLOADS = [
    b'{"i": 1, "l": 12345678901, "d": 1.5, "s": "a", "b": true}',
    b'{"t": "2026-01-31T12:00:00Z", "day": "2026-01-31", "n": 12.345, "raw": "aGk="}',
    b'{"list": [1, 2, null], "map": {"k": 1, "m": 2.5}, "in": {"x": 7, "y": ["p", "q"]}}',
    b'{"s": 17, "in": null, "other": {"deep": []}}',
    b'{"s": {"k": [1, "x"]}}',
    b'{"l": "text", "s": "kept"}',
    b'{"i": 3000000000, "d": 2}',
    b'{"b": "true", "d": "NaN"}',
    b'{\n  "i": 5\n}',
    b'{"i": 1',
    b"no json",
    b"[1, 2]",
    b"null",
    b"",
    b"\xff\xfe",
    *(
        b'{"z": %s}' % time
        for time in (b"1700000000", b"1.5", b'"2026-01-31 12:00"', b'"2026-01-31T12:00:00Z"')
    ),
    *(
        b'{"t": %s}' % time
        for time in (b"1700000000", b"-1", b"1.5", b'"1700000000"', b'"2026"', b'"2026-1-2"')
    ),
    *(
        b'{"t": "2026-01-31%s"}' % clock
        for clock in (b" 1:2", b"T1:2:3.123456789+0230", b"T12:00:00 Asia/Tokyo", b"T12:00Z")
    ),
    *(
        b'{"t": "%s"}' % time
        for time in (b"20260131T120000Z", b"2026-W05-6", b"2026-01-31T12:00:00 here", b"")
    ),
    *(b'{"day": "%s"}' % day for day in (b"2026", b"2026-2", b"2026-02-30", b"2026-01-31T12:00", b"")),
    *(b'{"d": %s, "i": 1}' % each for each in _INFINITIES),
    *(b'{"d": "%s", "f": "%s"}' % (each, each) for each in _INFINITIES),
    *(b'{"other": [%s], "i": 1}' % each for each in _INFINITIES),
    *(b'{"s": %s}' % each for each in (b"NaN", b"-INF", b'{"a": [+Infinity, "-INF"]}', b"1e400", b"Inf")),
    *(b'{"s": {"a": %s}}' % each for each in (b"1e10", b"1e-5", b"0.001", b"1e7", b"-123456789.125", b"0.0")),
    b'{"d": 1e400, "f": 1e40}',
    b'{"f": NaN, "n": NaN}',
    b'{"i": Infinity}',
]


def comparable(fields: dict[str, Any]) -> dict[str, str]:
    """Return fields as text: NaN is not equal to itself; and maps have no order."""
    return {
        name: repr(sorted(value.items()) if name == "map" and value else value)
        for name, value in fields.items()
    }


def test_rows_are_those_of_from_json(broker: Broker, spark: SparkSession, name: str) -> None:
    broker.create(name)
    broker.publish(name, ((f"{name}.x", b"", payload) for payload in PAYLOADS))
    source = {"servers": broker.url, "stream": name}
    parsed = (
        spark.read.schema(f"seq bigint, data {TYPE}, _corrupt_record string")
        .format("headrace")
        .options(valueFormat="json", **source)
        .load()
    )
    expected = spark.read.format("headrace").options(**source).load()
    inner = TYPE.replace("struct<", "struct<_corrupt_record: string, ", 1)
    options = {"columnNameOfCorruptRecord": "_corrupt_record"}
    expected = expected.select("seq", f.from_json(f.col("data").cast("string"), inner, options).alias("data"))
    wanted = {row.seq: row.data for row in expected.collect()}
    for row in parsed.collect():
        payload, want = PAYLOADS[row.seq - 1], wanted[row.seq]
        if want is None:
            assert row.data is None, payload
            continue
        fields: dict[str, Any] = want.asDict(recursive=True)
        is_corrupt = fields.pop("_corrupt_record") is not None
        found = row.data.asDict(recursive=True)
        assert comparable(found) == comparable(fields), payload
        assert (row._corrupt_record is not None) == is_corrupt, payload


def test_failfast_names_the_sequence(ours: Broker, spark: SparkSession, name: str) -> None:
    ours.create(name)
    ours.publish(name, ((f"{name}.x", b"", payload) for payload in (b'{"a": 1}', b"secret text")))
    reader = spark.read.schema("data struct<a: bigint>").format("headrace")
    frame = reader.options(servers=ours.url, stream=name, valueFormat="json", mode="FAILFAST").load()
    with pytest.raises(PySparkException, match="the payload of sequence 2 of stream") as caught:
        frame.collect()
    assert "secret text" not in str(caught.value)


def test_plain_rows_take_the_fast_way(ours: Broker, spark: SparkSession, name: str) -> None:
    ours.create(name)
    rows = [b'{"id": %d, "name": "n%d", "in": {"y": [%d.5]}, "more": 1}' % (n, n, n) for n in range(500)]
    ours.publish(name, ((f"{name}.x", b"", row) for row in rows))
    reader = spark.read.schema(
        "value struct<id: bigint, name: string, in: struct<y: array<double>>>, offset bigint"
    )
    frame = reader.format("headrace").options(
        servers=ours.url, subscribe=name, columns="kafka", valueFormat="json"
    )
    found = frame.load().select("value.*", "offset").orderBy("offset").collect()
    assert [(row.id, row.name, row["in"].y, row.offset) for row in found] == [
        (n, f"n{n}", [n + 0.5], n + 1) for n in range(500)
    ]


def test_a_schema_that_says_nothing_about_payloads_is_an_error(ours: Broker, spark: SparkSession) -> None:
    options = {"servers": ours.url, "stream": "STAYS", "valueFormat": "json"}
    with pytest.raises(PySparkException, match="option `valueFormat` needs a schema"):
        spark.read.format("headrace").options(**options).load()
    with pytest.raises(PySparkException, match="must be a struct, map or array"):
        spark.read.schema("data string").format("headrace").options(**options).load().collect()
