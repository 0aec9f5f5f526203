"""Streams in Apache Spark: the data sources `headrace` (alias `jetstream`) and `headrace_kv`.

Where Spark's discovery works, no setup is needed: `spark.read.format("headrace")` finds the installed package. Where it
does not, `headrace.spark.register(spark)` registers both for one session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.extras import require_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.claims.resolve import resolve

__all__ = ["register", "resolve"]

require_extra("spark", "pyspark", "pyarrow")


def register(spark: SparkSession) -> None:
    """Register the data sources with a session, unless it has found them by itself."""
    from pyspark.errors import AnalysisException

    for source in _data_sources():
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            # PySpark 4.0 refuses a source that it has discovered; later versions replace it.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise


def _data_sources() -> list[type[Any]]:
    from headrace.spark.datasource import HeadraceDataSource, JetStreamDataSource
    from headrace.spark.kv.kv_datasource import KvDataSource

    return [HeadraceDataSource, JetStreamDataSource, KvDataSource]


def __getattr__(name: str) -> Any:
    # Imported on first use: it imports the object stores' clients, which few queries need.
    if name == "resolve":
        from headrace.spark.claims.resolve import resolve

        return resolve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
