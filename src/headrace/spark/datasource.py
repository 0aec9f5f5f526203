"""The data source `headrace`, alias `jetstream`: the entry points through which Spark gets readers and writers.

Owns names, schema and the choice of reader. Invariant: options are checked when a query is defined, before anything is
planned. Must not connect to anything itself. Spark runs each of these calls in a separate process that imports all
modules again, so each method imports only what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from headrace.reader.options import ReadOptions, parse_read_options
from headrace.reader.stream_admin import mark_reachable
from headrace.spark import query_rows
from headrace.spark import schema as schemas

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark.write.stream_writer import JetStreamBatchWriter, JetStreamMicroBatchWriter


class HeadraceDataSource(DataSource):
    """A stream as a data source, for reading and writing."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType:
        return query_rows.make_query_schema(parse_read_options(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_read_options(self.options)
        arrow_schema = self._make_arrow_schema(options, schema)
        if options.reads_several:
            from headrace.spark.multi_stream_reader import open_batch_reader

            return open_batch_reader(options, arrow_schema)
        from headrace.spark.batch_reader import JetStreamBatchReader, PushdownBatchReader

        reader_class = PushdownBatchReader if options.pushdown else JetStreamBatchReader
        return reader_class(options, arrow_schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_read_options(self.options)
        arrow_schema = self._make_arrow_schema(options, schema)
        if options.reads_several:
            from headrace.spark.multi_stream_reader import MultiStreamMicroBatchReader

            return MultiStreamMicroBatchReader(options, arrow_schema)
        from headrace.spark.micro_batch_reader import JetStreamMicroBatchReader

        return JetStreamMicroBatchReader(options, arrow_schema)

    def _make_arrow_schema(self, options: ReadOptions, schema: StructType) -> pa.Schema:
        return schemas.make_arrow_schema(schema, query_rows.make_available_schema(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> JetStreamBatchWriter:
        from headrace.spark.write.stream_writer import JetStreamBatchWriter, parse_write_options

        return JetStreamBatchWriter(parse_write_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> JetStreamMicroBatchWriter:
        from headrace.spark.pyspark_compat import is_commit_process
        from headrace.spark.write.stream_writer import JetStreamMicroBatchWriter, parse_write_options

        options = parse_write_options(self.options)
        if is_commit_process():
            mark_reachable(options.address)  # a server that is away fails the commit only after `reconnect`
        return JetStreamMicroBatchWriter(options, schema)


class JetStreamDataSource(HeadraceDataSource):
    """The same under the protocol's name, for users of nats-server."""

    @classmethod
    def name(cls) -> str:
        return "jetstream"
