"""Batch reader: reads one range of a stream, fixed when the query starts.

Owns the batch reader. Invariant: everything that can be wrong with options, server and stream is found on the driver,
before a task starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from headrace.reader import direct_get_reader, snapshot_reader
from headrace.reader.claim_lease import lease_once, may_read_claims
from headrace.reader.options import EARLIEST, LAST_PER_SUBJECT, ReadOptions
from headrace.reader.stream_admin import StreamInfo
from headrace.reader.stream_catalog import ReadSource, open_source
from headrace.spark import last_per_subject
from headrace.spark.offsets import resolve_bound
from headrace.spark.partitions import LastPerSubjectPartition, SeqRangePartition, plan_partitions
from headrace.spark.pushdown import apply_filters


class JetStreamBatchReader(DataSourceReader):
    """Reads the rows of a stream between two bounds."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        source = open_source(self.options)
        stream_info = source.get_info()
        pin = source.pin()
        start, end = self._resolve_range(stream_info, source)
        if may_read_claims(self.options, self.schema.names):
            lease_once(self.options, 0 if self.options.starting == LAST_PER_SUBJECT else start - 1)
        token = source.get_token(pin)
        if self.options.starting == LAST_PER_SUBJECT:
            return last_per_subject.plan_last_per_subject(self.options, end, pin, token)
        return plan_partitions(
            start, end, self.options, first_seq=stream_info.first_seq, pin=pin, token=token
        )

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, SeqRangePartition):
            yield from read_rows(self.options, partition, self.schema)

    def _resolve_range(self, stream_info: StreamInfo, source: ReadSource) -> tuple[int, int]:
        options = self.options
        start = resolve_bound(options.starting or EARLIEST, stream_info, source.find_seq_at_time)
        return max(start, stream_info.first_seq), min(
            resolve_bound(options.ending, stream_info, source.find_seq_at_time), stream_info.next_seq
        )


class PushdownBatchReader(JetStreamBatchReader):
    """The same with filter pushdown; Spark accepts this class only if pushdown is enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.options = apply_filters(self.options, filters)
        # Spark applies all filters again: narrowing here only saves reading.
        return filters


def read_rows(
    options: ReadOptions, partition: SeqRangePartition, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Read the rows of a partition, by the path that the options select."""
    if options.claims == "inline":
        from headrace.reader.claim_inline import inline_payloads, required_columns

        return inline_payloads(
            _read_without_inlining(options, partition, required_columns(schema)), schema, options
        )
    return _read_without_inlining(options, partition, schema)


def _read_without_inlining(
    options: ReadOptions, partition: SeqRangePartition, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, LastPerSubjectPartition):
        return last_per_subject.read_partition(options, partition, schema)
    if options.path:
        return snapshot_reader.read_seq_range(options, partition, schema, token=partition.token)
    return direct_get_reader.read_seq_range(options, partition, schema)
