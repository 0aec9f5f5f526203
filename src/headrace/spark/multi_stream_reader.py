"""Reads several streams as one source: each with a reader of its own, all with one offset.

Owns the offset of several streams, the division of limits among them, and the search for new streams. Invariants: the
offset has the offset of each stream, as a query of that stream alone has it; a stream that appears after the query
started is read from its beginning; a stream that disappears is a loss. An offset of one stream is accepted, so a query can
get more streams later.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from headrace.errors import StoreError
from headrace.reader.open_source import open_source
from headrace.reader.options import ReadOptions
from headrace.reader.partitions import Partition
from headrace.reader.stream_admin import StreamError, StreamMissing
from headrace.reader.stream_names import find_streams, is_selected, is_there
from headrace.spark.batch_reader import JetStreamBatchReader
from headrace.spark.idle_pause import IdlePause
from headrace.spark.micro_batch_reader import JetStreamMicroBatchReader, check_streaming_options
from headrace.spark.offsets import FIRST_SEQ, report_loss
from headrace.spark.pushdown import apply_filters
from headrace.spark.pyspark_compat import (
    Filter,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from headrace.spark.query_rows import RowConverter

VERSION = 2
#: How often the streams that match a pattern are listed.
_SEARCH_INTERVAL_S = 5.0
OffsetJson = dict[str, Any]


@dataclass(frozen=True)
class StreamPartition:
    """The rows of one task, which are of one stream."""

    stream: str
    partition: Partition


class _Tasks:
    """Reads the rows of tasks; used by both readers."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self._options = options
        self._rows = RowConverter(options, schema)

    def read(self, task: StreamPartition) -> Iterator[pa.RecordBatch]:
        source = open_source(self._options.for_stream(task.stream))
        rows = source.read(task.partition, self._rows.input_schema)
        return self._rows.convert(rows, task.stream)


class MultiStreamBatchReader(DataSourceReader):
    """Reads the rows of several streams."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        return [
            InputPartition(StreamPartition(stream, partition))
            for stream in find_streams(self.options)
            for partition in JetStreamBatchReader(self.options.for_stream(stream), self.schema).plan()
        ]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if partition is not None and partition.value is not None:
            yield from _Tasks(self.options, self.schema).read(partition.value)


class PushdownMultiStreamBatchReader(MultiStreamBatchReader):
    """The same with filter pushdown; Spark accepts this class only if pushdown is enabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self.options = apply_filters(self.options, filters)
        return filters


def open_batch_reader(options: ReadOptions, schema: pa.Schema) -> MultiStreamBatchReader:
    """Return the reader for a batch."""
    reader_class = PushdownMultiStreamBatchReader if options.pushdown else MultiStreamBatchReader
    return reader_class(options, schema)


class MultiStreamMicroBatchReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the messages of several streams as they arrive."""

    def __init__(self, options: ReadOptions, schema: pa.Schema) -> None:
        check_streaming_options(options)
        self.options = options
        self.schema = schema
        self._readers: dict[str, JetStreamMicroBatchReader] = {}
        self._newest: dict[str, OffsetJson] | None = None
        self._searched_s = float("-inf")
        self._is_available_now = False
        self._idle_pause = IdlePause()
        self._last_batch_s = time.monotonic()

    # Spark's interface, in calling order

    def initialOffset(self) -> OffsetJson:
        self._newest = {name: self._get_reader(name).initialOffset() for name in find_streams(self.options)}
        self._searched_s = time.monotonic()
        return to_json(self._newest)

    def prepareForTriggerAvailableNow(self) -> None:
        for name in find_streams(self.options):
            self._get_reader(name).prepareForTriggerAvailableNow()
        self._is_available_now = True

    def getDefaultReadLimit(self) -> ReadLimit:
        if self.options.messages_max:
            return ReadMaxRows(self.options.messages_max)
        if self.options.bytes_max:
            return ReadMaxBytes(self.options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: OffsetJson | None = None, limit: ReadLimit | None = None) -> OffsetJson:
        passed = from_json(start) if start is not None else None
        known = self._newest if passed is None else passed
        ends = self._find_ends(known, passed)
        limit = limit or self.getDefaultReadLimit()
        if known is not None:
            starts = {name: self._find_start(name, known, ends) for name in ends}
            ends = self._apply_limit(starts, ends, passed, limit)
            if self._is_below_min_rows(starts, ends):
                ends = known
        if ends != known:
            self._last_batch_s = time.monotonic()
        self._newest = ends
        return start if start is not None and ends == passed else to_json(ends)

    def reportLatestOffset(self) -> OffsetJson | None:
        reports = {name: reader.reportLatestOffset() for name, reader in self._readers.items()}
        return to_json({name: report for name, report in reports.items() if report is not None})

    def partitions(self, start: OffsetJson, end: OffsetJson) -> Sequence[InputPartition]:
        starts, ends = from_json(start), from_json(end)
        self._newest = ends
        for name in sorted(set(starts) - set(ends)):
            # Before 4.2, PySpark does not pass the start to `latestOffset`, which then cannot notice it.
            if not is_there(self.options, name):
                report_loss(self.options, f"stream {name!r} of the checkpoint was deleted")
        return [
            InputPartition(StreamPartition(name, partition.value))
            for name in ends
            if starts.get(name) != ends[name]
            for partition in self._plan_stream(name, self._find_start(name, starts, ends), ends[name])
        ]

    def _plan_stream(self, name: str, start: OffsetJson, end: OffsetJson) -> Sequence[InputPartition]:
        try:
            return self._get_reader(name).partitions(start, end)
        except (StreamError, StoreError):
            if is_there(self.options, name):
                raise
        report_loss(self.options, f"stream {name!r} was deleted before all rows of a batch were read")
        self._drop_reader(name)
        return []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _Tasks(self.options, self.schema).read(partition.value)

    def commit(self, end: OffsetJson) -> None:
        for name, offset in from_json(end).items():
            if name not in self._readers:
                # It was deleted, or it had nothing in this batch after a restart.
                continue
            try:
                self._readers[name].commit(offset)
            except StreamError:
                # The next search for streams reports that it was deleted.
                if is_there(self.options, name):
                    raise

    def stop(self) -> None:
        for reader in self._readers.values():
            reader.stop()

    # Streams

    def _get_reader(self, name: str) -> JetStreamMicroBatchReader:
        """Return the reader of a stream. Limits and waiting are decided here, for all streams together."""
        if name not in self._readers:
            options = replace(
                self.options.for_stream(name), wait_ns=0, messages_max=0, bytes_max=0, rows_min=0, delay_ns=0
            )
            self._readers[name] = JetStreamMicroBatchReader(options, self.schema)
        return self._readers[name]

    def _find_streams(self, known: Mapping[str, OffsetJson] | None) -> list[str]:
        """Return the streams to read; those of the known offset that no longer exist are a loss."""
        is_due = time.monotonic() - self._searched_s >= _SEARCH_INTERVAL_S
        if self._is_available_now and self._readers:
            streams = list(self._readers)
        elif known is None or is_due:
            streams = find_streams(self.options)
            self._searched_s = time.monotonic()
        else:
            return list(known)
        for name in sorted(set(known or ()) - set(streams)):
            if is_selected(self.options, name) and is_there(self.options, name):
                # The listing was incomplete.
                streams.append(name)
                if self._is_available_now:
                    self._get_reader(name).prepareForTriggerAvailableNow()
                continue
            report_loss(
                self.options,
                f"stream {name!r} of the checkpoint no longer belongs to the query: it was deleted, or the options of "
                "the query have changed",
            )
            self._drop_reader(name)
        return sorted(streams)

    def _drop_reader(self, name: str) -> None:
        if reader := self._readers.pop(name, None):
            reader.stop()

    def _find_start(
        self, name: str, starts: Mapping[str, OffsetJson], ends: Mapping[str, OffsetJson]
    ) -> OffsetJson:
        """Return where a batch starts; a stream that has appeared since starts where its first offset says."""
        if name in starts:
            return starts[name]
        end = ends[name]
        began = end.get("began", end.get(FIRST_SEQ, end["next_seq"]))
        return {**end, "next_seq": began, "began": began, "pin": ""}

    # Progress

    def _find_ends(
        self, known: Mapping[str, OffsetJson] | None, passed: Mapping[str, OffsetJson] | None
    ) -> dict[str, OffsetJson]:
        try:
            return self._wait_for_data(self._find_streams(known), known, passed)
        except StreamMissing:
            if not self.options.stream_pattern:
                raise
        # One was deleted since the last search.
        self._searched_s = float("-inf")
        return self._wait_for_data(self._find_streams(known), known, passed)

    def _wait_for_data(
        self,
        streams: Sequence[str],
        known: Mapping[str, OffsetJson] | None,
        passed: Mapping[str, OffsetJson] | None,
    ) -> dict[str, OffsetJson]:
        """Return the ends of all streams as soon as one has something new, or after the wait time."""
        wait_s = 0.0 if self._is_available_now else self.options.wait_ns / 1e9
        deadline = time.monotonic() + wait_s
        while True:
            is_due = not wait_s or self._idle_pause.wait(max(deadline - time.monotonic(), 0.0))
            if not is_due and known is not None and set(streams) == set(known):
                return dict(known)
            ends = {name: self._find_end(name, known, passed) for name in streams}
            if ends != known:
                self._idle_pause.on_data()
                return ends
            self._idle_pause.on_nothing(max(len(streams), 1))
            if time.monotonic() >= deadline:
                return ends

    def _find_end(
        self,
        name: str,
        known: Mapping[str, OffsetJson] | None,
        passed: Mapping[str, OffsetJson] | None,
        limit: ReadLimit | None = None,
    ) -> OffsetJson:
        reader = self._get_reader(name)
        start = passed.get(name) if passed is not None else None
        if known is not None and name not in known:
            start = reader.firstOffset()
        return reader.latestOffset(start, limit or ReadAllAvailable())

    def _apply_limit(
        self,
        starts: Mapping[str, OffsetJson],
        ends: dict[str, OffsetJson],
        passed: Mapping[str, OffsetJson] | None,
        limit: ReadLimit,
    ) -> dict[str, OffsetJson]:
        """Return ends within the limit, which is divided among the streams by what each has waiting."""
        lags = {name: ends[name]["next_seq"] - starts[name]["next_seq"] for name in ends}
        lags = {name: lag for name, lag in lags.items() if lag > 0}
        rows_max = self._count_allowed_rows(lags, limit)
        if rows_max >= sum(lags.values()):
            return ends
        limited = dict(ends)
        for name, share in divide_limit(rows_max, lags).items():
            limited[name] = (
                self._get_reader(name).latestOffset(starts[name], ReadMaxRows(share))
                if share
                else starts[name]
            )
        # A new stream without a share is found again by the next batch.
        return {
            name: offset
            for name, offset in limited.items()
            if passed is None or name in passed or offset is not starts[name]
        }

    def _count_allowed_rows(self, lags: Mapping[str, int], limit: ReadLimit) -> int:
        total = sum(lags.values())
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else total
        bytes_max = getattr(limit, "max_bytes", 0)
        if isinstance(limit, ReadMaxRows):
            bytes_max = self.options.bytes_max
        waiting_bytes = sum(lag * self._get_reader(name).average_message_bytes for name, lag in lags.items())
        if bytes_max and waiting_bytes > bytes_max:
            rows_max = min(rows_max, max(total * bytes_max // waiting_bytes, 1))
        return rows_max

    def _is_below_min_rows(self, starts: Mapping[str, OffsetJson], ends: Mapping[str, OffsetJson]) -> bool:
        rows = sum(max(ends[name]["next_seq"] - starts[name]["next_seq"], 0) for name in ends)
        if self._is_available_now or not rows or rows >= self.options.rows_min:
            return False
        return time.monotonic() - self._last_batch_s < self.options.delay_ns / 1e9


def divide_limit(rows_max: int, lags: Mapping[str, int]) -> dict[str, int]:
    """Divide a number of rows among streams in proportion to their lags; the largest get the rest."""
    total = sum(lags.values())
    shares = {name: lag * rows_max // total for name, lag in lags.items()}
    rest = rows_max - sum(shares.values())
    for name in sorted(lags, key=lambda each: (shares[each] - lags[each], each))[:rest]:
        shares[name] += 1
    return shares


def to_json(offsets: Mapping[str, OffsetJson]) -> OffsetJson:
    """Return one offset for several streams."""
    return {"v": VERSION, "streams": dict(sorted(offsets.items()))}


def from_json(value: OffsetJson) -> dict[str, OffsetJson]:
    """Return the offset of each stream; also of a query that read one stream."""
    return dict(value["streams"]) if "streams" in value else {str(value["stream"]): value}
