"""Unions a landed table and the live tail of its stream in one DataFrame.

Owns the boundary between the two. Invariant: every message appears once: the table counts up to the sequence recorded
as landed, whatever a landing adds meanwhile, and the stream counts from there on. A tail that is not of the landed
stream, or that begins after the end of the table, is refused. Tables of `jobs.land` have a log of what was landed; those of
`headrace table` record it, and how their columns are made, in their properties.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from headrace.errors import DataLoss
from headrace.reader.fingerprint import Fingerprint, has_same_content
from headrace.reader.landed_table import (
    ERROR_COLUMN,
    LandedTable,
    check_continuation,
    parse_landed_table,
)
from headrace.reader.open_source import open_source
from headrace.reader.options import ReadOptions, parse_read_options, require_one_stream
from headrace.reader.read_source import ReadSource
from headrace.reader.stream_admin import StreamInfo
from headrace.spark.jobs.job_result import OptionMap
from headrace.spark.jobs.landing import default_checkpoint
from headrace.spark.jobs.landing_log import Landed, landed_ranges, ranges_folder

#: Column of the tail with the parsed payload, and its field for payloads that do not fit.
_CORRUPT = "_headrace_payload"


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
    if is_table and (landed := parse_landed_table(_read_properties(spark, target), target)) is not None:
        return _read_landed_table(spark, source, target, landed)
    table = spark.read.table(target) if is_table else spark.read.format(table_format).load(target)
    folder = ranges_folder(target, checkpoint or default_checkpoint(target), is_table=is_table)
    ranges = landed_ranges(spark, folder)
    last = ranges[-1] if ranges else None
    end = last.end_seq if last else (table.agg(f.max("seq")).collect()[0][0] or 0) + 1
    _check_continuity(source, end, last)
    tail = spark.read.format("headrace").options(**{**source, "starting": end}).load()
    return table.where(f.col("seq") < end).select(*tail.columns).unionByName(tail)


def _read_properties(spark: SparkSession, target: str) -> dict[str, str]:
    return {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {target}").collect()}


def _read_landed_table(spark: SparkSession, source: OptionMap, target: str, landed: LandedTable) -> DataFrame:
    """Read a table of `headrace table`, and make its columns of the tail."""
    options = _parse_options(source)
    info = open_source(options).get_info()
    check_continuation(landed, info, target, fail_on_data_loss=options.fail_on_data_loss)
    table = spark.read.table(target)
    tail = spark.read.format("headrace").options(**{**source, "starting": landed.seq + 1}).load()
    declared = [field for field in table.schema.fields if field.name in landed.columns.json]
    if declared:
        corrupt = StructField(_CORRUPT, StringType())
        payload = f.from_json(
            f.col("data").cast("string"),
            StructType([*declared, corrupt]),
            {"columnNameOfCorruptRecord": _CORRUPT},
        )
        tail = tail.withColumn(_CORRUPT, payload)
        wrong = f.when(
            f.col(f"{_CORRUPT}.{_CORRUPT}").isNotNull(), f.lit("the payload does not fit the schema")
        )
        tail = tail.withColumn(ERROR_COLUMN, wrong)
    made = {field.name: f.col(f"{_CORRUPT}.{field.name}") for field in declared}
    for name, token in landed.columns.subject.items():
        # The table may have another type than string.
        text = f.get(f.split("subject", r"\."), f.lit(token - 1))
        made[name] = text.try_cast(table.schema[name].dataType) if name in table.columns else text
    columns = []
    for field in table.schema.fields:
        known = f.col(field.name) if field.name in tail.columns else f.lit(None)
        columns.append(made.get(field.name, known).cast(field.dataType).alias(field.name))
    return table.where(f.col("seq") <= landed.seq).unionByName(tail.select(*columns))


def _parse_options(source: OptionMap) -> ReadOptions:
    raw_options = {name: str(value) for name, value in source.items()}
    return require_one_stream(parse_read_options(raw_options), "read_with_tail")


def _check_continuity(source: OptionMap, end: int, last: Landed | None) -> None:
    options = _parse_options(source)
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
