"""Shared by tests of tables: configurations in a temporary folder, rows of a table, and a catalog with faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from headrace.tables.catalog import create_table, load_table, open_catalog
from headrace.tables.claim_rows import STREAM_SCHEMA
from headrace.tables.commits import TableCommit
from headrace.tables.config import TableConfig, check_table
from headrace.tables.data_files import DataFileWriter
from headrace.tables.position import TablePosition

DAY_US = 86_400_000_000
T0_US = int(datetime(2026, 11, 18, 12, tzinfo=UTC).timestamp()) * 1_000_000


def make_config(folder: Path, name: str = "ORDERS", **values: Any) -> TableConfig:
    """Return the configuration of a table with a SQLite catalog and files below a folder."""
    settings = {
        "table": f"shop.{name.lower()}",
        "catalog": f"sqlite:///{folder}/lake/catalog.db",
        "warehouse": str(folder / "lake" / "files"),
        **values,
    }
    return check_table(name, TableConfig(**settings), "test")


def make_rest_values(weed: Any, bucket: str) -> dict[str, Any]:
    """Return the settings of a table in the REST catalog of SeaweedFS."""
    key, secret = weed.KEYS["access_key_id"], weed.KEYS["secret_access_key"]
    properties = {"credential": f"{key}:{secret}", **make_s3_properties(weed)}
    return {"catalog": weed.catalog_url, "warehouse": f"s3://{bucket}", "properties": properties}


def make_s3_properties(weed: Any) -> dict[str, str]:
    """Return the settings for files in SeaweedFS."""
    return {
        "s3.endpoint": weed.endpoint,
        "s3.access-key-id": weed.KEYS["access_key_id"],
        "s3.secret-access-key": weed.KEYS["secret_access_key"],
        "s3.region": "us-east-1",
    }


def make_table(folder: Path, **values: Any) -> tuple[Table, TableConfig]:
    config = make_config(folder, **values)
    return create_table(open_catalog(config), config), config


def reload(config: TableConfig) -> Table:
    return load_table(open_catalog(config), config)


def read_rows(config: TableConfig, *columns: str) -> list[dict[str, Any]]:
    """Return the rows of a table, by sequence."""
    rows = reload(config).scan(selected_fields=columns or ("*",)).to_arrow().to_pylist()
    return sorted(rows, key=lambda row: row.get("seq", 0))


def read_seqs(config: TableConfig) -> list[int]:
    return [row["seq"] for row in read_rows(config, "seq")]


def make_rows(seqs: Iterable[int], time_us: int = T0_US) -> pa.RecordBatch:
    """Return messages of a stream, a microsecond apart."""
    numbers = list(seqs)
    columns = [
        pa.array(numbers, pa.int64()),
        pa.array([time_us + seq for seq in numbers], pa.int64()).cast(STREAM_SCHEMA.field("time").type),
        pa.array([f"orders.{seq % 3}" for seq in numbers]),
        pa.array(
            [[("Key", [str(seq)])] if seq % 2 else None for seq in numbers],
            STREAM_SCHEMA.field("headers").type,
        ),
        pa.array([b"payload %d" % seq for seq in numbers], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=STREAM_SCHEMA)


def make_commit(
    table: Table, before: TablePosition | None, seqs: Iterable[int], commit_id: str
) -> TableCommit:
    """Write the rows of these sequences to files, and return their commit."""
    numbers = list(seqs)
    writer = DataFileWriter(table, make_config(Path("unused")), commit_id)
    writer.add(make_rows(numbers))
    return TableCommit(writer.finish(), before, TablePosition(numbers[-1], "ORDERS", "1", commit_id))


def add_snapshot(table: Table) -> None:
    """Append nothing, as another program."""
    table.append(pa.Table.from_batches([make_rows([])]))


class FaultyCatalog:
    """Replaces `commit_table` of a kind of catalogs: each commit takes the next fault, and succeeds when none is left."""

    def __init__(self, monkeypatch: Any, kind: type[Catalog] = SqlCatalog) -> None:
        self._commit = kind.commit_table
        self.faults: list[Callable[[Callable[[], Any]], Any]] = []
        self.calls = 0
        monkeypatch.setattr(kind, "commit_table", lambda *arguments: self._on_commit(*arguments))

    def _on_commit(self, *arguments: Any) -> Any:
        self.calls += 1
        if not self.faults:
            return self._commit(*arguments)
        return self.faults.pop(0)(lambda: self._commit(*arguments))


def lose_request(commit: Callable[[], Any]) -> Any:
    """Fail before the catalog gets the commit."""
    raise ConnectionError("the request was lost")


def lose_response(commit: Callable[[], Any]) -> Any:
    """Fail after the catalog committed."""
    commit()
    raise ConnectionError("the response was lost")
