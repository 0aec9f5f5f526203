"""A stream read as a table: one range of sequences, as it is when the query starts.

Owns the batch reader. Invariant: everything that can be wrong with options, server and stream is found on the driver,
before a task starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from headrace.spark import direct, newest, wire
from headrace.spark.doors import Door, door_of
from headrace.spark.filters import narrowed
from headrace.spark.leases import may_read_claims, protect_once
from headrace.spark.offsets import resolve
from headrace.spark.options import EARLIEST, NEWEST, Options
from headrace.spark.planning import Newest, Range, divide
from headrace.spark.streams import Facts


class StreamReader(DataSourceReader):
    """The rows of a stream between two places."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        door = door_of(self.options)
        facts = door.facts()
        pin = door.pin()
        start, end = self._span(facts, door)
        if may_read_claims(self.options, self.schema.names):
            protect_once(self.options, 0 if self.options.starting == NEWEST else start - 1)
        token = door.token(pin)
        if self.options.starting == NEWEST:
            return newest.plan(self.options, end, pin, token)
        return divide(start, end, self.options, first_seq=facts.first_seq, pin=pin, token=token)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Range):
            yield from rows(self.options, partition, self.schema)

    def _span(self, facts: Facts, door: Door) -> tuple[int, int]:
        options = self.options
        start = resolve(options.starting or EARLIEST, facts, door.seq_at)
        return max(start, facts.first_seq), min(resolve(options.ending, facts, door.seq_at), facts.next_seq)


class FilteringReader(StreamReader):
    """The same, told of the query's filters; Spark wants this only where pushdown is switched on."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.options = narrowed(self.options, filters)
        # Spark applies them all again: what is narrowed here only saves reading.
        return filters


def rows(options: Options, part: Range, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, by the path that the options choose."""
    if options.claims == "inline":
        from headrace.spark.resolving import inlined, needed_for

        return inlined(_plain(options, part, needed_for(schema)), schema, options)
    return _plain(options, part, schema)


def _plain(options: Options, part: Range, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if isinstance(part, Newest):
        return newest.read(options, part, schema)
    if options.path:
        return direct.read_range(options, part, schema, token=part.token)
    return wire.read_range(options, part, schema)
