"""Found by Spark, which imports every `pyspark_*` package: the data source `headrace`."""

from headrace.spark.datasource import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
