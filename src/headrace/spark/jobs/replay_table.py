"""Replay: publishes the rows of a table to a stream, in order, each once."""

from __future__ import annotations

import hashlib

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from headrace.reader.options import OptionError
from headrace.spark.jobs.job_result import OptionMap, Progress, Summary, no_progress


def replay(
    spark: SparkSession,
    origin: str,
    sink: OptionMap,
    *,
    table_format: str = "parquet",
    where: str = "true",
    subject: str = "subject",
    is_table: bool = False,
    progress: Progress = no_progress,
) -> Summary:
    """Publish the rows of a table to a stream, in order; run again, it completes what is missing.

    A table that has grown since a complete replay is an error: select the new rows with `where`.
    `where` selects rows and `subject` gives their subject, both in SQL: "replace(subject, 'orders.', 'again.')".
    """
    table = spark.read.table(origin) if is_table else spark.read.format(table_format).load(origin)
    df = table.where(where).withColumn("subject", f.expr(subject))
    order = next((name for name in ("seq", "revision", "time") if name in df.columns), "")
    if not order or "data" not in df.columns:
        raise OptionError(f"{origin} has columns {', '.join(df.columns)}; a replay needs data and seq")
    send_columns = [name for name in ("subject", "data", "headers") if name in df.columns]
    rows = df.count()
    progress(f"{rows} rows to send")
    # One task, because several would publish concurrently and mix up the order.
    ordered_df = df.coalesce(1).sortWithinPartitions(order).select(*send_columns)
    name = hashlib.sha256(f"{origin}|{where}|{subject}|{sink.get('stream')}".encode()).hexdigest()[:24]
    ordered_df.write.format("headrace").mode("append").options(**{"writeId": f"replay-{name}", **sink}).save()
    return Summary(rows)
