"""Found by Spark, which imports every `pyspark_*` package: the data source `jetstream`."""

from headrace.spark.datasource import JetStreamDataSource as DefaultSource

__all__ = ["DefaultSource"]
