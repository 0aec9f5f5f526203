"""Ready-made pipelines: land a stream as a table, unite a landed table with its live tail, replay, snapshot a bucket.

Owns the jobs, not their arguments on a command line. Invariant: each can be ended at any moment and started again: landing
goes on from its checkpoint, a replay goes on where its records end, a snapshot replaces the last one when it is whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from headrace.spark.options import OptionError

Options = Mapping[str, Any]
#: How a landed table is divided into folders: by the day of a message, by its subject's first token, or by its subject.
LAYOUTS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "none": lambda frame: frame,
    "day": lambda frame: frame.withColumn("day", f.to_date("time")),
    "topic": lambda frame: frame.withColumn("topic", f.substring_index("subject", ".", 1)),
    "subject": lambda frame: frame.withColumn("subject_name", f.col("subject")),
}
_FOLDERS = {"none": [], "day": ["day"], "topic": ["topic"], "subject": ["subject_name"]}


@dataclass(frozen=True)
class Summary:
    """What a job did."""

    rows: int
    batches: int = 1
    last_seq: int = 0


def land(
    spark: SparkSession,
    source: Options,
    target: str,
    *,
    checkpoint: str,
    layout: str = "day",
    table_format: str = "parquet",
    files: int = 1,
    kind: str = "headrace",
) -> Summary:
    """Bring a table up to date with a stream (or, with kind `headrace_kv`, with a bucket's changes), exactly once.

    `files` is how many files a batch makes in each folder; `maxMessagesPerTrigger` of the source says how large they are.
    """
    query = start_landing(
        spark,
        source,
        target,
        checkpoint=checkpoint,
        layout=layout,
        table_format=table_format,
        files=files,
        kind=kind,
    )
    query.awaitTermination()
    batches = [progress for progress in query.recentProgress if progress.numInputRows]
    return Summary(sum(each.numInputRows for each in batches), len(batches), _last_seq(query))


def start_landing(
    spark: SparkSession,
    source: Options,
    target: str,
    *,
    checkpoint: str,
    layout: str = "day",
    table_format: str = "parquet",
    files: int = 1,
    kind: str = "headrace",
    every: str = "",
) -> StreamingQuery:
    """The query behind `land`; with `every` ("1 minute") it does not end."""
    if layout not in LAYOUTS:
        raise OptionError(f"layout {layout!r} is none of {', '.join(LAYOUTS)}")
    frame = spark.readStream.format(kind).options(**{"starting": "earliest", **source}).load()
    writer = LAYOUTS[layout](frame.coalesce(files)).writeStream.format(table_format).outputMode("append")
    if _FOLDERS[layout]:
        writer = writer.partitionBy(*_FOLDERS[layout])
    writer = writer.option("checkpointLocation", checkpoint)
    trigger: dict[str, Any] = {"processingTime": every} if every else {"availableNow": True}
    return writer.trigger(**trigger).start(target)


def united(spark: SparkSession, source: Options, target: str, *, table_format: str = "parquet") -> DataFrame:
    """A landed table and what the stream has behind it, as one."""
    landed = spark.read.format(table_format).load(target)
    newest = landed.agg(f.max("seq")).collect()[0][0] or 0
    tail = spark.read.format("headrace").options(**{**source, "starting": newest + 1}).load()
    return landed.select(*tail.columns).unionByName(tail)


def replay(
    spark: SparkSession, origin: str, sink: Options, *, table_format: str = "parquet", where: str = "true"
) -> Summary:
    """Send the rows of a table into a stream, in their order; begun again it adds only what is missing."""
    frame = spark.read.format(table_format).load(origin).where(where)
    known = [name for name in ("subject", "data", "headers") if name in frame.columns]
    # One task, because the order of a stream is the order of its writers.
    rows = frame.coalesce(1).sortWithinPartitions("seq").select(*known)
    name = hashlib.sha256(f"{origin}|{where}|{sink.get('stream')}".encode()).hexdigest()[:24]
    writer = rows.write.format("headrace").mode("append")
    writer.options(**{"writeId": f"replay-{name}", **sink}).save()
    return Summary(frame.count())


def snapshot_bucket(
    spark: SparkSession, source: Options, target: str, *, table_format: str = "parquet", history: bool = False
) -> Summary:
    """Write a bucket's live keys (or its whole history) as a table, in place of the one that was there."""
    mode = "history" if history else "table"
    frame = spark.read.format("headrace_kv").options(**{**source, "mode": mode}).load()
    frame.coalesce(1).write.format(table_format).mode("overwrite").save(target)
    return Summary(spark.read.format(table_format).load(target).count())


def default_checkpoint(target: str) -> str:
    """Beside the table, under a name that table readers ignore."""
    path = Path(target)
    return str(path.parent / f"_{path.name}.checkpoint")


def _last_seq(query: StreamingQuery) -> int:
    """The last sequence that a landing has covered."""
    progress = query.lastProgress
    if progress is None or not progress.sources or not progress.sources[0].endOffset:
        return 0
    return int(json.loads(progress.sources[0].endOffset)["next_seq"]) - 1
