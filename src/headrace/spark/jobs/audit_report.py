"""Report of an audit: figures aggregated by Spark, and one HTML page with embedded charts.

Owns the page. Invariant: it loads nothing from elsewhere, so it can be mailed and archived. Must not know where the
claim lifetimes came from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from headrace.spark import svg_charts

_LEAKS = ("overdue", "undeleted", "orphan")
_POINTS_MAX = 120
_INTERVALS_S = (1, 10, 60, 300, 900, 3600, 6 * 3600, 86400, 7 * 86400)
_STATUS_MEANING = {
    "live": "the object exists and may still be needed",
    "ended": "the object is gone; the audit trail shows why",
    "overdue": "the object exists, but max_age and grace_period have passed",
    "undeleted": "the object exists, but the audit trail shows its deletion",
    "orphan": "the object exists and has expired, but the audit trail does not contain it",
    "vanished": "the object is gone and the audit trail does not show why: a lifecycle rule or another program deleted it",
}


@dataclass(frozen=True)
class AuditFigures:
    """The figures that the report shows; all of them are small."""

    totals: dict[str, Any]
    states: list[Any]
    topics: list[Any]
    lifetimes: list[Any]
    sizes: list[Any]
    timeline: list[Any]
    interval_s: int


def compute_figures(lifetimes: DataFrame) -> AuditFigures:
    """Compute everything that the report needs, in a few passes over the table."""
    totals, interval_s = _compute_totals(lifetimes)
    return AuditFigures(
        totals,
        lifetimes.groupBy("namespace", "status")
        .agg(_count_claims(), _sum_bytes(), f.sum("cost").alias("cost"))
        .collect(),
        lifetimes.groupBy("topic")
        .agg(
            _count_claims(),
            _sum_bytes(),
            f.sum("cost").alias("cost"),
            f.count_if(f.col("status").isin(*_LEAKS)).alias("leaks"),
            f.percentile_approx("lifetime_s", 0.5).alias("median_s"),
        )
        .orderBy(f.desc("leaks"), f.desc("cost"))
        .limit(20)
        .collect(),
        _compute_histogram(lifetimes.where("ended is not null"), "lifetime_s", "ended_by"),
        _compute_histogram(lifetimes, "stored_size", "status"),
        _compute_timeline(lifetimes, interval_s),
        interval_s,
    )


def _compute_totals(lifetimes: DataFrame) -> tuple[dict[str, Any], int]:
    """Return totals, and the number of seconds per point on the time axis."""
    is_leak = f.col("status").isin(*_LEAKS)
    size = f.coalesce("stored_size", f.lit(0))
    row = lifetimes.agg(
        f.count("*").alias("claims"),
        f.count_if(f.col("status") == "live").alias("live"),
        f.count_if(f.col("status") == "ended").alias("ended"),
        f.count_if(is_leak).alias("leaks"),
        f.count_if(f.col("status") == "vanished").alias("vanished"),
        f.coalesce(f.sum(f.when(is_leak, size)), f.lit(0)).alias("leaked_bytes"),
        f.coalesce(f.sum(f.when(f.col("status") == "live", size)), f.lit(0)).alias("live_bytes"),
        f.coalesce(
            f.percentile_approx(f.when(f.col("ended").isNotNull(), f.col("lifetime_s")), 0.5), f.lit(0.0)
        ).alias("lifetime_median_s"),
        f.coalesce(
            f.percentile_approx(f.when(f.col("ended").isNotNull(), f.col("lifetime_s")), 0.99), f.lit(0.0)
        ).alias("lifetime_p99_s"),
        f.coalesce(f.sum("cost"), f.lit(0.0)).alias("cost"),
        f.min(f.col("created").cast("double")).alias("first"),
        f.max(f.greatest("created", "ended").cast("double")).alias("last"),
    ).collect()[0]
    totals = dict(row.asDict())
    length = (totals.pop("last") or 0) - (totals.pop("first") or 0)
    return totals, next(
        (interval for interval in _INTERVALS_S if length / interval <= _POINTS_MAX), _INTERVALS_S[-1]
    )


def _count_claims() -> Any:
    return f.count("*").alias("claims")


def _sum_bytes() -> Any:
    return f.sum(f.coalesce("stored_size", f.lit(0))).alias("bytes")


def _compute_histogram(lifetimes: DataFrame, column: str, by: str) -> list[Any]:
    """Count the values below each power of two."""
    power = f.ceil(f.log2(f.greatest(f.col(column), f.lit(1)).cast("double"))).cast("int")
    return (
        lifetimes.where(f.col(column).isNotNull())
        .groupBy(power.alias("power"), f.col(by).alias("by"))
        .agg(_count_claims())
        .collect()
    )


def _compute_timeline(lifetimes: DataFrame, interval_s: int) -> list[Any]:
    """Return (time, created, ended) of every interval in which something happened."""

    def count_by_time(column: str, name: str) -> DataFrame:
        time_bucket = (f.floor(f.col(column).cast("double") / interval_s) * interval_s).cast("bigint")
        with_time = lifetimes.where(f.col(column).isNotNull())
        return with_time.groupBy(time_bucket.alias("at")).agg(f.count("*").alias(name))

    joined = count_by_time("created", "created").join(count_by_time("ended", "ended"), "at", "full_outer")
    return joined.na.fill(0).orderBy("at").collect()


def render_html(figures: AuditFigures, price: float) -> str:
    """Render the page."""
    made_at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    totals = figures.totals
    tiles = [
        ("claims", svg_charts.format_number(totals["claims"])),
        ("live", svg_charts.format_number(totals["live"])),
        ("leaks", svg_charts.format_number(totals["leaks"])),
        ("vanished", svg_charts.format_number(totals["vanished"])),
        ("median lifetime", format_seconds(totals["lifetime_median_s"])),
        ("p99 lifetime", format_seconds(totals["lifetime_p99_s"])),
        ("bytes leaked", format_bytes(totals["leaked_bytes"])),
        ("storage cost", format_dollars(totals["cost"])),
    ]
    cards = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in tiles)
    return _PAGE.format(
        made=made_at,
        cards=cards,
        plots="".join(f"<figure>{plot}</figure>" for plot in _draw_charts(figures)),
        states=_render_states(figures.states),
        topics=_render_topics(figures.topics),
        price=f"{price:g}",
    )


def _draw_charts(figures: AuditFigures) -> list[str]:
    labels = [_format_time(row.at, figures.interval_s) for row in figures.timeline]
    live, alive = [], 0
    for row in figures.timeline:
        alive += row.created - row.ended
        live.append(float(max(alive, 0)))
    rates = [
        ("created", [float(row.created) for row in figures.timeline]),
        ("ended", [float(row.ended) for row in figures.timeline]),
    ]
    interval_text = format_seconds(figures.interval_s)
    return [
        svg_charts.lines(f"Claims created and ended per {interval_text}", labels, rates),
        svg_charts.lines("Live claims", labels, [("live", live)]),
        _draw_histogram("Lifetimes of ended claims, by reason", figures.lifetimes, format_seconds),
        _draw_histogram("Sizes of objects, by state", figures.sizes, format_bytes),
    ]


def _draw_histogram(title: str, rows: Sequence[Any], format_value: Any) -> str:
    """Draw a histogram over powers of two, without gaps."""
    if not rows:
        return svg_charts.bars(title, ["none"], [("none", [0.0])])
    powers = range(min(row.power for row in rows), max(row.power for row in rows) + 1)
    names = sorted({row.by for row in rows})
    counts = {(row.by, row.power): float(row.claims) for row in rows}
    series = [(name, [counts.get((name, power), 0.0) for power in powers]) for name in names]
    return svg_charts.bars(title, [f"≤{format_value(2.0**power)}" for power in powers], series)


def _render_states(rows: Sequence[Any]) -> str:
    lines = [
        (row.namespace, row.status, f"{row.claims:,}", format_bytes(row.bytes), format_dollars(row.cost or 0))
        for row in sorted(rows, key=lambda row: (row.namespace, row.status))
    ]
    rows_with_meaning = [(*line[:2], _STATUS_MEANING[line[1]], *line[2:]) for line in lines]
    return _render_table(("namespace", "state", "meaning", "claims", "bytes", "cost"), rows_with_meaning)


def _render_topics(rows: Sequence[Any]) -> str:
    lines = [
        (
            row.topic or "?",
            f"{row.claims:,}",
            f"{row.leaks:,}",
            format_bytes(row.bytes),
            format_seconds(row.median_s or 0),
            format_dollars(row.cost or 0),
        )
        for row in rows
    ]
    return _render_table(("topic", "claims", "leaks", "bytes", "median lifetime", "cost"), lines)


def _render_table(names: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(value))}</td>" for value in line) + "</tr>" for line in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _format_time(epoch_s: int, interval_s: int) -> str:
    pattern = "%d %b" if interval_s >= 86400 else "%d %b %H:%M" if interval_s >= 3600 else "%H:%M:%S"
    return datetime.fromtimestamp(epoch_s, UTC).strftime(pattern)


def _format_scaled(value: float, units: Mapping[str, float]) -> str:
    name, size = next(
        ((name, size) for name, size in units.items() if value >= size), list(units.items())[-1]
    )
    return f"{value / size:.3g} {name}"


def format_seconds(value: float) -> str:
    """Format a time span for people."""
    return _format_scaled(value, {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0})


def format_bytes(value: float) -> str:
    """Format a size for people."""
    return _format_scaled(value, {"TiB": 2.0**40, "GiB": 2.0**30, "MiB": 2.0**20, "KiB": 1024.0, "B": 1.0})


def format_dollars(value: float) -> str:
    """Format a price for people, even a tiny one."""
    return f"${value:,.2f}" if value >= 1 or not value else f"${value:.2g}"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Claims audit</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 15px/1.5 sans-serif; color: #1a202c; max-width: 1340px; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ margin-bottom: 0; }} p {{ color: #4a5568; }}
.cards {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; margin: 1.5rem 0; }}
.cards div {{ border: 1px solid #e2e8f0; border-radius: 6px; padding: 10px 14px; }}
.cards b {{ display: block; font-size: 22px; }} .cards span {{ color: #4a5568; }}
.plots {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(480px, 1fr)); gap: 12px; }}
figure {{ margin: 0; border: 1px solid #e2e8f0; border-radius: 6px; padding: 6px; }} svg {{ width: 100%; height: auto; }}
table {{ border-collapse: collapse; margin: 0.5rem 0 1.5rem; width: 100%; }}
th, td {{ text-align: left; padding: 4px 10px; border-bottom: 1px solid #e2e8f0; }} th {{ color: #4a5568; }}
</style></head><body>
<h1>Claims audit</h1><p>Created {made}. Storage price: ${price} per GB and month.</p>
<div class="cards">{cards}</div><div class="plots">{plots}</div>
<h2>States</h2>{states}<h2>Topics</h2><p>Topics with leaks first, then by cost; at most 20.</p>{topics}
</body></html>
"""
