"""Audits claims: joins every claim's events with its object, as a table, as figures and as a report.

Owns the definition of a claim's lifetime and of a leak. Invariants: it only reads; each claim is in the table once;
times are the server's, sizes the store's if the object exists. `audit_report` writes the report.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from headrace.claims.config import ClaimConfig
from headrace.claims.reference import TIME_END
from headrace.spark.jobs.audit_report import compute_figures, render_html
from headrace.spark.jobs.job_paths import join_path, write_text
from headrace.spark.jobs.job_result import OptionMap, Progress, no_progress
from headrace.spark.jobs.kv_snapshot import replace_table
from headrace.spark.jobs.object_inventory import list_objects as list_objects

AUDIT_STREAM = "CLAIMS_AUDIT"
#: Dollars per GB and month: what large vendors charge for their standard class.
PRICE = 0.023
_GB_MONTH = 1e9 * 30 * 86400
_END_EVENTS = ("deleted", "expired", "collected")
#: Status of a claim: ended; present as it should be; present although it should be gone; gone without a recorded reason.
ENDED, LIVE = "ended", "live"
LEAKS = ("overdue", "undeleted", "orphan")
VANISHED = "vanished"


@dataclass(frozen=True)
class AuditSummary:
    """Totals over all namespaces."""

    claims: int
    live: int
    ended: int
    leaks: int
    vanished: int
    leaked_bytes: int
    live_bytes: int
    lifetime_median_s: float
    lifetime_p99_s: float
    cost: float
    seconds: float
    table: str
    report: str


def claims_audit(
    spark: SparkSession,
    source: OptionMap,
    target: str,
    *,
    configs: Sequence[ClaimConfig],
    inventory: str = "",
    price: float = PRICE,
    progress: Progress = no_progress,
) -> AuditSummary:
    """Write the table `claims`, `summary.json` and `report.html` into `target`, replacing what is there.

    `target` is a folder of this machine or of any file system that Spark knows.

    `source` has the options for reading the audit stream (`servers`, and `path` if its files can be reached).
    `inventory` is an existing table of objects; without it the stores of the configurations are listed. `price` is per
    GB (1e9 bytes) and month.
    """
    started = time.perf_counter()
    table = join_path(target, "claims")
    lifetimes = claim_lifetimes(spark, source, configs, inventory=inventory, price=price)
    replace_table(lifetimes, table, "parquet")
    progress(f"wrote the lifetimes of claims to {table}")
    figures = compute_figures(spark.read.parquet(table))
    progress(f"{figures.totals['claims']} claims summarized")
    report = join_path(target, "report.html")
    write_text(spark, report, render_html(figures, price))
    seconds = time.perf_counter() - started
    summary = AuditSummary(**figures.totals, seconds=seconds, table=table, report=report)
    write_text(spark, join_path(target, "summary.json"), json.dumps(asdict(summary), indent=1))
    return summary


def claim_lifetimes(
    spark: SparkSession,
    source: OptionMap,
    configs: Sequence[ClaimConfig],
    *,
    inventory: str = "",
    price: float = PRICE,
) -> DataFrame:
    """Return one row per claim: its times, sizes, how it ended, whether its object exists, and its status."""
    by_claim = _aggregate_events(read_audit_events(spark, source, [config.namespace for config in configs]))
    objects = list_objects(spark, configs, table=inventory).select(
        f.col("namespace").alias("object_namespace"),
        f.col("claim_id").alias("object_id"),
        f.col("topic").alias("object_topic"),
        f.col("hour"),
        f.col("size").alias("object_size"),
        f.col("modified"),
    )
    is_same_claim = (f.col("namespace") == f.col("object_namespace")) & (
        f.col("claim_id") == f.col("object_id")
    )
    joined = by_claim.join(objects, is_same_claim, "full_outer")
    rows = joined.select(
        f.coalesce("namespace", "object_namespace").alias("namespace"),
        f.coalesce("claim_id", "object_id").alias("claim_id"),
        f.coalesce(f.get(f.split("key", "/"), 1), "object_topic").alias("topic"),
        "created",
        f.coalesce("expires_at", _end_of_hour()).alias("expires_at"),
        "first_read",
        "last_read",
        "reads",
        "released",
        "ended",
        "ended_by",
        "failures",
        f.col("size").alias("original_size"),
        f.coalesce("object_size", "stored").alias("stored_size"),
        f.col("object_id").isNotNull().alias("has_object"),
        "modified",
    )
    return _with_status(rows, configs, price)


def _end_of_hour() -> Column:
    """Return when everything under an hour of keys has expired; hours are in UTC, whatever the session's time zone."""
    return f.try_to_timestamp(f.concat("hour", f.lit("Z")), f.lit("yyyyMMddHHX")) + f.expr("interval 1 hour")


def read_audit_events(spark: SparkSession, source: OptionMap, namespaces: Sequence[str]) -> DataFrame:
    """Return the events of the audit stream: namespace, claim_id, event, time, data."""
    subject = f"$CLAIMS.audit.{namespaces[0]}.>" if len(namespaces) == 1 else "$CLAIMS.audit.>"
    reader = spark.read.schema("time timestamp, subject string, data binary").format("headrace")
    df = reader.options(**{"stream": AUDIT_STREAM, "subject": subject, **source}).load()
    is_one = len(namespaces) == 1  # the source filters already
    events = df.select(
        f.lit(namespaces[0]).alias("namespace") if is_one else _subject_token(3).alias("namespace"),
        _subject_token(4).alias("claim_id"),
        _subject_token(5).alias("event"),
        "time",
        "data",
    )
    return events if is_one else events.where(f.col("namespace").isin(list(namespaces)))


def _subject_token(number: int) -> Column:
    return f.split_part(f.col("subject"), f.lit("."), f.lit(number))


def _time(name: str) -> Column:
    """Convert seconds to a timestamp if Spark can represent it; any user who may write events can put anything there."""
    return f.when(f.col(name).between(0, TIME_END - 1), f.col(name))


def _aggregate_events(events: DataFrame) -> DataFrame:
    """Aggregate the events of each claim."""
    created_data = f.from_json(
        f.when(f.col("event") == "created", f.col("data").cast("string")),
        "key string, size bigint, stored bigint, expires_at bigint",
    )
    parsed_events = events.select("namespace", "claim_id", "event", "time", created_data.alias("record"))

    def event_time(event: str, aggregate: Any = f.min) -> Column:
        column: Column = aggregate(f.when(f.col("event") == event, f.col("time")))
        return column

    is_end = f.col("event").isin(*_END_EVENTS)
    return parsed_events.groupBy("namespace", "claim_id").agg(
        event_time("created").alias("created"),
        f.first("record.key", ignorenulls=True).alias("key"),
        f.first("record.size", ignorenulls=True).alias("size"),
        f.first("record.stored", ignorenulls=True).alias("stored"),
        f.timestamp_seconds(f.first(_time("record.expires_at"), ignorenulls=True)).alias("expires_at"),
        event_time("retrieved").alias("first_read"),
        event_time("retrieved", f.max).alias("last_read"),
        f.count_if(f.col("event") == "retrieved").alias("reads"),
        event_time("released").alias("released"),
        f.min(f.when(is_end, f.col("time"))).alias("ended"),
        f.min_by(f.when(is_end, f.col("event")), f.when(is_end, f.col("time"))).alias("ended_by"),
        f.count_if(f.col("event") == "failed").alias("failures"),
    )


def _with_status(rows: DataFrame, configs: Sequence[ClaimConfig], price: float) -> DataFrame:
    """Add the status of each claim, how long it existed and what that cost."""
    grace = f.lit(0)
    for config in configs:
        in_namespace = f.col("namespace") == config.namespace
        grace = f.when(in_namespace, f.lit(config.ttl.grace_period)).otherwise(grace)
    now = f.current_timestamp()
    overdue = now.cast("double") > f.col("expires_at").cast("double") + grace
    status = (
        f.when(f.col("has_object") & f.col("ended").isNotNull(), "undeleted")
        .when(f.col("ended").isNotNull(), ENDED)
        .when(~f.col("has_object"), VANISHED)
        .when(overdue & f.col("created").isNull(), "orphan")
        .when(overdue, "overdue")
        .otherwise(LIVE)
    )
    created_s = f.coalesce("created", "modified").cast("double")
    ended_at = f.coalesce("ended", f.when(f.col("has_object"), now).otherwise(f.least(now, "expires_at")))
    lifetime = f.greatest(ended_at.cast("double") - created_s, f.lit(0.0))
    return rows.withColumns({"status": status, "lifetime_s": lifetime}).withColumn(
        "cost", f.coalesce("stored_size", f.lit(0)) * f.col("lifetime_s") * f.lit(price / _GB_MONTH)
    )
