"""The data source `headrace_kv`: a bucket as a table, as its history, and as a feed of changes; and writing to it.

Owns the readers and writers and their options. Over the wire there is no snapshot, so a table is read by one task up to
its end: a key that is rewritten meanwhile is found at its new place. What messages mean is known by `entries`, how
changes are published by `changes`.
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
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from headrace.client.durations import ttl_text
from headrace.durations import duration_ns
from headrace.spark import options as o
from headrace.spark import schema as schemas
from headrace.spark.batch import StreamReader, rows
from headrace.spark.changes import OPERATIONS, Bucket, Change, Changer
from headrace.spark.columns import OPEN_END
from headrace.spark.doors import door_of
from headrace.spark.entries import NEEDED, entries, live, prefix_of
from headrace.spark.leases import NOBODY
from headrace.spark.link import Address
from headrace.spark.planning import Range
from headrace.spark.schema import SchemaError
from headrace.spark.streaming import StreamStreamReader
from headrace.spark.streams import expect, facts_of, key_prefix

KV = StructType(
    [
        StructField("key", StringType()),
        StructField("value", BinaryType()),
        StructField("revision", LongType()),
        StructField("time", TimestampType()),
        StructField("operation", StringType()),
        StructField("expires_at", TimestampType()),
    ]
)
_NEEDED = StructType([field for field in schemas.STREAM.fields if field.name in NEEDED])
_WRITTEN = {"key", "value", "operation", "ttl"}
#: Columns of the source that a row may still carry; they speak of the entry that it was read from.
_IGNORED = {"revision", "time", "expires_at"}
_KEY = re.compile(r"[-/_=A-Za-z0-9]+(\.[-/_=A-Za-z0-9]+)*")
_MODES = ("table", "history")


@dataclass(frozen=True)
class KvOptions:
    """The keys of a bucket that are wanted, what their subjects begin with, and the options of the stream that it is."""

    prefix: str
    keys: str
    mode: str
    stream: o.Options


def kv_options(raw: Mapping[str, str]) -> KvOptions:
    """The options of a read; those of the stream source hold too, but for `stream` and `subject`."""
    options = o.lowered(raw)
    bucket = o.required(options, "bucket")
    mode = options.pop("mode", "table")
    if mode not in _MODES:
        raise o.OptionError(f"option `mode`: {mode!r} is none of {', '.join(_MODES)}")
    for name in ("stream", "subject"):
        if name in options:
            raise o.OptionError(f"there is no option `{name}` of a bucket; use `bucket` and `keys`")
    del options["bucket"]
    prefix, keys = prefix_of(bucket), options.pop("keys", ">")
    # Older revisions leave a bucket all the time; that is no loss. And values are never claims.
    usual = {"failondataloss": "false", "claimreader": NOBODY}
    given = {**usual, **options, "stream": f"KV_{bucket}", "subject": prefix + keys}
    return KvOptions(prefix, keys, mode, o.source_options(given))


def _located(kv: KvOptions) -> KvOptions:
    """The same where its server has it: keys of a mirror have the subjects of the origin."""
    prefix = key_prefix(kv.stream, door_of(kv.stream).facts())
    return replace(kv, prefix=prefix, stream=replace(kv.stream, subject=prefix + kv.keys))


class BucketReader(DataSourceReader):
    """A bucket as a table, or all that it still has of its history."""

    def __init__(self, kv: KvOptions, schema: pa.Schema) -> None:
        if kv.mode == "table" and kv.stream.starting == o.NEWEST:
            # A table is that anyway, and read so that keys which are rewritten meanwhile are not missed.
            kv = replace(kv, stream=replace(kv.stream, starting=None))
        self.kv = kv
        self.schema = schema
        self._whole = schemas.arrow_schema(KV, KV)
        self._stream = StreamReader(kv.stream, schemas.arrow_schema(_NEEDED, _NEEDED))

    def partitions(self) -> Sequence[InputPartition]:
        parts = self._stream.partitions()
        if self.kv.mode == "history" or not parts:
            return parts
        first, last = parts[0], parts[-1]
        assert isinstance(first, Range)
        assert isinstance(last, Range)
        return [replace(first, end=last.end if first.pin else self._end(last.end))]

    def _end(self, planned: int) -> int:
        """Where a read over the wire ends: keys that are rewritten meanwhile are found if they stay before the end."""
        ending = self.kv.stream.ending
        if ending == o.LATEST or ending.time_ns > time.time_ns():
            return OPEN_END
        # Beyond the newest message it is no end that a read could wait for: `read` leaves out what comes behind it.
        return OPEN_END if ending.seq > planned else ending.seq or planned

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Range):
            return
        found = _entry_batches(self.kv, partition, self._stream.schema, self._whole)
        if partition.end == OPEN_END and self.kv.stream.ending.seq:
            found = _before(found, self.kv.stream.ending.seq)
        for batch in found if self.kv.mode == "history" else live(found, self._whole):
            yield batch.select(self.schema.names)


class ChangeReader(StreamStreamReader):
    """A bucket's changes as they come: put, delete, purge, expired."""

    def __init__(self, kv: KvOptions, schema: pa.Schema) -> None:
        super().__init__(kv.stream, schemas.arrow_schema(_NEEDED, _NEEDED))
        self.kv = kv
        self.shown = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        return _entry_batches(self.kv, partition, self.schema, self.shown)


def _entry_batches(
    kv: KvOptions, part: Range, needed: pa.Schema, shown: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for batch in rows(kv.stream, part, needed):
        yield schemas.assemble(entries(batch, kv.prefix), shown)


def _before(batches: Iterator[pa.RecordBatch], end: int) -> Iterator[pa.RecordBatch]:
    """The entries below a sequence, of batches in the order of sequences."""
    for batch in batches:
        kept = int(np.searchsorted(batch["revision"].to_numpy(), end))
        yield batch.slice(0, kept)
        if kept < batch.num_rows:
            return


@dataclass(frozen=True)
class KvSink:
    """How a bucket is written. `operation` is what rows do that do not say it themselves."""

    address: Address
    bucket: str
    operation: str = "put"
    conflict: str = "error"
    write_id: str = ""
    domain: str = ""
    reconnect_s: float = 30.0

    @property
    def api(self) -> str:
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"


def _one_of(*words: str) -> Callable[[str], str]:
    def chosen(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return text.lower()

    return chosen


_SINK: dict[str, tuple[str, Callable[[str], Any]]] = {
    "mode": ("operation", _one_of(*OPERATIONS)),
    "conflict": ("conflict", _one_of("error", "ignore")),
    "writeid": ("write_id", str),
    "domain": ("domain", str),
    "reconnect": ("reconnect_s", lambda text: duration_ns(text) / o.NS),
}


def kv_sink(raw: Mapping[str, str], schema: StructType) -> KvSink:
    """The options of a write; they, the columns and the bucket are checked."""
    options = o.lowered(raw)
    options.pop("checkpointlocation", None)
    o.check_known(options, _SINK, also=("bucket",))
    sink = KvSink(o.address_of(options), o.required(options, "bucket"), **o.read(options, _SINK))
    names = set(schema.names)
    if "key" not in names or not names <= _WRITTEN | _IGNORED:
        raise SchemaError(
            f"a bucket takes the columns key, value, operation ({', '.join(OPERATIONS)}) and ttl; "
            f"there are {', '.join(schema.names)}"
        )
    facts = facts_of(sink.address, sink.api, f"KV_{sink.bucket}", 0.0)
    if "ttl" in names and not facts.config.get("allow_msg_ttl"):
        raise SchemaError(f"bucket {sink.bucket!r} takes no TTL: give it limit markers")
    return sink


class BucketWriter(DataSourceArrowWriter):
    """Rows become puts, creates, deletes and purges; a repeated task repeats nothing within the duplicate window."""

    def __init__(self, sink: KvSink, schema: StructType) -> None:
        self.sink = sink
        self.names = schema.names
        self.name = sink.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return _write(self.sink, self.names, iterator, f"{self.name}:0")


class BucketStreamWriter(DataSourceStreamArrowWriter):
    """The same in a streaming query: a repeated epoch writes under the ids of the first."""

    def __init__(self, sink: KvSink, schema: StructType) -> None:
        self.sink = sink
        self.names = schema.names

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None, "tasks have a context"
        # `writeId` names a batch write: another query under it counts its epochs anew, and would write nothing.
        query = context.getLocalProperty("sql.streaming.queryId")
        epoch = context.getLocalProperty("streaming.sql.batchId") or 0
        return _write(self.sink, self.names, iterator, f"{query}:{epoch}")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: every change was stored when its task ended."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is undone: the epoch is repeated under the same ids."""


def _write(sink: KvSink, names: list[str], batches: Iterator[pa.RecordBatch], name: str) -> Changed:
    context = TaskContext.get()
    assert context is not None, "tasks have a context"
    writer = f"{name}:{context.partitionId()}"
    bucket = Bucket(sink.address, sink.bucket, writer, sink.conflict, sink.api, sink.reconnect_s)
    expect(sink.address)
    rows = (row for batch in batches for row in batch.rename_columns(names).to_pylist())
    return Changed(Changer(bucket).publish(_change(row, sink.operation) for row in rows))


@dataclass
class Changed(WriterCommitMessage):
    """What a task did."""

    changes: int


def _change(row: dict[str, Any], default: str) -> Change:
    operation = row.get("operation") or default
    # A feed of changes may be written to another bucket: what ran out there is deleted here.
    operation = "delete" if operation == "expired" else operation
    if operation not in OPERATIONS:
        raise SchemaError(f"operation {operation!r} is none of {', '.join(OPERATIONS)}")
    key = row["key"]
    if not key or not _KEY.fullmatch(key):
        raise SchemaError(f"{key!r} cannot be a key: letters, digits and -/_=. between, no dots at the ends")
    value = row.get("value") if operation in ("put", "create") else b""
    body = value if isinstance(value, bytes) else b"" if value is None else str(value).encode()
    ttl = row.get("ttl")
    return Change(key, operation, body, "" if ttl is None else ttl_text(ttl))


class KvSource(DataSource):
    """A bucket, to be read and written."""

    @classmethod
    def name(cls) -> str:
        return "headrace_kv"

    def schema(self) -> StructType:
        kv_options(self.options)
        return KV

    def reader(self, schema: StructType) -> BucketReader:
        return BucketReader(_located(kv_options(self.options)), schemas.arrow_schema(schema, KV))

    def streamReader(self, schema: StructType) -> ChangeReader:
        return ChangeReader(_located(kv_options(self.options)), schemas.arrow_schema(schema, KV))

    def writer(self, schema: StructType, overwrite: bool) -> BucketWriter:
        if overwrite:
            raise o.OptionError('a bucket is changed key by key: use .mode("append")')
        return BucketWriter(kv_sink(self.options, schema), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> BucketStreamWriter:
        return BucketStreamWriter(kv_sink(self.options, schema), schema)
