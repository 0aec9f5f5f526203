"""The sink: writes a DataFrame to a stream, in batch and streaming queries.

Owns the writers that Spark calls. Invariant: whatever Spark repeats - a task, an epoch, a whole query from its
checkpoint - and in whatever order, adds nothing twice; see ADR 59. Server, stream and columns are checked on the driver.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.reader import options as o
from headrace.reader.stream_admin import mark_reachable
from headrace.spark.pyspark_compat import DataSourceStreamArrowWriter, to_batches
from headrace.spark.schema import SchemaError
from headrace.spark.write.direct_writer import DirectWriter
from headrace.spark.write.encode_rows import RowLayout, encode_batch, make_row_layout
from headrace.spark.write.epoch_publisher import EpochPublisher
from headrace.spark.write.progress_log import StagedAttempt
from headrace.spark.write.staged_writer import StagedWriter
from headrace.spark.write.write_options import IDS, STAGED, WriteOptions, adapt_to_stream
from headrace.spark.write.write_options import parse_write_options as parse_write_options
from headrace.spark.write.write_target import WriteTarget


@dataclass
class TaskCommitMessage(WriterCommitMessage):
    """What a task did, and its identity; `attempt` is None if it staged nothing."""

    query: str
    owner: str
    attempt: StagedAttempt | None = None
    has_skipped: bool = False
    rows: int = 0


class _Writer:
    """What batch and streaming writes have in common."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.layout = make_row_layout(schema, options.subject)
        if options.mode == IDS and "msg_id" not in self.layout.names:
            raise SchemaError(
                "there is no column `msg_id`; exactlyOnce=ids needs one that is unique in the stream"
            )
        self.options = adapt_to_stream(options)

    def write_partition(
        self, batches: Iterator[pa.RecordBatch], query: str, epoch: int | None, owner: str = ""
    ) -> TaskCommitMessage:
        """Write the rows of a task, or stage them."""
        context = TaskContext.get()
        assert context is not None, "tasks have a context"
        mark_reachable(self.options.address)
        target = self.options.make_target(query, epoch, context.partitionId(), owner)
        return write_task(target, self.options.mode, self.layout, batches)

    def commit_epoch(self, messages: Sequence[WriterCommitMessage | None], epoch: int | None) -> None:
        """Commit the attempts of an epoch; publish their rows if they are staged."""
        done = [each for each in messages if isinstance(each, TaskCommitMessage)]
        if done and self.options.mode:
            target = self.options.make_target(done[0].query, epoch, owner=done[0].owner)
            attempts = [each.attempt for each in done if each.attempt is not None]
            publisher = EpochPublisher(target)
            has_skipped = any(each.has_skipped for each in done)
            rows = sum(each.rows for each in done)
            publisher.commit(attempts, has_skipped=has_skipped, rows=rows)
            if has_skipped and epoch is None:
                publisher.check_rows(rows)


def write_task(
    target: WriteTarget, mode: str, layout: RowLayout, batches: Iterator[pa.RecordBatch]
) -> TaskCommitMessage:
    """Write the rows of a task in one of the modes."""
    column_groups = (encode_batch(batch, layout) for batch in batches if batch.num_rows)
    if mode == STAGED:
        writer = StagedWriter(target)
        attempt = writer.publish_columns(column_groups)
        return TaskCommitMessage(target.query, target.owner, attempt, writer.has_skipped, writer.rows)
    DirectWriter(target, needs_ids=mode == IDS).publish_columns(column_groups)
    return TaskCommitMessage(target.query, target.owner)


class JetStreamBatchWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise o.OptionError('a stream cannot be overwritten: use .mode("append")')
        self._writer = _Writer(options, schema)
        self._name = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        return self._writer.write_partition(iterator, self._name, None)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._writer.commit_epoch(messages, None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove staged rows, unless the write has a name and may be started again."""
        options = self._writer.options
        if options.mode == STAGED and not options.write_id:
            EpochPublisher(options.make_target(self._name, None)).discard()


class JetStreamMicroBatchWriter(DataSourceStreamArrowWriter):
    """A streaming write."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._writer = _Writer(options, schema)
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        context = TaskContext.get()
        assert context is not None, "tasks have a context"
        query = context.getLocalProperty("sql.streaming.queryId") or ""
        epoch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        write_id = self._writer.options.write_id
        name, owner = (write_id, query) if write_id else (query, "")
        return self._writer.write_partition(to_batches(iterator, self._schema), name, epoch, owner)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._writer.commit_epoch(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Undo nothing: Spark repeats the epoch, and what was staged for it does not count."""
