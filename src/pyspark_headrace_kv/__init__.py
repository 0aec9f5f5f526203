"""Found by Spark, which imports every `pyspark_*` package: the data source `headrace_kv`."""

from headrace.spark.kv import KvSource as DefaultSource

__all__ = ["DefaultSource"]
