"""Reads a local Iceberg table with other programs than pyiceberg."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.table import Table


def read_with_polars(table: Table, order: str = "seq") -> list[dict[str, Any]]:
    """Return the rows as the reader of Polars finds them."""
    import polars as pl

    with pytest.MonkeyPatch.context() as patch:
        # Its own planner is a package of its own; without this it warns.
        patch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        frame = pl.scan_iceberg(table, reader_override="native").sort(order).collect()
    rows: list[dict[str, Any]] = frame.to_arrow().to_pylist()
    return rows


def read_with_duckdb(table: Table, order: str = "seq") -> list[dict[str, Any]]:
    """Return the rows as DuckDB finds them in the data files."""
    import duckdb

    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    query = "SELECT * FROM read_parquet($files, union_by_name = true, hive_partitioning = false)"
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.sql(f"{query} ORDER BY {order}", params={"files": files}).to_arrow_table()
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows
