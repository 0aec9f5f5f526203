"""Reads ranges of a stream from the files of a pin.

Owns the conversion from a snapshot to Spark's columns. Invariant: rows and values are those that direct gets return.
Opened snapshots are cached, because Spark's workers read many ranges of one pin. Must not know segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.reader import http_snapshot
from headrace.reader.batch_cast import SeqRange, build_batch
from headrace.reader.claim_reference_column import make_claim_column
from headrace.reader.http_snapshot import PinAccess
from headrace.reader.options import ReadOptions
from headrace.storage.snapshot.offline_pin import find_store_folder
from headrace.storage.snapshot.open_snapshot import ArrowLayout, Selection, StreamSnapshot, open_pin

SeqArray = npt.NDArray[np.uint64]

_BATCH_ROWS = 65_536


def read_seq_range(
    options: ReadOptions,
    seq_range: SeqRange,
    schema: pa.Schema,
    *,
    token: str = "",
    only_seqs: SeqArray | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range, or only some of them; `token` is for a pin whose files the broker serves."""
    claim_inputs = ("headers", "data") if "claim" in schema.names else ()
    column_names = tuple(dict.fromkeys(name for name in (*schema.names, *claim_inputs) if name != "claim"))
    layout = ArrowLayout(column_names, "us", parse_headers=True)
    selection = replace(_make_selection(options, seq_range.start, seq_range.end), only_seqs=only_seqs)
    for batch in _read_batches(options, seq_range.pin, token, selection, layout):
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if "claim" in schema.names:
            columns["claim"] = make_claim_column(columns["headers"], columns["data"])
        yield build_batch(columns, schema)


def _read_batches(
    options: ReadOptions, pin: str, token: str, selection: Selection, layout: ArrowLayout
) -> Iterator[pa.RecordBatch]:
    if options.is_http_path:
        return http_snapshot.read_pin(make_pin_access(options, pin, token), selection, layout, _BATCH_ROWS)
    return _open_snapshot(options.path, options.stream, pin).batches(selection, layout, _BATCH_ROWS)


def find_last_per_subject(options: ReadOptions, end: int, pin: str, token: str) -> SeqArray:
    """Return the sequences of the last message of each subject below `end`, as a pin shows them."""
    selection = _make_selection(options, None, end)
    if options.is_http_path:
        return http_snapshot.find_last_per_subject(make_pin_access(options, pin, token), selection)
    return _open_snapshot(options.path, options.stream, pin).find_last_per_subject(selection)


def _make_selection(options: ReadOptions, start: int | None, end: int) -> Selection:
    return Selection((options.subject.encode(),) if options.subject else (), start, end)


def make_pin_access(options: ReadOptions, pin: str, token: str) -> PinAccess:
    """Return the access to a pin whose files the broker serves."""
    return PinAccess(options.path, options.stream, pin, token, options.address.tls_ca, options.reconnect_s)


@lru_cache(maxsize=4)
def _open_snapshot(path: str, stream: str, pin: str) -> StreamSnapshot:
    return open_pin(str(find_store_folder(path)), stream, pin)
