"""The data source `headrace_kv`: reads a bucket as a table, as its history or as a change feed, and writes to it.

Owns the readers and writers and their options. A server offers no snapshot, and a key that is rewritten meanwhile must be
found at its new position: one task reads a small table to its end; a large one is divided by key, and each task reads the
newest entries of its keys. `kv_rows` knows what messages mean, `kv_writer` how changes are published.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from headrace.client.durations import format_ttl
from headrace.durations import parse_duration_ns
from headrace.reader import options as o
from headrace.reader.batch_cast import OPEN_END
from headrace.reader.blocking_connection import ServerAddress
from headrace.reader.claim_lease import NO_READER
from headrace.reader.kv_rows import STREAM_COLUMNS, latest_per_key, make_key_prefix, to_kv_columns
from headrace.reader.last_per_subject import SubjectsPartition, plan_by_seq, plan_by_subject
from headrace.reader.open_source import open_source
from headrace.reader.partitions import Partition, ServerPartition, SnapshotPartition
from headrace.reader.stream_admin import fetch_stream_info, mark_reachable
from headrace.spark import schema as schemas
from headrace.spark.batch_reader import JetStreamBatchReader
from headrace.spark.kv.kv_writer import OPERATIONS, KvChange, KvTarget, KvWriter
from headrace.spark.micro_batch_reader import JetStreamMicroBatchReader
from headrace.spark.pyspark_compat import DataSourceStreamArrowWriter, is_commit_process, to_batches
from headrace.spark.schema import SchemaError
from headrace.spark.write.write_options import SPARK_OPTIONS

KV_SCHEMA = StructType(
    [
        StructField("key", StringType()),
        StructField("value", BinaryType()),
        StructField("revision", LongType()),
        StructField("time", TimestampType()),
        StructField("operation", StringType()),
        StructField("expires_at", TimestampType()),
    ]
)
_STREAM_SCHEMA = StructType([field for field in schemas.STREAM_SCHEMA.fields if field.name in STREAM_COLUMNS])
_WRITE_COLUMNS = {"key", "value", "operation", "ttl"}
#: Columns of the source that a row may still have; they describe the entry from which it was read.
_IGNORED_COLUMNS = {"revision", "time", "expires_at"}
_KEY = re.compile(r"[-/_=A-Za-z0-9]+(\.[-/_=A-Za-z0-9]+)*")
_READ_MODES = ("table", "history")


@dataclass(frozen=True)
class KvReadOptions:
    """Selected keys of a bucket, the prefix of their subjects, and the read options of its stream."""

    prefix: str
    keys: str
    mode: str
    stream_options: o.ReadOptions


def parse_kv_read_options(raw: Mapping[str, str]) -> KvReadOptions:
    """Parse the options of a read; the stream source's apply too, except `stream` and `subject`."""
    options = o.normalize_names(raw)
    bucket = o.get_required(options, "bucket")
    if not re.fullmatch(r"[\w-]+", bucket):
        raise o.OptionError(f"option `bucket`: {bucket!r} is not a valid name of a bucket")
    mode = options.pop("mode", "table")
    if mode not in _READ_MODES:
        raise o.OptionError(f"option `mode`: {mode!r} is not one of {', '.join(_READ_MODES)}")
    for name in (
        "stream",
        "subject",
        "streampattern",
        "subscribe",
        "subscribepattern",
        "columns",
        "valueformat",
    ):
        if name in options:
            raise o.OptionError(f"option `{name}` is not available for buckets; use `bucket` and `keys`")
    del options["bucket"]
    prefix, keys = make_key_prefix(bucket), options.pop("keys", ">")
    # Buckets drop old revisions all the time, so that is not data loss. And values are never claims.
    defaults = {"failondataloss": "false", "claimreader": NO_READER}
    stream_options = {**defaults, **options, "stream": f"KV_{bucket}", "subject": prefix + keys}
    return KvReadOptions(prefix, keys, mode, o.parse_read_options(stream_options))


def _with_key_prefix(kv_options: KvReadOptions) -> KvReadOptions:
    """Return the options with the key prefix that the server reports: keys of a mirror have the subjects of its
    upstream.
    """
    source = open_source(kv_options.stream_options)
    prefix = source.find_key_prefix(source.get_info())
    return replace(
        kv_options,
        prefix=prefix,
        stream_options=replace(kv_options.stream_options, subject=prefix + kv_options.keys),
    )


class KvBatchReader(DataSourceReader):
    """Reads a bucket as a table, or all that is left of its history."""

    def __init__(self, kv_options: KvReadOptions, schema: pa.Schema) -> None:
        if kv_options.mode == "table" and kv_options.stream_options.starting == o.LAST_PER_SUBJECT:
            # A table is that anyway, and is read such that keys rewritten meanwhile are not missed.
            kv_options = replace(kv_options, stream_options=replace(kv_options.stream_options, starting=None))
        self.kv_options = kv_options
        self.schema = schema
        self._kv_schema = schemas.make_arrow_schema(KV_SCHEMA, KV_SCHEMA)
        self._stream_reader = JetStreamBatchReader(
            kv_options.stream_options, schemas.make_arrow_schema(_STREAM_SCHEMA, _STREAM_SCHEMA)
        )

    def partitions(self) -> Sequence[InputPartition]:
        if self.kv_options.mode == "history":
            return self._stream_reader.partitions()
        partitions = self._stream_reader.plan()
        if not partitions:
            return []
        end = partitions[-1].seq_range.end
        if len(partitions) > 1:
            return [InputPartition(each) for each in self._divide_by_key(partitions[0], end)]
        (whole,) = partitions
        whole_range = replace(whole.seq_range, end=end if whole.is_snapshot else self._find_end(end))
        return [InputPartition(replace(whole, seq_range=whole_range))]

    def _divide_by_key(self, first: Partition, end: int) -> Sequence[Partition]:
        """Return partitions with the last entry of each key: each key is in one of them."""
        options = self.kv_options.stream_options
        start = first.seq_range.start
        if isinstance(first, SnapshotPartition):
            pieces: Sequence[Partition] = plan_by_seq(options, end, first.files)
            starts = [max(start, piece.seq_range.start) for piece in pieces]
        else:
            assert isinstance(first, ServerPartition)
            is_open = self._find_end(end) == OPEN_END
            planned = plan_by_subject(options, end, first.method)
            pieces = [replace(piece, is_open=is_open) for piece in planned]
            starts = [start] * len(pieces)
        return [
            replace(piece, seq_range=replace(piece.seq_range, start=low))
            for piece, low in zip(pieces, starts, strict=True)
        ]

    def _find_end(self, planned: int) -> int:
        """Return where a read from a server ends: keys rewritten meanwhile are found if they stay below the end."""
        ending = self.kv_options.stream_options.ending
        if ending == o.LATEST or ending.time_ns > time.time_ns():
            return OPEN_END
        # Beyond the newest message there is no end that a read could wait for: `read` drops what comes after it.
        return OPEN_END if ending.seq > planned else ending.seq or planned

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if partition is None or partition.value is None:
            return
        rows = self._stream_reader.read(partition)
        entries = _to_entries(rows, self.kv_options.prefix, self._kv_schema)
        part, ending = partition.value, self.kv_options.stream_options.ending
        if isinstance(part, SubjectsPartition):
            high = ending.seq if part.is_open and ending.seq else OPEN_END
            entries = _between(entries, part.seq_range.start, high)
        elif part.seq_range.end == OPEN_END and ending.seq:
            entries = _before(entries, ending.seq)
        for batch in (
            entries if self.kv_options.mode == "history" else latest_per_key(entries, self._kv_schema)
        ):
            yield batch.select(self.schema.names)


class KvMicroBatchReader(JetStreamMicroBatchReader):
    """Reads a bucket's changes as they arrive: put, delete, purge, expired."""

    def __init__(self, kv_options: KvReadOptions, schema: pa.Schema) -> None:
        super().__init__(kv_options.stream_options, schemas.make_arrow_schema(_STREAM_SCHEMA, _STREAM_SCHEMA))
        self.kv_options = kv_options
        self.output_schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _to_entries(super().read(partition), self.kv_options.prefix, self.output_schema)


def _to_entries(
    batches: Iterator[pa.RecordBatch], prefix: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield schemas.build_batch(to_kv_columns(batch, prefix), schema)


def _between(batches: Iterator[pa.RecordBatch], start: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the entries within a range of revisions, from batches in any order."""
    for batch in batches:
        revisions = batch["revision"]
        yield batch.filter(pc.and_(pc.greater_equal(revisions, start), pc.less(revisions, end)))


def _before(batches: Iterator[pa.RecordBatch], end: int) -> Iterator[pa.RecordBatch]:
    """Yield the entries below a sequence, from batches in sequence order."""
    for batch in batches:
        kept = int(np.searchsorted(batch["revision"].to_numpy(), end))
        yield batch.slice(0, kept)
        if kept < batch.num_rows:
            return


@dataclass(frozen=True)
class KvWriteOptions:
    """How a bucket is written. `operation` applies to rows that do not name one themselves."""

    address: ServerAddress
    bucket: str
    operation: str = "put"
    conflict: str = "error"
    write_id: str = ""
    domain: str = ""
    reconnect_s: float = 30.0

    @property
    def api_prefix(self) -> str:
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"


def _parse_one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return text.lower()

    return parse


_WRITE_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "mode": ("operation", _parse_one_of(*OPERATIONS)),
    "conflict": ("conflict", _parse_one_of("error", "ignore")),
    "writeid": ("write_id", str),
    "domain": ("domain", str),
    "reconnect": ("reconnect_s", lambda text: parse_duration_ns(text) / o.NS),
}


def parse_kv_write_options(raw: Mapping[str, str], schema: StructType) -> KvWriteOptions:
    """Parse the options of a write; checks options, columns and bucket."""
    options = o.normalize_names(raw)
    for name in SPARK_OPTIONS:
        options.pop(name, None)
    o.check_known(options, _WRITE_OPTIONS, also=("bucket",))
    write_options = KvWriteOptions(
        o.parse_address(options),
        o.get_required(options, "bucket"),
        **o.parse_options(options, _WRITE_OPTIONS),
    )
    names = set(schema.names)
    if "key" not in names or not names <= _WRITE_COLUMNS | _IGNORED_COLUMNS:
        raise SchemaError(
            f"a bucket accepts the columns key, value, operation ({', '.join(OPERATIONS)}) and ttl; "
            f"the rows have {', '.join(schema.names)}"
        )
    if is_commit_process():
        return write_options  # the bucket was checked when the query began, and a commit needs no server
    stream_info = fetch_stream_info(
        write_options.address, write_options.api_prefix, f"KV_{write_options.bucket}", 0.0
    )
    if "ttl" in names and not stream_info.config.get("allow_msg_ttl"):
        raise SchemaError(f"bucket {write_options.bucket!r} does not accept a TTL: enable limit markers")
    return write_options


class KvBatchWriter(DataSourceArrowWriter):
    """Writes rows as puts, creates, deletes and purges; a repeated task repeats nothing within the duplicate window."""

    def __init__(self, write_options: KvWriteOptions, schema: StructType) -> None:
        self.write_options = write_options
        self.names = schema.names
        self.name = write_options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write_partition(self.write_options, self.names, iterator, f"{self.name}:0")


class KvMicroBatchWriter(DataSourceStreamArrowWriter):
    """The same in a streaming query: a repeated epoch writes with the ids of the first attempt."""

    def __init__(self, write_options: KvWriteOptions, schema: StructType) -> None:
        self.write_options = write_options
        self.names = schema.names
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "tasks have a context"
        # `writeId` names a batch write: a second query with it would count its epochs from 0 again, and write nothing.
        query = context.getLocalProperty("sql.streaming.queryId")
        epoch = context.getLocalProperty("streaming.sql.batchId") or 0
        batches = to_batches(iterator, self._schema)
        return _write_partition(self.write_options, self.names, batches, f"{query}:{epoch}")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: every change was stored when its task ended."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Undo nothing: the epoch is repeated with the same ids."""


def _write_partition(
    write_options: KvWriteOptions, names: list[str], batches: Iterator[pa.RecordBatch], name: str
) -> KvTaskCommitMessage:
    context = TaskContext.get()
    assert context is not None, "tasks have a context"
    writer_id = f"{name}:{context.partitionId()}"
    bucket = KvTarget(
        write_options.address,
        write_options.bucket,
        writer_id,
        write_options.conflict,
        write_options.api_prefix,
        write_options.reconnect_s,
    )
    mark_reachable(write_options.address)
    rows = (row for batch in batches for row in batch.rename_columns(names).to_pylist())
    return KvTaskCommitMessage(
        KvWriter(bucket).publish(_make_change(row, write_options.operation) for row in rows)
    )


@dataclass
class KvTaskCommitMessage(WriterCommitMessage):
    """What a task did."""

    changes: int


def _make_change(row: dict[str, Any], default: str) -> KvChange:
    operation = row.get("operation") or default
    # A change feed may be written to another bucket: entries that expired in the source are deleted here.
    operation = "delete" if operation == "expired" else operation
    if operation not in OPERATIONS:
        raise SchemaError(f"operation {operation!r} is not one of {', '.join(OPERATIONS)}")
    key = row["key"]
    if not key or not _KEY.fullmatch(key):
        raise SchemaError(
            f"{key!r} is not a valid key: use letters, digits and - / _ =, with dots in between"
        )
    value = row.get("value") if operation in ("put", "create") else b""
    body = value if isinstance(value, bytes) else b"" if value is None else str(value).encode()
    ttl = row.get("ttl")
    return KvChange(key, operation, body, "" if ttl is None else format_ttl(ttl))


class KvDataSource(DataSource):
    """A bucket as a data source, for reading and writing."""

    @classmethod
    def name(cls) -> str:
        return "headrace_kv"

    def schema(self) -> StructType:
        parse_kv_read_options(self.options)
        return KV_SCHEMA

    def reader(self, schema: StructType) -> KvBatchReader:
        return KvBatchReader(
            _with_key_prefix(parse_kv_read_options(self.options)),
            schemas.make_arrow_schema(schema, KV_SCHEMA),
        )

    def streamReader(self, schema: StructType) -> KvMicroBatchReader:
        return KvMicroBatchReader(
            _with_key_prefix(parse_kv_read_options(self.options)),
            schemas.make_arrow_schema(schema, KV_SCHEMA),
        )

    def writer(self, schema: StructType, overwrite: bool) -> KvBatchWriter:
        if overwrite:
            raise o.OptionError(
                'a bucket cannot be overwritten, only changed key by key: use .mode("append")'
            )
        return KvBatchWriter(parse_kv_write_options(self.options, schema), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KvMicroBatchWriter:
        return KvMicroBatchWriter(parse_kv_write_options(self.options, schema), schema)
