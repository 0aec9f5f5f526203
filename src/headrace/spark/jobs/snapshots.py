"""A bucket becomes a table, in place of the one that was there, when it is whole."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from headrace.spark.jobs.summaries import Options, Progress, Summary, silent

#: Formats that are nothing but files: what replaces them is written beside and then takes their place.
_FILES = ("parquet", "orc", "json", "csv", "avro")


def snapshot_bucket(
    spark: SparkSession,
    source: Options,
    target: str,
    *,
    table_format: str = "parquet",
    history: bool = False,
    progress: Progress = silent,
) -> Summary:
    """Write a bucket's live keys (or its whole history) as a table, in place of the one that was there."""
    mode = "history" if history else "table"
    frame = spark.read.format("headrace_kv").options(**{**source, "mode": mode}).load()
    replace_table(frame.coalesce(1), target, table_format)
    rows = spark.read.format(table_format).load(target).count()
    progress(f"{rows} rows in {target}")
    return Summary(rows)


def replace_table(frame: DataFrame, target: str, table_format: str) -> None:
    """Write a table whole, then let it take the place of the old one.

    Table formats do that themselves. Files of a folder of this machine are written beside and renamed; those of an
    object store are overwritten by Spark, which is not one step.
    """
    is_local = "://" not in target
    if table_format not in _FILES or not is_local:
        frame.write.format(table_format).mode("overwrite").save(target)
        return
    place = Path(target)
    made, old = (place.parent / f"_{place.name}.{word}-{uuid.uuid4().hex[:8]}" for word in ("new", "old"))
    try:
        frame.write.format(table_format).save(str(made))
        _take_place(made, place, old)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _take_place(made: Path, place: Path, old: Path) -> None:
    """Let one folder take the place of another, which is removed only when that has worked, and put back when not."""
    try:
        if place.exists():
            place.rename(old)
        made.rename(place)
    finally:
        if old.exists() and not place.exists():
            old.rename(place)
        shutil.rmtree(old, ignore_errors=True)
