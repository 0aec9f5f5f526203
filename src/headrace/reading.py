"""`headrace.read`: the messages of a stream as a table, for pandas, polars, DuckDB, Spark or plain Arrow.

Owns the public reading object. Invariant: all rows come from one snapshot; reading twice gives the same rows,
and closing releases the snapshot. Must not know segments or manifests (`headrace.store` does), and imports
pyarrow only when something is read: it is the optional extra `headrace[read]`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from headrace.store.snapshots import Selection, Snapshot

__all__ = ["Reading", "read"]

Bound = int | datetime | None


def read(
    source: str | os.PathLike[str],
    stream: str,
    subject: str | Sequence[str] | None = None,
    start: Bound = None,
    end: Bound = None,
    columns: Sequence[str] | None = None,
    *,
    pin: str | None = None,
    time_unit: str = "ns",
    parse_headers: bool = False,
    views: bool = False,
    batch_rows: int = 65_536,
) -> Reading:
    """The live, committed messages of `stream`, as of now, in sequence order.

    `source` is a store's folder that no broker has open or, with `pin`, one whose broker made that pin.
    `subject` filters with NATS wildcards. `start` (included) and `end` (excluded) are sequences, or datetimes
    that speak of stored-at times. `columns` choose among seq, time, subject, headers, data, expires_at, size.
    `parse_headers` gives map<string, list<string>> instead of the raw block; `views` leaves payloads in the
    mapped files (Arrow's binary_view); `time_unit="us"` is for engines without nanoseconds.
    """
    store = _with_arrow()
    chosen = tuple(columns) if columns is not None else store.COLUMNS
    shape = store.Shape(chosen, time_unit, views, parse_headers)
    selection = _selection(subject, start, end)
    folder = os.fspath(source)
    snapshot = store.open_pin(folder, stream, pin) if pin else store.open_folder(folder, stream)
    return Reading(snapshot, selection, shape, batch_rows)


class Reading:
    """A snapshot of a stream, ready to be taken as a table, as often as wanted.

    It speaks the Arrow C stream interface, so `polars.DataFrame(r)`, `duckdb.sql("from r")` and
    `pyarrow.table(r)` take it as it is.
    """

    def __init__(
        self, snapshot: Snapshot, selection: Selection, shape: Any, batch_rows: int = 65_536
    ) -> None:
        self._snapshot = snapshot
        self._selection = selection
        self._shape = shape
        self._batch_rows = batch_rows
        self._schema: pa.Schema = shape.schema()

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return self._schema

    @property
    def position(self) -> int:
        """The last committed sequence of the stream when the snapshot was made."""
        return self._snapshot.manifest.committed_seq

    @property
    def as_of(self) -> datetime:
        """The moment the snapshot shows."""
        return datetime.fromtimestamp(self._snapshot.manifest.as_of_ns / 1e9, UTC)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._snapshot.batches(self._selection, self._shape, self._batch_rows)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream of record batches."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self._schema, iter(self))

    def to_table(self) -> pa.Table:
        """All rows in memory."""
        return self.to_reader().read_all()

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """All rows as a pandas frame; `options` go to `pyarrow.Table.to_pandas`."""
        return self.to_table().to_pandas(**options)

    def close(self) -> None:
        """Release the snapshot. Rows already handed out stay valid."""
        self._snapshot.close()

    def __enter__(self) -> Reading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _with_arrow() -> Any:
    try:
        from headrace.store import snapshots
    except ImportError as error:
        if error.name and error.name.split(".")[0] == "pyarrow":
            raise ImportError("headrace.read needs pyarrow: pip install 'headrace[read]'") from error
        raise
    return snapshots


def _selection(subject: str | Sequence[str] | None, start: Bound, end: Bound) -> Selection:
    from headrace.store.snapshots import Selection

    patterns = (subject,) if isinstance(subject, str) else tuple(subject or ())
    first_seq, first_ns = _bound(start)
    end_seq, end_ns = _bound(end)
    return Selection(tuple(p.encode() for p in patterns), first_seq, end_seq, first_ns, end_ns)


def _bound(value: Bound) -> tuple[int | None, int | None]:
    """(sequence, nanoseconds): which of the two a bound names."""
    if value is None or isinstance(value, int):
        return value, None
    if value.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone; say which one, e.g. tzinfo=datetime.UTC")
    since = value - datetime(1970, 1, 1, tzinfo=UTC)
    return None, (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000
