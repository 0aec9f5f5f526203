"""Data files: one per partition, with all rows in order, synced when they are closed."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import TableError
from headrace.tables.columns import RowMapper
from headrace.tables.commits import TableCommit, send_commit
from headrace.tables.data_files import DataFileWriter, split_partitions
from headrace.tables.position import TablePosition
from support.tables import DAY_US, T0_US, make_config, make_rows, make_table, read_rows, reload


def test_rows_of_three_days_are_in_three_files(tmp_path: Path) -> None:
    table, config = make_table(tmp_path)
    writer = DataFileWriter(table, config, "one")
    for day in (0, 1, 0, 2):
        writer.add(make_rows(range(day * 10 + 1, day * 10 + 4), T0_US + day * DAY_US))
    files = writer.finish()
    assert sorted(file.record_count for file in files) == [3, 3, 6]
    assert {f"2026-11-{day}" for day in (18, 19, 20)} == {
        Path(file.file_path).parent.name.partition("=")[2] for file in files
    }
    send_commit(table, TableCommit(files, None, TablePosition(23, "ORDERS", "1", "one")))
    found = reload(config).scan(row_filter="time >= '2026-11-19T00:00:00+00:00'").to_arrow()
    assert sorted(found["seq"].to_pylist()) == [11, 12, 13, 21, 22, 23]


def test_all_columns_are_read_back(tmp_path: Path) -> None:
    table, config = make_table(tmp_path)
    writer = DataFileWriter(table, config, "one")
    writer.add(make_rows([1, 2]))
    send_commit(table, TableCommit(writer.finish(), None, TablePosition(2, "ORDERS", "1", "one")))
    first, second = read_rows(config)
    assert first["headers"] == [("Key", ["1"])]
    assert second["headers"] is None
    assert (second["seq"], second["subject"], second["data"]) == (2, "orders.2", b"payload 2")
    assert second["time"].timestamp() == (T0_US + 2) / 1e6


def test_every_file_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()

    def sync(descriptor: int) -> None:
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", sync)
    table, config = make_table(tmp_path)
    writer = DataFileWriter(table, config, "one")
    writer.add(make_rows([1, 2]))
    send_commit(table, TableCommit(writer.finish(), None, TablePosition(2, "ORDERS", "1", "one")))
    files = {str(path) for path in (tmp_path / "lake" / "files").rglob("*") if path.is_file()}
    assert len(files) == 5  # a data file, a manifest, a manifest list, and the metadata before and after
    assert files <= synced
    assert {str(Path(path).parent) for path in files} <= synced


def test_a_table_of_another_program_is_refused(tmp_path: Path) -> None:
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    with pytest.raises(TableError, match="has no column 'time'"):
        RowMapper(Schema(NestedField(1, "seq", LongType(), required=True)), make_config(tmp_path))


def test_columns_that_others_added_are_null(tmp_path: Path) -> None:
    from pyiceberg.types import StringType

    table, config = make_table(tmp_path)
    with table.update_schema() as update:
        update.add_column("note", StringType())
    table = reload(config)
    mapped = RowMapper(table.schema(), config).to_rows(make_rows([1, 2]))
    assert mapped.column("note") == pa.nulls(2, pa.string())


def make_customer_rows(seqs: range, customers: int) -> pa.RecordBatch:
    rows = make_rows(seqs)
    subjects = pa.array([f"orders.c{seq % customers}" for seq in seqs])
    return rows.set_column(2, rows.schema.field("subject"), subjects)


def test_more_partitions_than_files_may_be_open(tmp_path: Path) -> None:
    table, config = make_table(
        tmp_path, subject_columns={"customer": 2}, partition_by=("day(time)", "customer")
    )
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, before[1]))
    try:
        writer = DataFileWriter(table, config, "one")
        writer.add(make_customer_rows(range(1, 901), 300))
        files = writer.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert [file.record_count for file in files] == [3] * 300
    send_commit(table, TableCommit(files, None, TablePosition(900, "ORDERS", "1", "one")))
    rows = read_rows(config, "seq", "customer")
    assert [(row["seq"], row["customer"]) for row in rows] == [
        (seq, f"c{seq % 300}") for seq in range(1, 901)
    ]


def test_a_partition_gets_another_file_after_its_first_was_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.tables.data_files.OPEN_FILES_MAX", 2)
    monkeypatch.setattr("headrace.tables.data_files.ROW_GROUP_BYTES", 1)
    table, config = make_table(tmp_path, subject_columns={"customer": 2}, partition_by=("customer",))
    writer = DataFileWriter(table, config, "one")
    for start in (1, 11):
        writer.add(make_customer_rows(range(start, start + 10), 3))
    files = writer.finish()
    assert sorted(file.record_count for file in files) == [3, 4, 6, 7]
    assert len({file.file_path for file in files}) == 4
    send_commit(table, TableCommit(files, None, TablePosition(20, "ORDERS", "1", "one")))
    assert [row["seq"] for row in read_rows(config, "seq")] == list(range(1, 21))


def test_only_combinations_of_partitions_that_occur_are_numbered(tmp_path: Path) -> None:
    columns = {f"c{number}": 2 for number in range(7)}
    table, config = make_table(tmp_path, subject_columns=columns, partition_by=tuple(columns))
    rows = RowMapper(table.schema(), config).to_rows(make_customer_rows(range(1, 3001), 1000))
    parts = list(split_partitions(table, pa.Table.from_batches([rows])))
    assert len(parts) == 1000
    for key, part in parts:
        assert set(part["c0"].to_pylist()) == {key[0]}
        assert part["seq"].to_pylist() == sorted(part["seq"].to_pylist())
        assert part.num_rows == 3
