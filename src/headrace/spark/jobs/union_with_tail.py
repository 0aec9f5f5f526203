"""Unions a landed table and the live tail of its stream in one DataFrame.

Owns the boundary between the two. Invariant: every message appears once: the table counts up to the sequence recorded
as landed, whatever a landing adds meanwhile, and the stream counts from there on. A tail that is not of the landed
stream, or that begins after the end of the table, is refused.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from headrace.errors import DataLoss
from headrace.reader.fingerprint import Fingerprint, has_same_content
from headrace.reader.open_source import open_source
from headrace.reader.options import parse_read_options, require_one_stream
from headrace.reader.read_source import ReadSource
from headrace.reader.stream_admin import StreamInfo
from headrace.spark.jobs.job_result import OptionMap
from headrace.spark.jobs.landing import default_checkpoint
from headrace.spark.jobs.landing_log import Landed, landed_ranges, ranges_folder


def read_with_tail(
    spark: SparkSession,
    source: OptionMap,
    target: str,
    *,
    table_format: str = "parquet",
    checkpoint: str = "",
    is_table: bool = False,
) -> DataFrame:
    """Read a landed table and the rest of the stream after it; `failOnDataLoss=false` in `source` accepts a gap."""
    table = spark.read.table(target) if is_table else spark.read.format(table_format).load(target)
    folder = ranges_folder(target, checkpoint or default_checkpoint(target), is_table=is_table)
    ranges = landed_ranges(spark, folder)
    last = ranges[-1] if ranges else None
    end = last.end_seq if last else (table.agg(f.max("seq")).collect()[0][0] or 0) + 1
    _check_continuity(source, end, last)
    tail = spark.read.format("headrace").options(**{**source, "starting": end}).load()
    return table.where(f.col("seq") < end).select(*tail.columns).unionByName(tail)


def _check_continuity(source: OptionMap, end: int, last: Landed | None) -> None:
    raw_options = {name: str(value) for name, value in source.items()}
    options = require_one_stream(parse_read_options(raw_options), "read_with_tail")
    read_source = open_source(options)
    stream_info = read_source.get_info()
    if last is not None and not _is_same_stream(read_source, stream_info, last):
        raise DataLoss(
            f"stream {stream_info.name!r} is not the one that was landed: it was deleted and created again; "
            "land it into another table"
        )
    if stream_info.first_seq > end and options.fail_on_data_loss:
        raise DataLoss(
            f"the table ends at sequence {end - 1} and stream {stream_info.name!r} starts at {stream_info.first_seq}: the "
            "messages in between were removed before they were landed. To read without them, set failOnDataLoss=false"
        )


def _is_same_stream(read_source: ReadSource, stream_info: StreamInfo, last: Landed) -> bool:
    """Return whether the stream is the landed one, or a copy of it with the same messages."""
    if last.identity == stream_info.identity:
        return True
    anchors = [Fingerprint.parse(text) for text in (last.anchors or "").split()]
    if max((each.seq for each in anchors), default=0) < last.end_seq - 1:
        # Between the last anchor and the end of the table a copy may have other messages.
        return False
    return bool(has_same_content(anchors, read_source.find_message))
