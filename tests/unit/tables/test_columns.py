"""Declared columns: of JSON payloads, of subjects, partitions by them, and how a table gets new ones."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

from headrace.errors import TableError
from headrace.tables.catalog import create_table, evolve_table, open_catalog
from headrace.tables.claim_rows import STREAM_SCHEMA
from headrace.tables.commits import TableCommit, send_commit
from headrace.tables.config import TableConfig
from headrace.tables.data_files import DataFileWriter
from headrace.tables.position import TablePosition, find_position
from support.tables import T0_US, make_config, make_table, read_rows, reload

SCHEMA = {"id": "long", "total": "double"}


def append(config: TableConfig, *messages: tuple[str, bytes]) -> None:
    """Write messages with these subjects and payloads."""
    table = reload(config)
    before = find_position(table)
    first = before.seq + 1 if before else 1
    seqs = range(first, first + len(messages))
    columns = [
        pa.array(seqs, pa.int64()),
        pa.array([T0_US] * len(messages), pa.int64()).cast(STREAM_SCHEMA.field("time").type),
        pa.array([subject for subject, _ in messages]),
        pa.nulls(len(messages), STREAM_SCHEMA.field("headers").type),
        pa.array([payload for _, payload in messages], pa.binary()),
    ]
    writer = DataFileWriter(table, config, f"c{first}")
    writer.add(pa.RecordBatch.from_arrays(columns, schema=STREAM_SCHEMA))
    position = TablePosition(seqs[-1], "ORDERS", "1", f"c{first}")
    send_commit(table, TableCommit(writer.finish(), before, position))


def test_payloads_become_columns_and_errors_keep_the_payload(tmp_path: Path) -> None:
    _, config = make_table(tmp_path, payload="json", schema=SCHEMA)
    append(config, ("a", b'{"id": 1, "total": 2.5}'), ("a", b"broken"), ("a", b'{"id": "x", "total": 3}'))
    rows = read_rows(config)
    assert [(row["id"], row["total"]) for row in rows] == [(1, 2.5), (None, None), (None, 3.0)]
    assert rows[0]["_error"] is None
    assert rows[1]["_error"].startswith("not JSON")
    assert rows[2]["_error"] == 'id: "x" is not int64'
    assert [row["data"] for row in rows][1:] == [b"broken", b'{"id": "x", "total": 3}']


def test_tokens_of_the_subject_become_columns(tmp_path: Path) -> None:
    _, config = make_table(tmp_path, subject_columns={"customer": 2, "event": 3})
    append(config, ("orders.acme.new", b""), ("orders.mill", b""), ("orders.acme.paid", b""))
    found = [(row["customer"], row["event"]) for row in read_rows(config)]
    assert found == [("acme", "new"), ("mill", None), ("acme", "paid")]


@pytest.mark.parametrize("partition", ["customer", "bucket(4, customer)"])
def test_a_table_is_partitioned_by_a_token(tmp_path: Path, partition: str) -> None:
    _, config = make_table(tmp_path, subject_columns={"customer": 2}, partition_by=("day(time)", partition))
    append(config, *((f"orders.c{number % 5}", b"") for number in range(50)), ("orders", b""))
    files = list(reload(config).scan().plan_files())
    assert len(files) == len({task.file.partition for task in files}) > 1
    assert sum(task.file.record_count for task in files) == 51
    found = reload(config).scan(row_filter="customer = 'c3'").to_arrow()
    assert len(found) == 10
    if partition == "customer":
        assert len(files) == 6
        assert len(list(reload(config).scan(row_filter="customer = 'c3'").plan_files())) == 1


def test_new_fields_are_added_and_types_are_widened(tmp_path: Path) -> None:
    _, config = make_table(tmp_path, payload="json", schema={"id": "int"})
    append(config, ("a", b'{"id": 1, "note": "early"}'))
    wider = make_config(
        tmp_path, payload="json", schema={"id": "long", "note": "string"}, subject_columns={"first": 1}
    )
    evolve_table(open_catalog(wider), wider)
    append(wider, ("a", b'{"id": 9999999999, "note": "late"}'))
    assert [(row["id"], row["note"], row["first"]) for row in read_rows(wider)] == [
        (1, None, None),
        (9999999999, "late", "a"),
    ]
    before = reload(wider).metadata.current_schema_id
    evolve_table(open_catalog(wider), wider)
    assert reload(wider).metadata.current_schema_id == before


def test_a_type_conflict_is_reported_and_goes_to_the_error_column(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_table(tmp_path, payload="json", schema={"id": "long"})
    changed = make_config(tmp_path, payload="json", schema={"id": "date"})
    with caplog.at_level(logging.WARNING, "headrace.tables"):
        create_table(open_catalog(changed), changed)
    assert "column 'id' is long, not date as declared" in caplog.text
    append(changed, ("a", b'{"id": "2026-11-18"}'), ("a", b'{"id": 5}'))
    assert [(row["id"], row["_error"]) for row in read_rows(changed)] == [
        (None, 'id: "2026-11-18" is not int64'),
        (5, None),
    ]


@pytest.mark.parametrize("payload", ["raw", "json"])
def test_a_token_that_does_not_fit_a_column_goes_to_the_error_column(tmp_path: Path, payload: str) -> None:
    table, _ = make_table(tmp_path)
    with table.update_schema() as update:
        update.add_column("customer", LongType())
    schema = {"id": "long"} if payload == "json" else {}
    config = make_config(tmp_path, payload=payload, schema=schema, subject_columns={"customer": 2})
    create_table(open_catalog(config), config)
    append(config, ("orders.acme", b'{"id": 1}'), ("orders.7", b'{"id": 2}'), ("orders", b'{"id": 3}'))
    assert [(row["customer"], row["_error"]) for row in read_rows(config)] == [
        (None, 'customer: "acme" is not int64'),
        (7, None),
        (None, None),
    ]


def test_a_field_may_have_the_name_of_a_column_for_claims(tmp_path: Path) -> None:
    _, config = make_table(tmp_path, payload="json", schema={"claim_error": "long"})
    append(config, ("a", b'{"claim_error": 5}'), ("a", b"broken"))
    rows = read_rows(config)
    assert [row["claim_error"] for row in rows] == [5, None]
    assert [row["_error"] is None for row in rows] == [True, False]


def test_an_error_column_of_another_type_is_refused(tmp_path: Path) -> None:
    table, _ = make_table(tmp_path)
    with table.update_schema() as update:
        update.add_column("_error", LongType())
    config = make_config(tmp_path, payload="json", schema={"id": "long"})
    with pytest.raises(TableError, match="column '_error' that is int64, not string"):
        create_table(open_catalog(config), config)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"payload": "json"}, "belong together"),
        ({"schema": SCHEMA}, "belong together"),
        ({"payload": "avro"}, "'avro' is not raw or json"),
        ({"payload": "json", "schema": {"seq": "long"}}, "'seq' cannot be a column"),
        ({"subject_columns": {"Time": 1}}, "'Time' cannot be a column"),
        ({"payload": "json", "schema": {"a b": "long"}}, "'a b' cannot be a column"),
        ({"payload": "json", "schema": {"a": "text"}}, "'text' is not a type"),
        ({"payload": "json", "schema": {"a": "decimal(3, 4)"}}, "is not a type"),
        ({"payload": "json", "schema": {"a": "long"}, "subject_columns": {"A": 1}}, "declared twice"),
        ({"subject_columns": {"a": 0}}, "0 is not a token"),
        ({"partition_by": ("b",)}, "'b' is not in subject_columns"),
        ({"partition_by": ("bucket(0, b)",)}, "has no buckets"),
        ({"partition_by": ("hour(time)",)}, "is not a partition"),
    ],
)
def test_wrong_declarations_are_rejected(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(TableError) as error:
        make_config(tmp_path, **values)
    assert message in str(error.value)
