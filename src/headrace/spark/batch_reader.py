"""Batch reader: reads one range of a stream, fixed when the query starts.

Owns the batch reader. Invariant: everything that can be wrong with options, server and stream is found on the driver,
before a task starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headrace.reader.batch_cast import SeqRange
from headrace.reader.claim_lease import may_read_claims
from headrace.reader.open_source import open_source
from headrace.reader.options import EARLIEST, LAST_PER_SUBJECT, ReadOptions
from headrace.reader.partitions import Partition
from headrace.reader.read_source import ReadSource
from headrace.reader.stream_admin import StreamInfo
from headrace.spark.offsets import resolve_bound
from headrace.spark.pushdown import apply_filters
from headrace.spark.pyspark_compat import Filter
from headrace.spark.query_rows import RowConverter


class JetStreamBatchReader(DataSourceReader):
    """Reads the rows of a stream between two bounds."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self.options = options
        self._rows = RowConverter(options, schema)
        self.schema = self._rows.input_schema

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(partition) for partition in self.plan()]

    def plan(self) -> Sequence[Partition]:
        """Divide the range among tasks."""
        source = open_source(self.options)
        stream_info = source.get_info()
        pin = source.pin()
        seq_range = self._resolve_range(stream_info, source)
        is_last_per_subject = self.options.starting == LAST_PER_SUBJECT
        if may_read_claims(self.options, self.schema.names):
            source.lease_claims(0 if is_last_per_subject else seq_range.start - 1)
        if is_last_per_subject:
            return source.plan_last_per_subject(seq_range.end, pin)
        return source.plan(seq_range, pin)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        # If nothing was planned, Spark passes a partition without a value.
        if partition is not None and partition.value is not None:
            rows = open_source(self.options).read(partition.value, self.schema)
            yield from self._rows.convert(rows, self.options.stream)

    def _resolve_range(self, stream_info: StreamInfo, source: ReadSource) -> SeqRange:
        options, first_seq = self.options, stream_info.first_seq
        start = resolve_bound(options.starting or EARLIEST, stream_info, source.find_seq_at_time)
        end = resolve_bound(options.ending, stream_info, source.find_seq_at_time)
        return SeqRange(max(start, first_seq), min(end, stream_info.next_seq), first_seq)


class PushdownBatchReader(JetStreamBatchReader):
    """The same with filter pushdown; Spark accepts this class only if pushdown is enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.options = apply_filters(self.options, filters)
        # Spark applies all filters again: narrowing here only saves reading.
        return filters
