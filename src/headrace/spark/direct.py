"""Ranges of a stream read from its files, as a pin shows them.

Owns the way from a snapshot to Spark's columns. Invariant: rows and values are those of the wire path. Opened
snapshots are kept, since Spark's workers read many ranges of one pin. Must not know segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import pyarrow as pa

from headrace.spark.claims import claim_column
from headrace.spark.columns import Span, assemble
from headrace.spark.options import Options
from headrace.store.holding import store_folder
from headrace.store.snapshots import Selection, Shape, Snapshot, open_pin

_BATCH_ROWS = 65_536


def read_range(options: Options, part: Span, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a range."""
    extra = ("headers", "data") if "claim" in schema.names else ()
    wanted = tuple(dict.fromkeys(name for name in (*schema.names, *extra) if name != "claim"))
    shape = Shape(wanted, "us", parse_headers=True)
    patterns = (options.subject.encode(),) if options.subject else ()
    snapshot = _opened(options.path, options.stream, part.pin)
    for batch in snapshot.batches(Selection(patterns, part.start, part.end), shape, _BATCH_ROWS):
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if "claim" in schema.names:
            columns["claim"] = claim_column(columns["headers"], columns["data"])
        yield assemble(columns, schema)


@lru_cache(maxsize=4)
def _opened(path: str, stream: str, pin: str) -> Snapshot:
    return open_pin(str(store_folder(path)), stream, pin)
