"""Lag of streaming queries, as a table and for Prometheus.

Owns the interpretation of a query's progress. Spark offers no metrics for Python sources, but its progress reports
where a batch ended and where the stream ended at that time; the difference is the lag, in sequences. Must not send
requests to a server.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LagListener", "compute_lag", "watch"]


def compute_lag(progress: StreamingQueryProgress) -> dict[str, int]:
    """Return how many sequences of each stream the query has not read; other sources are omitted."""
    lag_by_stream = {}
    for source in progress.sources:
        ends, latest = _parse_offsets(source.endOffset), _parse_offsets(source.latestOffset)
        for name in ends.keys() & latest.keys():
            if ends[name]["identity"] == latest[name]["identity"]:
                lag_by_stream[name] = max(int(latest[name]["next_seq"]) - int(ends[name]["next_seq"]), 0)
    return lag_by_stream


def _parse_offsets(text: Any) -> dict[str, dict[str, Any]]:
    """Parse an offset of our sources, by stream; nothing for those of others."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    if not isinstance(value, dict) or "v" not in value:
        return {}
    found = value["streams"].values() if isinstance(value.get("streams"), dict) else [value]
    return {str(each["stream"]): each for each in found if {"stream", "identity", "next_seq"} <= set(each)}


class LagListener(StreamingQueryListener):
    """Tracks the lag of every query of a session: `lag[query's name or id][stream]`.

    With a registry of `prometheus_client` it also sets `headrace_spark_lag_messages` and counts
    `headrace_spark_rows_total`.
    """

    def __init__(self, registry: Any = None) -> None:
        self.lag: dict[str, dict[str, int]] = {}
        self._query_names: dict[str, str] = {}
        self._lag_gauge: Any = None
        self._rows_counter: Any = None
        if registry is not None:
            from prometheus_client import Counter, Gauge

            labels = ("query", "stream")
            self._lag_gauge = Gauge(
                "headrace_spark_lag_messages",
                "Sequences that a streaming query has not read yet",
                labels,
                registry=registry,
            )
            self._rows_counter = Counter(
                "headrace_spark_rows", "Rows that streaming queries have read", ("query",), registry=registry
            )

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._query_names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        name = progress.name or str(progress.id)
        self._query_names[str(progress.id)] = name
        self.lag[name] = compute_lag(progress)
        if self._lag_gauge is not None:
            for stream, lag in self.lag[name].items():
                self._lag_gauge.labels(name, stream).set(lag)
            self._rows_counter.labels(name).inc(progress.numInputRows)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: no new data, so the lag has not changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        name = self._query_names.pop(str(event.id), str(event.id))
        for stream in self.lag.pop(name, {}):
            if self._lag_gauge is not None:
                self._lag_gauge.remove(name, stream)


def watch(spark: SparkSession, registry: Any = None) -> LagListener:
    """Track all streaming queries of a session."""
    listener = LagListener(registry)
    spark.streams.addListener(listener)
    return listener
