"""Landing: writes a stream, or the changes of a bucket, to a table, exactly once.

Owns the query and its layout. Invariant: an epoch is in the table once, whatever is killed and when; Spark's checkpoint
and the sink's own log ensure that. The number of files is small: each epoch writes at most `files` files per folder,
however many tasks read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from headrace.reader.open_source import open_source
from headrace.reader.options import EARLIEST, OptionError, parse_read_options, require_one_stream
from headrace.spark.jobs.job_paths import sibling_path
from headrace.spark.jobs.job_result import OptionMap, Progress, Summary, no_progress
from headrace.spark.jobs.landing_log import has_started, ranges_folder, record_epochs
from headrace.spark.offsets import resolve_bound

#: How a landed table is partitioned into folders: by day, by the subject's first token, or by subject.
LAYOUTS = {"none": "", "day": "day", "topic": "topic", "subject": "subject_name"}
_RECORD_INTERVAL_S = 60.0


@dataclass(frozen=True)
class Landing:
    """What is landed where, and how."""

    source: OptionMap
    target: str
    checkpoint: str
    layout: str = "day"
    table_format: str = "parquet"
    files: int = 1
    kind: str = "headrace"
    is_table: bool = False
    every: str = ""
    options: OptionMap = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise OptionError(f"layout {self.layout!r} is not one of {', '.join(LAYOUTS)}")
        if self.kind not in ("headrace", "jetstream", "headrace_kv"):
            raise OptionError(f"kind {self.kind!r} is neither headrace nor headrace_kv")

    @property
    def ranges_path(self) -> str:
        return ranges_folder(self.target, self.checkpoint, is_table=self.is_table)


def land(
    spark: SparkSession,
    source: OptionMap,
    target: str,
    *,
    checkpoint: str = "",
    layout: str = "day",
    table_format: str = "parquet",
    files: int = 1,
    kind: str = "headrace",
    is_table: bool = False,
    options: OptionMap | None = None,
    progress: Progress = no_progress,
) -> Summary:
    """Bring a table up to date with a stream (or, with kind `headrace_kv`, with a bucket's changes), exactly once.

    `target` is a folder, or with `is_table` the name of a table in the session's catalog. `files` is the number of
    files per folder and epoch; `maxMessagesPerTrigger` of the source determines their size. `options` go to the writer.
    """
    landing = Landing(
        source,
        target,
        checkpoint or default_checkpoint(target),
        layout,
        table_format,
        files,
        kind,
        is_table,
        options=options or {},
    )
    start_seq = _find_start_seq(spark, landing)
    query = _start_query(spark, landing)
    return run_landing(spark, query, landing, start_seq, progress)


def start_landing(spark: SparkSession, source: OptionMap, target: str, **settings: Any) -> StreamingQuery:
    """Start the query of `land`; with `every` ("1 minute") it does not end. The next `land` records the ranges."""
    settings.setdefault("checkpoint", default_checkpoint(target))
    return _start_query(spark, Landing(source, target, **settings))


def run_forever(
    spark: SparkSession, landing: Landing, progress: Progress = no_progress, stop_s: float | None = None
) -> Summary:
    """Land without end, or for `stop_s` seconds, and record ranges on the way."""
    start_seq = _find_start_seq(spark, landing)
    return run_landing(spark, _start_query(spark, landing), landing, start_seq, progress, stop_s)


def run_landing(
    spark: SparkSession,
    query: StreamingQuery,
    landing: Landing,
    start_seq: int,
    progress: Progress,
    stop_s: float | None = None,
) -> Summary:
    """Follow a query to its end, report its epochs, and record what it landed."""
    last_epoch, rows, batches = -1, 0, 0
    started = recorded_s = time.monotonic()
    ended = False
    while not ended:
        ended = bool(query.awaitTermination(1))
        for each in query.recentProgress:
            if each.batchId > last_epoch and each.numInputRows:
                last_epoch, rows, batches = each.batchId, rows + each.numInputRows, batches + 1
                progress(
                    f"epoch {each.batchId}: {each.numInputRows} rows, {each.processedRowsPerSecond:,.0f} rows/s"
                )
        if not ended and time.monotonic() - recorded_s > _RECORD_INTERVAL_S:
            record_epochs(spark, landing.ranges_path, landing.checkpoint, start_seq)
            recorded_s = time.monotonic()
        if not ended and stop_s is not None and time.monotonic() - started > stop_s:
            query.stop()
    ranges = record_epochs(spark, landing.ranges_path, landing.checkpoint, start_seq)
    return Summary(rows, batches, ranges[-1].end_seq - 1 if ranges else 0)


def _start_query(spark: SparkSession, landing: Landing) -> StreamingQuery:
    source = {"starting": "earliest", **landing.source}
    df = spark.readStream.format(landing.kind).options(**source).load()
    writer = _apply_layout(df, landing).writeStream.format(landing.table_format).outputMode("append")
    if landing.layout != "none":
        writer = writer.partitionBy(LAYOUTS[landing.layout])
    writer = writer.option("checkpointLocation", landing.checkpoint).options(**landing.options)
    trigger: dict[str, Any] = {"processingTime": landing.every} if landing.every else {"availableNow": True}
    writer = writer.trigger(**trigger)
    return writer.toTable(landing.target) if landing.is_table else writer.start(landing.target)


def _apply_layout(df: DataFrame, landing: Landing) -> DataFrame:
    """Add the column that names a row's folder, and repartition so that each folder gets few files."""
    subject = "subject" if "subject" in df.columns else "key"
    layout_columns = {
        "day": f.to_date("time"),
        "topic": f.substring_index(subject, ".", 1),
        "subject": f.col(subject),
    }
    if landing.layout not in layout_columns:
        return df.coalesce(landing.files)
    column = LAYOUTS[landing.layout]
    df = df.withColumn(column, layout_columns[landing.layout])
    if landing.layout == "day":
        return df.coalesce(landing.files)  # nearly all rows of an epoch are of one day
    # Each folder's rows go to one task (or a few), and different folders to different tasks.
    if landing.files == 1:
        return df.repartition(column)
    return df.repartition(f.col(column), f.col(_get_sequence_column(df)) % landing.files)


def _get_sequence_column(df: DataFrame) -> str:
    return "seq" if "seq" in df.columns else "revision"


def _find_start_seq(spark: SparkSession, landing: Landing) -> int:
    """Return where the first epoch begins; 0 if a landing has started already, or if that is unknown."""
    if landing.kind == "headrace_kv" or has_started(spark, landing.checkpoint):
        return 0
    raw_options = {name: str(value) for name, value in landing.source.items()}
    options = require_one_stream(parse_read_options(raw_options), "a landing")
    read_source = open_source(options)
    stream_info = read_source.get_info()
    return max(
        resolve_bound(options.starting or EARLIEST, stream_info, read_source.find_seq_at_time),
        stream_info.first_seq,
    )


def default_checkpoint(target: str) -> str:
    """Return the default checkpoint folder: beside the table, under a name that table readers ignore."""
    return sibling_path(target, "_{}.checkpoint")
