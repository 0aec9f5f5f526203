"""A table of `headrace table` and the tail of its stream in Spark.

Spark reads the table's data files as Parquet here, with the table's properties; `bench/table_spark.py` does the same with
Iceberg's runtime.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyiceberg.types import LongType
from pyspark.sql import SparkSession

from headrace.errors import DataLoss, TableError
from headrace.spark import jobs
from headrace.tables.worker import TableWorker
from spark.conftest import Broker, needs_read_limits
from support.tables import make_table, reload


class SparkTable:
    """A table that a worker writes, and how Spark sees it."""

    def __init__(self, ours: Broker, spark: SparkSession, name: str, folder: Path, **values: Any) -> None:
        self.spark, self.name = spark, f"tail_{name}"
        _, self.config = make_table(folder, name=name, partition_by=(), **values)
        self._connection = {"servers": ours.url}
        self._worker = TableWorker(name, self.config, self._connection)

    def declare(self, **values: Any) -> None:
        """Write the table with these settings from now on."""
        self.config = msgspec.structs.replace(self.config, **values)
        self._worker.close()
        self._worker = TableWorker(self._worker.name, self.config, self._connection)

    def land(self) -> str:
        """Write what the stream has; return the name of the table in Spark."""
        self._worker.land()
        table = reload(self.config)
        properties = {key: value for key, value in table.properties.items() if key.startswith("headrace.")}
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        self.spark.sql(f"DROP TABLE IF EXISTS {self.name}")
        self.spark.sql(
            f"CREATE TABLE {self.name} USING parquet LOCATION '{table.location()}/data' TBLPROPERTIES ({listed})"
        )
        return self.name

    def close(self) -> None:
        self._worker.close()
        self.spark.sql(f"DROP TABLE IF EXISTS {self.name}")


@needs_read_limits
def test_rows_up_to_now_with_declared_columns(
    ours: Broker, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    ours.create(name)
    declared = {"schema": {"id": "long", "total": "decimal(10, 2)"}, "subject_columns": {"kind": 1}}
    table = SparkTable(ours, spark, name, tmp_path, payload="json", **declared)
    live = {"servers": ours.url, "stream": name}
    try:
        publish(ours, name, name, [b'{"id": 1, "total": 1.5}', b'{"id": 2, "total": 2.5}'])
        target = table.land()
        publish(ours, name, name, [b'{"id": 3, "total": 3.25}', b'{"id": "x"}', b"none"])
        rows = jobs.read_with_tail(spark, live, target, is_table=True).orderBy("seq").collect()
        assert [row.seq for row in rows] == [1, 2, 3, 4, 5]
        assert [row.id for row in rows] == [1, 2, 3, None, None]
        assert [str(row.total) for row in rows[:3]] == ["1.50", "2.50", "3.25"]
        assert {row.kind for row in rows} == {name}
        assert [row._error is None for row in rows] == [True, True, True, False, False]
        target = table.land()
        assert jobs.read_with_tail(spark, live, target, is_table=True).count() == 5
        ours.api(f"STREAM.DELETE.{name}")
        ours.create(name)
        with pytest.raises(DataLoss, match="deleted and created again"):
            jobs.read_with_tail(spark, live, target, is_table=True)
    finally:
        table.close()


def test_a_token_that_does_not_fit_a_column_is_null(
    ours: Broker, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    ours.create(name)
    table = SparkTable(ours, spark, name, tmp_path)
    with reload(table.config).update_schema() as update:
        update.add_column("kind", LongType())
    table.declare(subject_columns={"kind": 1})
    try:
        publish(ours, name, name, [b""])
        target = table.land()
        publish(ours, name, name, [b""])
        live = {"servers": ours.url, "stream": name}
        rows = jobs.read_with_tail(spark, live, target, is_table=True).orderBy("seq").collect()
        assert [(row.seq, row.kind) for row in rows] == [(1, None), (2, None)]
    finally:
        table.close()


def test_a_table_of_a_bucket_is_refused(ours: Broker, spark: SparkSession, name: str, tmp_path: Path) -> None:
    ours.create(f"KV_{name}", subjects=[f"$KV.{name}.>"])
    table = SparkTable(ours, spark, name, tmp_path, bucket=name, stream=f"KV_{name}")
    try:
        publish(ours, f"KV_{name}", f"$KV.{name}", [b"1"])
        with pytest.raises(TableError, match="has the changes of a bucket"):
            jobs.read_with_tail(
                spark, {"servers": ours.url, "stream": f"KV_{name}"}, table.land(), is_table=True
            )
    finally:
        table.close()


def publish(ours: Broker, stream: str, prefix: str, payloads: list[bytes]) -> None:
    ours.publish(stream, ((f"{prefix}.{number}", b"", payload) for number, payload in enumerate(payloads)))
