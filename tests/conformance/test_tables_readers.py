"""A table is read back equal by pyiceberg, by Polars, and by DuckDB, each with its own reader of the files.

Polars reads the table's metadata through pyiceberg, and the data files by itself. DuckDB reads the data files as Parquet:
its extension for Iceberg is not part of its package. `bench/table_spark.py` compares Spark with Iceberg's runtime, too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from conformance.client import Client
from conformance.servers import Server
from support.table_landing import Landing
from support.table_readers import read_with_duckdb, read_with_polars
from support.tables import read_rows, reload

MakeStream = Callable[..., dict[str, Any]]
SCHEMA = {
    "id": "long",
    "total": "decimal(10, 2)",
    "at": "timestamp",
    "on": "date",
    "ratio": "double",
    "done": "boolean",
    "name": "string",
}
FULL = (
    b'{"id": %d, "total": 12.34, "at": "2026-11-18T12:00:00.25Z", "on": "2026-11-18", "ratio": 0.5, "done": true, '
    b'"name": "\xc3\xa4"}'
)
FIRST = [
    ("acme", FULL % 1, {"Key": "value"}),
    ("acme", b"", {}),
    ("weir", b"\x00\xff broken", {"Key": ""}),
    ("weir", b'{"id": -9223372036854775808, "total": "x", "ratio": 1e308}', {}),
]
SECOND = [("lock", b'{"id": 5, "note": "a column that older files lack"}', {}), ("acme", FULL % 6, {})]


@pytest.fixture
def landing(server: Server, client: Client, name: str, tmp_path: Path, make_stream: MakeStream) -> Landing:
    made = Landing(server, client, name, tmp_path)
    make_stream(allow_direct=True)
    return made


def publish(landing: Landing, messages: list[tuple[str, bytes, dict[str, str]]]) -> None:
    for kind, payload, headers in messages:
        landing.client.store(f"{landing.name}.{kind}", payload, headers)


def test_all_readers_find_the_same_rows(landing: Landing) -> None:
    parts = {"subject_columns": {"kind": 2}, "partition_by": ("day(time)", "bucket(4, kind)")}
    landing.make_table(payload="json", schema=SCHEMA, **parts)
    publish(landing, FIRST)
    landing.land()
    landing.config = msgspec.structs.replace(landing.config, schema={**SCHEMA, "note": "string"})
    publish(landing, SECOND)
    landing.land()
    rows = read_rows(landing.config)
    assert [(row["seq"], row["kind"], row["data"]) for row in rows] == [
        (seq, kind, payload) for seq, (kind, payload, _) in enumerate(FIRST + SECOND, 1)
    ]
    assert [row["_error"] is None for row in rows] == [True, False, False, False, True, True]
    assert [row["note"] is None for row in rows] == [True, True, True, True, False, True]
    assert rows[0]["headers"] == [("Key", ["value"])]
    table = reload(landing.config)
    assert len(list(table.scan().plan_files())) > 2
    assert read_with_polars(table) == rows
    assert read_with_duckdb(table) == rows


def test_all_readers_find_the_same_changes_of_a_bucket(landing: Landing) -> None:
    bucket = f"{landing.name}-kv"
    stream = {"name": f"KV_{bucket}", "subjects": [f"$KV.{bucket}.>"], "allow_direct": True}
    more = {"max_msgs_per_subject": 5, "allow_rollup_hdrs": True, "deny_delete": True}
    landing.client.api(f"STREAM.CREATE.KV_{bucket}", {**stream, **more})
    try:
        for key, value, headers in (
            ("a.b", b"1", {}),
            ("c", b"\xff", {}),
            ("a.b", b"", {"KV-Operation": "DEL"}),
        ):
            landing.client.store(f"$KV.{bucket}.{key}", value, headers)
        landing.make_table(bucket=bucket)
        landing.land()
    finally:
        landing.client.api(f"STREAM.DELETE.KV_{bucket}")
    table = reload(landing.config)
    rows = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["revision"])
    assert [(row["key"], row["operation"], row["value"]) for row in rows] == [
        ("a.b", "put", b"1"),
        ("c", "put", b"\xff"),
        ("a.b", "delete", None),
    ]
    assert read_with_polars(table, "revision") == rows
    assert read_with_duckdb(table, "revision") == rows
