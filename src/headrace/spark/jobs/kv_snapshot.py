"""Writes a bucket to a table, and replaces the previous table only when the new one is complete."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from headrace.spark.jobs.job_result import OptionMap, Progress, Summary, no_progress

#: Formats that consist of plain files: the replacement is written beside the old table and then takes its place.
_FILE_FORMATS = ("parquet", "orc", "json", "csv", "avro")


def snapshot_bucket(
    spark: SparkSession,
    source: OptionMap,
    target: str,
    *,
    table_format: str = "parquet",
    history: bool = False,
    progress: Progress = no_progress,
) -> Summary:
    """Write a bucket's live keys (or its whole history) to a table, replacing the previous one."""
    mode = "history" if history else "table"
    df = spark.read.format("headrace_kv").options(**{**source, "mode": mode}).load()
    replace_table(df.coalesce(1), target, table_format)
    rows = spark.read.format(table_format).load(target).count()
    progress(f"{rows} rows in {target}")
    return Summary(rows)


def replace_table(df: DataFrame, target: str, table_format: str) -> None:
    """Write a complete table, then replace the old one.

    Table formats do that themselves. Files in a local folder are written beside the old ones and renamed; files in an
    object store are overwritten by Spark, which is not atomic.
    """
    is_local = "://" not in target
    if table_format not in _FILE_FORMATS or not is_local:
        df.write.format(table_format).mode("overwrite").save(target)
        return
    target_path = Path(target)
    new_path, old_path = (
        target_path.parent / f"_{target_path.name}.{word}-{uuid.uuid4().hex[:8]}" for word in ("new", "old")
    )
    try:
        df.write.format(table_format).save(str(new_path))
        _swap_folders(new_path, target_path, old_path)
    finally:
        shutil.rmtree(new_path, ignore_errors=True)


def _swap_folders(new_path: Path, target_path: Path, old_path: Path) -> None:
    """Replace one folder by another; the old one is removed only when that has worked, and restored if not."""
    try:
        if target_path.exists():
            target_path.rename(old_path)
        new_path.rename(target_path)
    finally:
        if old_path.exists() and not target_path.exists():
            old_path.rename(target_path)
        shutil.rmtree(old_path, ignore_errors=True)
