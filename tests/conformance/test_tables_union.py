"""`headrace.read(table=...)`: the rows of a table and of its stream above it, each once, with one schema."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.types import LongType

import headrace
from conformance.client import Client
from conformance.servers import Server
from headrace.errors import DataLoss, PositionConflict, TableError
from support.table_landing import Landing
from support.tables import reload

MakeStream = Callable[..., dict[str, Any]]


@pytest.fixture
def landing(server: Server, client: Client, name: str, tmp_path: Path, make_stream: MakeStream) -> Landing:
    made = Landing(server, client, name, tmp_path)
    make_stream(allow_direct=True)
    return made


def read(landing: Landing, **options: Any) -> pa.Table:
    with headrace.read(landing.server.url, landing.name, table=reload(landing.config), **options) as scan:
        found = scan.to_table()
        assert found.schema == scan.schema
        return found.sort_by("seq") if "seq" in found.column_names else found


def test_rows_up_to_now_are_read_once(landing: Landing) -> None:
    landing.make_table()
    landing.publish(4)
    landing.land()
    landing.client.store(f"{landing.name}.h", b"\x00\xff", {"Key": "value"})
    landing.publish(2)
    rows = read(landing)
    assert rows["seq"].to_pylist() == list(range(1, 8))
    assert rows.column_names == ["seq", "time", "subject", "headers", "data"]
    assert (rows["data"][4].as_py(), rows["headers"][4].as_py()) == (b"\x00\xff", [("Key", ["value"])])
    stale = reload(landing.config)
    landing.land()
    with headrace.read(landing.server.url, landing.name, table=stale) as scan:
        assert scan.to_table().sort_by("seq") == rows == read(landing)
        assert scan.position == 7


def test_messages_that_the_stream_no_longer_has_are_there(landing: Landing) -> None:
    landing.make_table()
    landing.publish(5)
    landing.land()
    landing.client.api(f"STREAM.PURGE.{landing.name}", {"seq": 5})
    landing.publish(1)
    assert read(landing)["seq"].to_pylist() == list(range(1, 7))


def test_declared_columns_are_made_of_the_tail_too(landing: Landing) -> None:
    landing.make_table(
        payload="json",
        schema={"id": "long", "total": "decimal(10, 2)", "at": "timestamp"},
        subject_columns={"customer": 2},
    )
    landing.client.store(f"{landing.name}.acme", b'{"id": 1, "total": 9.5, "at": "2026-11-18T12:00:00Z"}')
    landing.land()
    landing.client.store(f"{landing.name}.beta", b'{"id": 2, "total": 1.25, "at": "2026-11-18T13:00:00Z"}')
    landing.client.store(f"{landing.name}.beta", b'{"id": "x"}')
    before = read(landing)
    rows = before.to_pylist()
    assert [(row["id"], row["total"], row["customer"]) for row in rows] == [
        (1, Decimal("9.50"), "acme"),
        (2, Decimal("1.25"), "beta"),
        (None, None, "beta"),
    ]
    assert [row["_error"] is None for row in rows] == [True, True, False]
    landing.land()
    assert read(landing) == before


def test_tokens_that_do_not_fit_a_column_are_errors_of_the_tail_too(landing: Landing) -> None:
    landing.make_table()
    with reload(landing.config).update_schema() as update:
        update.add_column("customer", LongType())
    landing.config = msgspec.structs.replace(landing.config, subject_columns={"customer": 2})
    landing.client.store(f"{landing.name}.acme", b"")
    landing.land()
    landing.client.store(f"{landing.name}.7", b"")
    landing.client.store(f"{landing.name}.beta", b"")
    before = read(landing)
    assert before["customer"].to_pylist() == [None, 7, None]
    assert before["_error"].to_pylist() == [
        'customer: "acme" is not int64',
        None,
        'customer: "beta" is not int64',
    ]
    landing.land()
    assert read(landing) == before


def test_ranges_subjects_and_columns(landing: Landing) -> None:
    landing.make_table()
    landing.publish(6)
    landing.land()
    landing.publish(6)
    assert read(landing, start=5, end=9)["seq"].to_pylist() == [5, 6, 7, 8]
    assert read(landing, start=8)["seq"].to_pylist() == [8, 9, 10, 11, 12]
    found = read(landing, subject=f"{landing.name}.1", columns=("subject", "seq"))
    assert found.column_names == ["subject", "seq"]
    assert found["seq"].to_pylist() == [2, 5, 8, 11]
    several = read(landing, subject=(f"{landing.name}.1", f"{landing.name}.2"), columns=("seq",))
    assert several["seq"].to_pylist() == [2, 3, 5, 6, 8, 9, 11, 12]
    first_time = read(landing)["time"][3].as_py()
    assert read(landing, start=first_time)["seq"].to_pylist()[-9:] == list(range(4, 13))
    assert read(landing, end=first_time)["seq"].to_pylist() == [1, 2, 3]
    with pytest.raises(ValueError, match="unknown column 'nothing'"):
        read(landing, columns=("nothing",))


def test_a_stream_that_does_not_continue_the_table_is_refused(
    landing: Landing, make_stream: MakeStream
) -> None:
    landing.make_table()
    with pytest.raises(TableError, match="has no position"):
        read(landing)
    landing.publish(3)
    landing.land()
    landing.publish(3)
    landing.client.api(f"STREAM.PURGE.{landing.name}", {"seq": 6})
    with pytest.raises(DataLoss, match="messages in between were removed"):
        read(landing)
    assert read(landing, connection={"failOnDataLoss": "false"})["seq"].to_pylist() == [1, 2, 3, 6]
    landing.client.api(f"STREAM.DELETE.{landing.name}")
    make_stream(allow_direct=True)
    landing.publish(5)
    with pytest.raises(DataLoss, match="deleted and created again"):
        read(landing)


def test_a_table_that_was_rolled_back_is_refused(landing: Landing) -> None:
    landing.make_table()
    for _ in range(2):
        landing.publish(3)
        landing.land()
    first = reload(landing.config).metadata.snapshots[0]
    reload(landing.config).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    with pytest.raises(PositionConflict, match="rolled back"):
        read(landing)


def test_tables_with_claims_are_refused(landing: Landing) -> None:
    landing.make_table(claims="reference")
    landing.publish(1)
    landing.land()
    with pytest.raises(TableError, match="has claims"):
        read(landing)


def test_the_columns_of_an_older_table_are_recorded_by_its_worker(landing: Landing) -> None:
    landing.make_table()
    landing.publish(1)
    landing.land()
    with reload(landing.config).transaction() as transaction:
        transaction.remove_properties("headrace.columns")
    with pytest.raises(TableError, match="does not say how its columns are made"):
        read(landing)
    landing.land()
    assert read(landing)["seq"].to_pylist() == [1]
