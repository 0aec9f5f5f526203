"""Compacts an Iceberg table: merges its small files with Iceberg's own procedures.

Owns which procedures run, and in which order. Invariant: rows, properties and snapshots with a position stay as they
are, so that `headrace table run` continues beside it: a commit of either that loses the race is repeated. Needs Iceberg's
runtime for Spark, and a catalog with the table in the session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from headrace.errors import TableError
from headrace.spark.jobs.job_result import Progress, no_progress

FILE_BYTES = 128 << 20


@dataclass(frozen=True)
class CompactSummary:
    """What a compaction did."""

    rewritten_files: int
    added_files: int
    rewritten_bytes: int
    rewritten_manifests: int


def compact(
    spark: SparkSession,
    table: str,
    *,
    file_bytes: int = FILE_BYTES,
    min_files: int = 5,
    where: str = "",
    sort_order: str = "",
    progress: Progress = no_progress,
) -> CompactSummary:
    """Merge the small files of a table, such as `lake.shop.orders`, in partitions that have at least `min_files` of them.

    `where` limits it to some rows, such as `time >= TIMESTAMP '2026-11-18 00:00:00 UTC'`; `sort_order` sorts the files,
    such as `subject, seq`.
    """
    catalog, separator, name = table.partition(".")
    if not separator:
        raise TableError(f"table {table!r} has no catalog: write lake.shop.orders")
    options = {
        "target-file-size-bytes": file_bytes,
        "min-input-files": min_files,
        # A worker commits all the time: partial progress loses less work.
        "partial-progress.enabled": "true",
    }
    arguments = {"table": _quote(name), "options": _make_map(options)}
    if sort_order:
        arguments |= {"strategy": _quote("sort"), "sort_order": _quote(sort_order)}
    if where:
        arguments["where"] = _quote(where)
    files = _call(spark, catalog, "rewrite_data_files", arguments)
    progress(f"{files['rewritten_data_files_count']} files rewritten to {files['added_data_files_count']}")
    manifests = _call(spark, catalog, "rewrite_manifests", {"table": _quote(name)})
    progress(f"{manifests['rewritten_manifests_count']} manifests rewritten")
    return CompactSummary(
        files["rewritten_data_files_count"],
        files["added_data_files_count"],
        files["rewritten_bytes_count"],
        manifests["rewritten_manifests_count"],
    )


def _call(spark: SparkSession, catalog: str, procedure: str, arguments: dict[str, str]) -> dict[str, Any]:
    """Call a procedure of Iceberg; return its result."""
    text = ", ".join(f"{name} => {value}" for name, value in arguments.items())
    row = spark.sql(f"CALL `{catalog}`.system.{procedure}({text})").collect()[0]
    return dict(row.asDict())


def _make_map(options: dict[str, Any]) -> str:
    return f"map({', '.join(_quote(str(each)) for pair in options.items() for each in pair)})"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
