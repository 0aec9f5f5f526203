"""How far streaming queries are behind their streams: for a glance, and for Prometheus.

Owns the reading of a query's progress. Spark gives Python sources no metrics of their own, but its progress carries where a
batch ended and where the stream ended then; the distance is the lag, in sequences. Must not ask a server anything.
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

__all__ = ["Lag", "lag_of", "watch"]


def lag_of(progress: StreamingQueryProgress) -> dict[str, int]:
    """How many sequences each stream has that the query has not read; other sources are left out."""
    found = {}
    for source in progress.sources:
        end, latest = _offset(source.endOffset), _offset(source.latestOffset)
        if end and latest and end["identity"] == latest["identity"]:
            found[str(end["stream"])] = max(int(latest["next_seq"]) - int(end["next_seq"]), 0)
    return found


def _offset(text: Any) -> dict[str, Any] | None:
    """An offset of ours; None for those of other sources."""
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return None
    ours = isinstance(value, dict) and {"v", "stream", "identity", "next_seq"} <= set(value)
    return value if ours else None


class Lag(StreamingQueryListener):
    """Keeps the lag of every query of a session: `lag[query's name or id][stream]`.

    With a registry of `prometheus_client` it also sets `headrace_spark_lag_messages` and counts
    `headrace_spark_rows_total`.
    """

    def __init__(self, registry: Any = None) -> None:
        self.lag: dict[str, dict[str, int]] = {}
        self._names: dict[str, str] = {}
        self._behind: Any = None
        self._rows: Any = None
        if registry is not None:
            from prometheus_client import Counter, Gauge

            labels = ("query", "stream")
            self._behind = Gauge(
                "headrace_spark_lag_messages",
                "Sequences that a streaming query has not read yet",
                labels,
                registry=registry,
            )
            self._rows = Counter(
                "headrace_spark_rows", "Rows that streaming queries have read", ("query",), registry=registry
            )

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        name = progress.name or str(progress.id)
        self._names[str(progress.id)] = name
        self.lag[name] = lag_of(progress)
        if self._behind is not None:
            for stream, behind in self.lag[name].items():
                self._behind.labels(name, stream).set(behind)
            self._rows.labels(name).inc(progress.numInputRows)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing came, so nothing changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        name = self._names.pop(str(event.id), str(event.id))
        for stream in self.lag.pop(name, {}):
            if self._behind is not None:
                self._behind.remove(name, stream)


def watch(spark: SparkSession, registry: Any = None) -> Lag:
    """Follow all streaming queries of a session."""
    listener = Lag(registry)
    spark.streams.addListener(listener)
    return listener
