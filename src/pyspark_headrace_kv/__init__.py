"""Found by Spark, which imports every `pyspark_*` package: the data source `headrace_kv`."""

from headrace.spark.kv.kv_datasource import KvDataSource as DefaultSource

__all__ = ["DefaultSource"]
