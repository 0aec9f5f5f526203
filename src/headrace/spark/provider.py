"""The data source `headrace`, alias `jetstream`: what Spark calls to get readers and writers.

Owns names, schema and the choice of reader. Invariant: options are checked when a query is written down, before anything
is planned. Must not connect to anything itself.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from headrace.spark import schema as schemas
from headrace.spark.batch import FilteringReader, StreamReader
from headrace.spark.options import source_options
from headrace.spark.sink import StreamStreamWriter, StreamWriter, sink_options
from headrace.spark.streaming import StreamStreamReader


class HeadraceSource(DataSource):
    """A stream, to be read and written."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        return schemas.stream_schema(source_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = source_options(self.options)
        kind = FilteringReader if options.pushdown else StreamReader
        return kind(options, schemas.arrow_schema(schema, schemas.stream_schema(options)))

    def streamReader(self, schema: StructType) -> StreamStreamReader:
        options = source_options(self.options)
        return StreamStreamReader(options, schemas.arrow_schema(schema, schemas.stream_schema(options)))

    def writer(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(sink_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamStreamWriter:
        return StreamStreamWriter(sink_options(self.options), schema)


class JetStreamSource(HeadraceSource):
    """The same under the protocol's name, for those who read from nats-server."""

    @classmethod
    def name(cls) -> str:
        return "jetstream"
