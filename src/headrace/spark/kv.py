"""The data source `headrace_kv`: a bucket as a table, as its history, and as a feed of changes; and writing to it.

Owns what a stored message means for its key, in columns. Invariant: a table has each key once, with its newest value, and
no key that has none. Over the wire there is no snapshot, so a table is read by one task up to its very end: a key that is
rewritten meanwhile is found at its new place. Must not know how rows come from a stream.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from headrace.client.durations import ttl_text
from headrace.spark import options as o
from headrace.spark import schema as schemas
from headrace.spark.batch import StreamReader, rows
from headrace.spark.link import Address
from headrace.spark.planning import Range
from headrace.spark.publishing import IdPublisher, Target
from headrace.spark.rows import Message
from headrace.spark.schema import SchemaError
from headrace.spark.streaming import StreamStreamReader
from headrace.spark.streams import facts_of

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
_NEEDED = StructType([field for field in schemas.STREAM.fields if field.name != "claim"])
#: Wherever the bucket ends by then.
_END = 1 << 62
#: What a header says happened to the key.
_OPERATIONS = {"DEL": "delete", "PURGE": "purge"}
_REASONS = {"MaxAge": "expired", "Purge": "purge", "Remove": "delete"}
_MODES = ("table", "history")


@dataclass(frozen=True)
class KvOptions:
    """A bucket, and the options of the stream that it is."""

    bucket: str
    mode: str
    stream: o.Options

    @property
    def prefix(self) -> str:
        return f"$KV.{self.bucket}."


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
    subject = f"$KV.{bucket}.{options.pop('keys', '>')}"
    # Older revisions leave a bucket all the time; that is no loss.
    given = {"failondataloss": "false", **options, "stream": f"KV_{bucket}", "subject": subject}
    return KvOptions(bucket, mode, o.source_options(given))


def entries(batch: pa.RecordBatch, kv: KvOptions) -> dict[str, pa.Array]:
    """Columns of a bucket from columns of its stream."""
    operations = _operations(batch.column("headers"))
    put = pc.equal(operations, "put")
    return {
        "key": pc.utf8_slice_codeunits(batch.column("subject"), len(kv.prefix)),
        "value": pc.if_else(put, batch.column("data"), pa.nulls(batch.num_rows, pa.binary())),
        "revision": batch.column("seq"),
        "time": batch.column("time"),
        "operation": operations,
        "expires_at": batch.column("expires_at"),
    }


def _operations(headers: pa.MapArray) -> pa.Array:
    """What each message did to its key."""
    if headers.null_count == len(headers):
        return pa.array(["put"] * len(headers), pa.string())
    told = _translated(headers, "KV-Operation", _OPERATIONS)
    marked = _translated(headers, "Nats-Marker-Reason", _REASONS)
    return pc.coalesce(told, marked, pa.scalar("put"))


def _translated(headers: pa.MapArray, name: str, words: Mapping[str, str]) -> pa.Array:
    found = pc.map_lookup(headers, pa.scalar(name), "first")
    values = pc.list_element(pc.fill_null(found, [None]), 0)
    places = pc.index_in(values, pa.array(list(words)))
    return pa.array(list(words.values())).take(places)


def live(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The newest entry of each key, if it is a value."""
    table = pa.Table.from_batches(batches, schema)
    newest = table.group_by("key").aggregate([("revision", "max")]).column("revision_max")
    kept = pc.and_(pc.is_in(table.column("revision"), newest), pc.equal(table.column("operation"), "put"))
    yield from table.filter(kept).combine_chunks().to_batches(max_chunksize=65_536)


class BucketReader(DataSourceReader):
    """A bucket as a table, or all that it still has of its history."""

    def __init__(self, kv: KvOptions, schema: pa.Schema) -> None:
        self.kv = kv
        self.schema = schema
        self._whole = schemas.arrow_schema(KV, KV)
        self._stream = StreamReader(kv.stream, schemas.arrow_schema(_NEEDED, _NEEDED))

    def partitions(self) -> Sequence[InputPartition]:
        parts = self._stream.partitions()
        if self.kv.mode == "history" or not parts:
            return parts
        first = parts[0]
        assert isinstance(first, Range)
        end = parts[-1].end if first.pin and isinstance(parts[-1], Range) else _END
        return [replace(first, end=end)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Range):
            return
        found = _entry_batches(self.kv, partition, self._stream.schema, self._whole)
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
        yield schemas.assemble(entries(batch, kv), shown)


@dataclass(frozen=True)
class KvSink:
    """How a bucket is written."""

    address: Address
    bucket: str
    mode: str
    write_id: str


class BucketWriter(DataSourceArrowWriter):
    """Rows become puts (or creates), deletes and purges; a repeated task repeats nothing within the duplicate window."""

    def __init__(self, sink: KvSink, schema: StructType) -> None:
        names = set(schema.names)
        if "key" not in names or not names <= {"key", "value", "operation", "ttl"}:
            raise SchemaError(
                f"a bucket takes the columns key, value, operation (put, delete, purge) and ttl; "
                f"there are {', '.join(schema.names)}"
            )
        facts = facts_of(sink.address, "$JS.API", f"KV_{sink.bucket}", 0.0)
        if "ttl" in names and not facts.config.get("allow_msg_ttl"):
            raise SchemaError(f"bucket {sink.bucket!r} takes no TTL: give it limit markers")
        self.sink = sink
        self.names = schema.names

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        from headrace.spark.sink import Written

        context = TaskContext.get()
        assert context is not None, "tasks have a context"
        sink = self.sink
        stream = f"KV_{sink.bucket}"
        target = Target(sink.address, "$JS.API", stream, "", sink.write_id, 0, context.partitionId())
        return Written(IdPublisher(target).publish(self._messages(iterator)))

    def _messages(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Message]:
        for batch in batches:
            for row in batch.rename_columns(self.names).to_pylist():
                yield self._message(row)

    def _message(self, row: dict[str, Any]) -> Message:
        operation = row.get("operation") or "put"
        if operation not in _HEADERS:
            raise SchemaError(f"operation {operation!r} is none of {', '.join(_HEADERS)}")
        lines = _HEADERS[operation]
        if operation == "put" and self.sink.mode == "create":
            lines += b"Nats-Expected-Last-Subject-Sequence: 0\r\n"
        if row.get("ttl") is not None:
            lines += b"Nats-TTL: %s\r\n" % ttl_text(row["ttl"]).encode()
        value = row.get("value") or b""
        body = value if isinstance(value, bytes) else str(value).encode()
        return f"$KV.{self.sink.bucket}.{row['key']}".encode(), lines, body


_HEADERS = {
    "put": b"",
    "delete": b"KV-Operation: DEL\r\n",
    "purge": b"KV-Operation: PURGE\r\nNats-Rollup: sub\r\n",
}
_SINK = {"mode": ("mode", str), "writeid": ("write_id", str)}


class KvSource(DataSource):
    """A bucket, to be read and written."""

    @classmethod
    def name(cls) -> str:
        return "headrace_kv"

    def schema(self) -> StructType:
        kv_options(self.options)
        return KV

    def reader(self, schema: StructType) -> BucketReader:
        return BucketReader(kv_options(self.options), schemas.arrow_schema(schema, KV))

    def streamReader(self, schema: StructType) -> ChangeReader:
        return ChangeReader(kv_options(self.options), schemas.arrow_schema(schema, KV))

    def writer(self, schema: StructType, overwrite: bool) -> BucketWriter:
        if overwrite:
            raise o.OptionError('a bucket is changed key by key: use .mode("append")')
        options = o.lowered(self.options)
        o.check_known(options, _SINK, also=("bucket",))
        mode = options.get("mode", "put")
        if mode not in ("put", "create"):
            raise o.OptionError(f"option `mode`: {mode!r} is neither put nor create")
        name = options.get("writeid", uuid.uuid4().hex)
        return BucketWriter(KvSink(o.address_of(options), o.required(options, "bucket"), mode, name), schema)
