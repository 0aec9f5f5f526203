"""Ranges of a stream read from its files, as a pin shows them.

Owns the way from a snapshot to Spark's columns. Invariant: rows and values are those of the wire path. Opened
snapshots are kept, since Spark's workers read many ranges of one pin. Must not know segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.spark import served
from headrace.spark.claims import claim_column
from headrace.spark.columns import Span, assemble
from headrace.spark.options import Options
from headrace.spark.served import Grant
from headrace.store.holding import store_folder
from headrace.store.snapshots import Selection, Shape, Snapshot, open_pin

Seqs = npt.NDArray[np.uint64]

_BATCH_ROWS = 65_536


def read_range(
    options: Options, part: Span, schema: pa.Schema, *, token: str = "", only: Seqs | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, or only some of them; `token` is for a pin whose files the broker serves."""
    extra = ("headers", "data") if "claim" in schema.names else ()
    wanted = tuple(dict.fromkeys(name for name in (*schema.names, *extra) if name != "claim"))
    shape = Shape(wanted, "us", parse_headers=True)
    selection = replace(_selection(options, part.start, part.end), only=only)
    for batch in _batches(options, part.pin, token, selection, shape):
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if "claim" in schema.names:
            columns["claim"] = claim_column(columns["headers"], columns["data"])
        yield assemble(columns, schema)


def _batches(
    options: Options, pin: str, token: str, selection: Selection, shape: Shape
) -> Iterator[pa.RecordBatch]:
    if options.served:
        return served.read_pin(grant_of(options, pin, token), selection, shape, _BATCH_ROWS)
    return _opened(options.path, options.stream, pin).batches(selection, shape, _BATCH_ROWS)


def newest(options: Options, end: int, pin: str, token: str) -> Seqs:
    """The sequences of the last message of each subject below `end`, as a pin shows them."""
    selection = _selection(options, None, end)
    if options.served:
        return served.newest(grant_of(options, pin, token), selection)
    return _opened(options.path, options.stream, pin).newest(selection)


def _selection(options: Options, start: int | None, end: int) -> Selection:
    return Selection((options.subject.encode(),) if options.subject else (), start, end)


def grant_of(options: Options, pin: str, token: str) -> Grant:
    """What opens the files of a pin that the broker serves."""
    return Grant(options.path, options.stream, pin, token, options.address.tls_ca, options.reconnect_s)


@lru_cache(maxsize=4)
def _opened(path: str, stream: str, pin: str) -> Snapshot:
    return open_pin(str(store_folder(path)), stream, pin)
