"""What stored messages mean for the keys of a bucket, in columns.

Owns the way from columns of a stream to columns of a bucket. Invariant: a table has each key once, with its newest value,
and no key that has none. Must not know Spark, nor how rows come from a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

#: Columns of a stream that these are made of.
NEEDED = ("seq", "time", "subject", "headers", "data", "expires_at")
COLUMNS = ("key", "value", "revision", "time", "operation", "expires_at")
#: What a header says happened to the key.
_OPERATIONS = {"DEL": "delete", "PURGE": "purge"}
_REASONS = {"MaxAge": "expired", "Purge": "purge", "Remove": "delete"}


def prefix_of(bucket: str) -> str:
    """What the subjects of a bucket's keys begin with."""
    return f"$KV.{bucket}."


def entries(batch: pa.RecordBatch, prefix: str) -> dict[str, pa.Array]:
    """Columns of a bucket from columns of its stream."""
    operations = _operations(batch.column("headers"))
    put = pc.equal(operations, "put")
    data = batch.column("data")
    return {
        "key": pc.utf8_slice_codeunits(batch.column("subject"), len(prefix)),
        "value": pc.if_else(put, data, pa.nulls(batch.num_rows, data.type)),
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


def live(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The newest entry of each key, if it is a value."""
    table = pa.Table.from_batches(batches, schema)
    newest = table.group_by("key").aggregate([("revision", "max")]).column("revision_max")
    kept = pc.and_(pc.is_in(table.column("revision"), newest), pc.equal(table.column("operation"), "put"))
    yield from table.filter(kept).combine_chunks().to_batches(max_chunksize=65_536)
