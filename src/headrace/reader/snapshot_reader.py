"""Reads rows of a stream from the files of a pin, wherever they are.

Owns the conversion from a snapshot to Spark's columns. Invariant: rows and values are those that direct gets return.
Opened snapshots are cached, because Spark's workers read many ranges of one pin. Must not know segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import StoreError
from headrace.reader.batch_cast import build_batch
from headrace.reader.claim_reference_column import make_claim_column
from headrace.reader.options import ReadOptions
from headrace.storage.snapshot.offline_pin import find_store_folder
from headrace.storage.snapshot.open_snapshot import ArrowLayout, Selection, StreamSnapshot, open_pin

SeqArray = npt.NDArray[np.uint64]

_BATCH_ROWS = 65_536


class Snapshot(Protocol):
    """The rows that a pin shows."""

    def batches(
        self, selection: Selection, layout: ArrowLayout, rows_max: int
    ) -> Iterator[pa.RecordBatch]: ...
    def find_last_per_subject(self, selection: Selection) -> SeqArray: ...


class PinFiles(Protocol):
    """Where the files of a pin are; a plain value that is sent to tasks.

    `DiskPin` and `http_snapshot.PinAccess` implement it.
    """

    def open(self) -> Snapshot: ...


@dataclass(frozen=True)
class DiskPin:
    """A pin whose files are below a folder."""

    path: str
    stream: str
    pin: str

    def open(self) -> StreamSnapshot:
        return _open_cached(self)

    def open_uncached(self) -> StreamSnapshot:
        return open_pin(str(find_store_folder(self.path)), self.stream, self.pin)

    def exists(self) -> bool:
        """Return whether the files are there now."""
        try:
            self.open_uncached().close()
        except StoreError:
            return False
        return True


@lru_cache(maxsize=4)
def _open_cached(pin: DiskPin) -> StreamSnapshot:
    return pin.open_uncached()


def make_selection(options: ReadOptions, start: int | None, end: int) -> Selection:
    """Select the query's subjects from `start` up to `end`."""
    return Selection((options.subject.encode(),) if options.subject else (), start, end)


def read_rows(files: PinFiles, selection: Selection, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the selected rows of a pin."""
    claim_inputs = ("headers", "data") if "claim" in schema.names else ()
    column_names = tuple(dict.fromkeys(name for name in (*schema.names, *claim_inputs) if name != "claim"))
    layout = ArrowLayout(column_names, "us", parse_headers=True)
    for batch in files.open().batches(selection, layout, _BATCH_ROWS):
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if "claim" in schema.names:
            columns["claim"] = make_claim_column(columns["headers"], columns["data"])
        yield build_batch(columns, schema)
