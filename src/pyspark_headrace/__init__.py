"""Found by Spark, which imports every `pyspark_*` package: the data source `headrace`."""

from headrace.spark.provider import HeadraceSource as DefaultSource

__all__ = ["DefaultSource"]
