"""A landed table and the live tail behind it, as one frame.

Owns where the two meet. Invariant: every message once: the table counts up to the sequence that is recorded as landed,
whatever a landing adds meanwhile, and the stream from there on. A tail that is not of the stream that was landed, or that
begins later than the table ends, is refused.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from headrace.spark.doors import door_of
from headrace.spark.jobs.landing import default_checkpoint
from headrace.spark.jobs.ranges import landed_ranges, ranges_folder
from headrace.spark.jobs.summaries import Options
from headrace.spark.offsets import DataLoss
from headrace.spark.options import source_options


def united(
    spark: SparkSession,
    source: Options,
    target: str,
    *,
    table_format: str = "parquet",
    checkpoint: str = "",
    is_table: bool = False,
) -> DataFrame:
    """A landed table and what the stream has behind it; `failOnDataLoss=false` in `source` accepts a gap."""
    landed = spark.read.table(target) if is_table else spark.read.format(table_format).load(target)
    folder = ranges_folder(target, checkpoint or default_checkpoint(target), is_table=is_table)
    ranges = landed_ranges(spark, folder)
    if ranges:
        end, identity = ranges[-1].end_seq, ranges[-1].identity
    else:
        end, identity = (landed.agg(f.max("seq")).collect()[0][0] or 0) + 1, ""
    _check(source, end, identity)
    tail = spark.read.format("headrace").options(**{**source, "starting": end}).load()
    return landed.where(f.col("seq") < end).select(*tail.columns).unionByName(tail)


def _check(source: Options, end: int, identity: str) -> None:
    options = source_options({name: str(value) for name, value in source.items()})
    facts = door_of(options).facts()
    if identity and identity != facts.identity:
        raise DataLoss(
            f"stream {facts.name!r} is not the one that was landed: it was deleted and created again; "
            "land it into another table"
        )
    if facts.first_seq > end and options.fail_on_data_loss:
        raise DataLoss(
            f"the table ends at sequence {end - 1} and stream {facts.name!r} begins at {facts.first_seq}: what was "
            "between was removed before it was landed. To unite them nevertheless set failOnDataLoss=false"
        )
