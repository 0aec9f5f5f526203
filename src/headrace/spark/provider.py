"""The data source `headrace`, alias `jetstream`: what Spark calls to get readers and writers.

Owns names, schema and the choice of reader. Invariant: options are checked when a query is written down, before anything
is planned. Must not connect to anything itself. Spark asks each question in a process of its own, which imports all this
anew; so a method imports what it needs, and no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from headrace.spark import schema as schemas
from headrace.spark.options import source_options

if TYPE_CHECKING:
    from headrace.spark.sink import StreamStreamWriter, StreamWriter
    from headrace.spark.streaming import StreamStreamReader


class HeadraceSource(DataSource):
    """A stream, to be read and written."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        return schemas.stream_schema(source_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.batch import FilteringReader, StreamReader

        options = source_options(self.options)
        kind = FilteringReader if options.pushdown else StreamReader
        return kind(options, schemas.arrow_schema(schema, schemas.stream_schema(options)))

    def streamReader(self, schema: StructType) -> StreamStreamReader:
        from headrace.spark.streaming import StreamStreamReader

        options = source_options(self.options)
        return StreamStreamReader(options, schemas.arrow_schema(schema, schemas.stream_schema(options)))

    def writer(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from headrace.spark.sink import StreamWriter, sink_options

        return StreamWriter(sink_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamStreamWriter:
        from headrace.spark.sink import StreamStreamWriter, sink_options

        return StreamStreamWriter(sink_options(self.options), schema)


class JetStreamSource(HeadraceSource):
    """The same under the protocol's name, for those who read from nats-server."""

    @classmethod
    def name(cls) -> str:
        return "jetstream"
