"""`headrace.read`: the messages of a stream as a table, for pandas, polars, DuckDB, Spark or plain Arrow.

Owns the public `StreamScan`. Rows come from a store's folder, from a pin that a broker granted, or from a server
(`open_source`). Invariant: all rows of a folder or a pin come from one snapshot, and reading twice gives the same rows;
from a server the range of sequences is fixed when the scan is created, and messages removed later are missing. Must not
know segments or manifests (`headrace.storage` does), and imports pyarrow only when something is read: it is the extra
`headrace[read]`. See ADR 55.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headrace.reader.read_source import Backend, Batches, BoundLike, PathLike, ReadRange
from headrace.reader.row_mapper import RowFormat, make_claim_options, make_kv_reader, make_stream_reader

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from pyiceberg.table import Table

    from headrace.claims.config import ClaimConfig
    from headrace.reader.options import ReadOptions
    from headrace.reader.table_union import TableUnion

__all__ = ["StreamScan", "read", "read_kv"]


def read(
    source: PathLike,
    stream: str,
    subject: str | Sequence[str] | None = None,
    start: BoundLike = None,
    end: BoundLike = None,
    columns: Sequence[str] | None = None,
    *,
    path: PathLike | None = None,
    pin: str | None = None,
    claims: str = "",
    claim_config: ClaimConfig | PathLike | None = None,
    claim_errors: str = "fail",
    time_unit: str = "ns",
    parse_headers: bool | None = None,
    views: bool = False,
    batch_rows: int = 65_536,
    connection: Mapping[str, str] | None = None,
    table: Table | None = None,
) -> StreamScan:
    """Read the live, committed messages of `stream`, as of now, in sequence order.

    `source` is the address of a server (`nats://...`, several separated by commas), a store's folder that no broker has
    open or, with `pin`, one whose broker made that pin. With an address and `path`, the folder of that broker's store,
    the broker is asked for a pin and the files are read, which is much faster. `connection` has the options of the
    Spark source: user, password, token, creds, tlsCa, ...

    `subject` filters with NATS wildcards. `start` (included) and `end` (excluded) are sequences, datetimes (compared
    with the time a message was stored), or texts as in Spark: "-10m", "2026-01-31T12:00Z". `columns` selects among seq,
    time, subject, headers, data, expires_at and size (not from a server). `parse_headers` gives map<string,
    list<string>> instead of the raw block; headers from a server are always parsed. `views` leaves payloads in the
    mapped files (Arrow's binary_view); `time_unit="us"` is for engines without nanoseconds.

    `claims="ref"` adds column `claim`, the reference to a payload in an object store; `"inline"` fetches these payloads
    into `data`, with the configuration in `claim_config`. Bad claims raise, or with `claim_errors="column"` are
    reported in column `claim_error`. From a server, a scan with claims registers a lease, so that no collector deletes
    what it may need; the lease lasts an hour.

    `table` is a table of pyiceberg that `headrace table run` writes from the stream: its rows come first, and then those
    that the stream has above it, also messages that the stream no longer has. Columns and their types are those of the
    table. Rows of the table are in the order of its files.
    """
    _require_pyarrow()
    if table is not None and (claims or views or pin):
        raise ValueError("table cannot be combined with claims, views and pin")
    options = _make_options(source, stream, path, connection)
    row_format = RowFormat(time_unit, views, bool(parse_headers) or options.servers_given or bool(claims))
    backend = _open_backend(options, pin, lease_claims=bool(claims))
    try:
        read_range = ReadRange(_to_patterns(subject), start, end, batch_rows)
        if table is not None:
            return StreamScan(backend, *_make_union(table, options, backend).make_reader(read_range, columns))
        claim_options = make_claim_options(claims, claim_config, claim_errors)
        return StreamScan(
            backend, *make_stream_reader(backend, read_range, row_format, columns, claim_options)
        )
    except BaseException:
        backend.close()
        raise


def read_kv(
    source: PathLike,
    bucket: str,
    keys: str | Sequence[str] = ">",
    *,
    history: bool = False,
    start: BoundLike = None,
    end: BoundLike = None,
    path: PathLike | None = None,
    pin: str | None = None,
    time_unit: str = "ns",
    batch_rows: int = 65_536,
    connection: Mapping[str, str] | None = None,
) -> StreamScan:
    """Read the live keys of a bucket, or with `history` all entries it still has.

    The columns are key, value, revision, time, operation (put, delete, purge, expired) and expires_at. `keys` are
    patterns such as `fruit.*`; the other arguments are as in `read`. Only a server knows that a bucket is a mirror that
    has the keys of its upstream: read from a folder alone, such a bucket shows no keys.
    """
    _require_pyarrow()
    backend = _open_backend(_make_options(source, f"KV_{bucket}", path, connection), pin)
    try:
        prefix = backend.find_key_prefix(bucket)
        read_range = ReadRange(
            tuple(prefix + key for key in _to_patterns(keys)), start, end, batch_rows, is_table=not history
        )
        return StreamScan(
            backend, *make_kv_reader(backend, read_range, RowFormat(time_unit, False, True), prefix, history)
        )
    except BaseException:
        backend.close()
        raise


class StreamScan:
    """Rows of a stream or bucket that can be read as a table, any number of times.

    It implements the Arrow C stream interface, so `polars.DataFrame(r)`, `duckdb.sql("from r")` and `pyarrow.table(r)`
    accept it directly.
    """

    def __init__(self, backend: Backend, schema: pa.Schema, batches: Callable[[], Batches]) -> None:
        self._backend = backend
        self._schema = schema
        self._batches = batches

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return self._schema

    @property
    def position(self) -> int:
        """The last committed sequence of the stream when the scan was created."""
        return self._backend.position

    @property
    def as_of(self) -> datetime:
        """The time at which the scan shows the stream."""
        return self._backend.as_of

    def __iter__(self) -> Batches:
        return self._batches()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a stream of record batches."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self._schema, iter(self))

    def to_table(self) -> pa.Table:
        """Read all rows into memory."""
        return self.to_reader().read_all()

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """Return all rows as a pandas DataFrame; `options` go to `pyarrow.Table.to_pandas`."""
        return self.to_table().to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a polars DataFrame."""
        import polars as pl

        return pl.DataFrame(self)

    def close(self) -> None:
        """Release the snapshot. Rows already returned stay valid."""
        self._backend.close()

    def __enter__(self) -> StreamScan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _make_options(
    source: PathLike, stream: str, path: PathLike | None, connection: Mapping[str, str] | None
) -> ReadOptions:
    """Return the options that select the servers in `source`, or the folder."""
    from headrace.reader.blocking_connection import ServerAddress
    from headrace.reader.options import ReadOptions, parse_read_options, require_one_stream

    if not (isinstance(source, str) and "://" in source):
        return ReadOptions(ServerAddress(), stream, path=os.fspath(source) or os.curdir)
    raw_options = {**(connection or {}), "servers": source, "stream": stream}
    if path is not None:
        raw_options["path"] = os.fspath(path) or os.curdir
    return require_one_stream(parse_read_options(raw_options), "headrace.read")


def _open_backend(options: ReadOptions, pin: str | None, *, lease_claims: bool = False) -> Backend:
    from headrace.reader.open_source import open_source

    source = open_source(options)
    if lease_claims:
        source.lease_claims(0)
    return source.open_backend(pin or "")


def _make_union(table: Table, options: ReadOptions, backend: Backend) -> TableUnion:
    from headrace.reader.open_source import open_source
    from headrace.reader.table_union import TableUnion

    info = open_source(options).get_info()
    return TableUnion(table, info, backend, fail_on_data_loss=options.fail_on_data_loss)


def _require_pyarrow() -> None:
    try:
        from headrace.storage.snapshot import open_snapshot  # noqa: F401
    except ImportError as error:
        if error.name and error.name.split(".")[0] == "pyarrow":
            raise ImportError("headrace.read needs pyarrow: pip install 'headrace[read]'") from error
        raise


def _to_patterns(patterns: str | Sequence[str] | None) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else tuple(patterns or ())
