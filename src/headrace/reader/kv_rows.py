"""Converts the stored messages of a bucket to rows of keys and values.

Owns the conversion from a stream's columns to a bucket's columns. Invariant: a table has each key once, with its newest
value, and no key without a value. Must not know Spark, nor how rows come from a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

#: Stream columns that these are made from.
STREAM_COLUMNS = ("seq", "time", "subject", "headers", "data", "expires_at")
KV_COLUMNS = ("key", "value", "revision", "time", "operation", "expires_at")
#: Operation on the key, by header value.
_OPERATION_NAMES = {"DEL": "delete", "PURGE": "purge"}
_MARKER_OPERATIONS = {"MaxAge": "expired", "Purge": "purge", "Remove": "delete"}


def make_key_prefix(bucket: str) -> str:
    """Return the prefix of the subjects of a bucket's keys."""
    return f"$KV.{bucket}."


def to_kv_columns(batch: pa.RecordBatch, prefix: str) -> dict[str, pa.Array]:
    """Make columns of a bucket from columns of its stream."""
    operations = get_operations(batch.column("headers"))
    is_put = pc.equal(operations, "put")
    data = batch.column("data")
    return {
        "key": pc.utf8_slice_codeunits(batch.column("subject"), len(prefix)),
        "value": pc.if_else(is_put, data, pa.nulls(batch.num_rows, data.type)),
        "revision": batch.column("seq"),
        "time": batch.column("time"),
        "operation": operations,
        "expires_at": batch.column("expires_at"),
    }


def get_operations(headers: pa.MapArray) -> pa.Array:
    """Return the operation of each message on its key."""
    if headers.null_count == len(headers):
        return pa.array(["put"] * len(headers), pa.string())
    explicit = _map_header_values(headers, "KV-Operation", _OPERATION_NAMES)
    from_marker = _map_header_values(headers, "Nats-Marker-Reason", _MARKER_OPERATIONS)
    return pc.coalesce(explicit, from_marker, pa.scalar("put"))


def _map_header_values(headers: pa.MapArray, name: str, names: Mapping[str, str]) -> pa.Array:
    found = pc.map_lookup(headers, pa.scalar(name), "first")
    values = pc.list_element(pc.fill_null(found, [None]), 0)
    indexes = pc.index_in(values, pa.array(list(names)))
    return pa.array(list(names.values())).take(indexes)


def latest_per_key(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the newest entry of each key, if it is a value."""
    table = pa.Table.from_batches(batches, schema)
    last_revisions = table.group_by("key").aggregate([("revision", "max")]).column("revision_max")
    mask = pc.and_(
        pc.is_in(table.column("revision"), last_revisions), pc.equal(table.column("operation"), "put")
    )
    yield from table.filter(mask).combine_chunks().to_batches(max_chunksize=65_536)
