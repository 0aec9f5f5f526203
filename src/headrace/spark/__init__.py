"""Streams in Apache Spark: the data sources `headrace` (alias `jetstream`) and `headrace_kv`.

Where Spark's discovery works nothing has to be said: `spark.read.format("headrace")` finds the installed package. Where it
does not, `headrace.spark.register(spark)` does the same for one session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.resolving import resolve

__all__ = ["register", "resolve"]


def register(spark: SparkSession) -> None:
    """Make the data sources known to a session."""
    for source in _sources():
        spark.dataSource.register(source)


def _sources() -> list[type[Any]]:
    from headrace.spark.kv import KvSource
    from headrace.spark.provider import HeadraceSource, JetStreamSource

    return [HeadraceSource, JetStreamSource, KvSource]


def __getattr__(name: str) -> Any:
    # On first use: it brings the object stores' clients, which few queries need.
    if name == "resolve":
        from headrace.spark.resolving import resolve

        return resolve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
