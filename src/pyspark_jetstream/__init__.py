"""Found by Spark, which imports every `pyspark_*` package: the data source `jetstream`."""

from headrace.spark.provider import JetStreamSource as DefaultSource

__all__ = ["DefaultSource"]
