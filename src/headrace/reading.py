"""`headrace.read`: the messages of a stream as a table, for pandas, polars, DuckDB, Spark or plain Arrow.

Owns the public reading object and where its rows come from: a store's folder, a pin that a broker granted, or the wire.
Invariant: all rows of a folder or a pin come from one snapshot, and reading twice gives the same rows; over the wire the
range of sequences is fixed when the reading is made, and what is removed meanwhile is missing. Must not know segments or
manifests (`headrace.store` does), and imports pyarrow only when something is read: it is the extra `headrace[read]`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from headrace.claims.config import ClaimConfig
    from headrace.spark.options import Options
    from headrace.store.snapshots import Selection, Shape, Snapshot

__all__ = ["Reading", "read", "read_kv"]

Bound = int | datetime | str | None
Path = str | os.PathLike[str]
Batches = Iterator["pa.RecordBatch"]

_numbers = itertools.count(1)
#: Wherever a bucket ends by then.
_END = 1 << 62


def read(
    source: Path,
    stream: str,
    subject: str | Sequence[str] | None = None,
    start: Bound = None,
    end: Bound = None,
    columns: Sequence[str] | None = None,
    *,
    path: Path | None = None,
    pin: str | None = None,
    claims: str = "",
    claim_config: ClaimConfig | Path | None = None,
    claim_errors: str = "fail",
    time_unit: str = "ns",
    parse_headers: bool | None = None,
    views: bool = False,
    batch_rows: int = 65_536,
    connection: Mapping[str, str] | None = None,
) -> Reading:
    """The live, committed messages of `stream`, as of now, in sequence order.

    `source` is the address of a server (`nats://...`, several separated by commas), a store's folder that no broker has
    open or, with `pin`, one whose broker made that pin. With an address and `path`, the folder of that broker's store,
    the broker is asked for a pin and the files are read, which is much faster. `connection` has the options of the
    Spark source: user, password, token, creds, tlsCa, ...

    `subject` filters with NATS wildcards. `start` (included) and `end` (excluded) are sequences, datetimes that speak of
    stored-at times, or texts as in Spark: "-10m", "2026-01-31T12:00Z". `columns` choose among seq, time, subject,
    headers, data, expires_at and size (not over the wire). `parse_headers` gives map<string, list<string>> instead of
    the raw block; from a server they always come so. `views` leaves payloads in the mapped files (Arrow's binary_view);
    `time_unit="us"` is for engines without nanoseconds.

    `claims="ref"` adds column `claim`, the reference of a payload that lies in an object store; `"inline"` fetches these
    payloads into `data`, with the configuration in `claim_config`. Bad claims raise, or with `claim_errors="column"`
    are told of in column `claim_error`.
    """
    _with_arrow()
    is_server = _is_server(source)
    dress = _Dress(time_unit, views, bool(parse_headers) or is_server or bool(claims))
    origin = (
        _served(os.fspath(source), stream, connection, path)
        if is_server
        else _folder(os.fspath(source), stream, pin)
    )
    try:
        bounds = _Bounds(_patterns(subject), start, end, batch_rows)
        resolving = _claims_of(claims, claim_config, claim_errors)
        return Reading(origin, *_stream_rows(origin, bounds, dress, columns, resolving))
    except BaseException:
        origin.close()
        raise


def read_kv(
    source: Path,
    bucket: str,
    keys: str | Sequence[str] = ">",
    *,
    history: bool = False,
    start: Bound = None,
    end: Bound = None,
    path: Path | None = None,
    pin: str | None = None,
    time_unit: str = "ns",
    batch_rows: int = 65_536,
    connection: Mapping[str, str] | None = None,
) -> Reading:
    """The live keys of a bucket, or with `history` all that it still has: key, value, revision, time, operation
    (put, delete, purge, expired), expires_at. `keys` are patterns such as `fruit.*`; the rest is as with `read`.
    """
    _with_arrow()
    is_server, stream = _is_server(source), f"KV_{bucket}"
    origin = (
        _served(os.fspath(source), stream, connection, path)
        if is_server
        else _folder(os.fspath(source), stream, pin)
    )
    try:
        patterns = tuple(f"$KV.{bucket}.{key}" for key in _patterns(keys))
        bounds = _Bounds(patterns, start, end, batch_rows, is_table=not history)
        return Reading(origin, *_bucket_rows(origin, bounds, _Dress(time_unit, False, True), bucket, history))
    except BaseException:
        origin.close()
        raise


class Reading:
    """Rows of a stream or bucket, ready to be taken as a table, as often as wanted.

    It speaks the Arrow C stream interface, so `polars.DataFrame(r)`, `duckdb.sql("from r")` and
    `pyarrow.table(r)` take it as it is.
    """

    def __init__(self, origin: Origin, schema: pa.Schema, batches: Callable[[], Batches]) -> None:
        self._origin = origin
        self._schema = schema
        self._batches = batches

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return self._schema

    @property
    def position(self) -> int:
        """The last committed sequence of the stream when the reading was made."""
        return self._origin.position

    @property
    def as_of(self) -> datetime:
        """The moment the reading shows."""
        return self._origin.as_of

    def __iter__(self) -> Batches:
        return self._batches()

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

    def to_polars(self) -> pl.DataFrame:
        """All rows as a polars frame."""
        import polars as pl

        return pl.DataFrame(self)

    def close(self) -> None:
        """Release the snapshot. Rows already handed out stay valid."""
        self._origin.close()

    def __enter__(self) -> Reading:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Origin(Protocol):
    """Where rows come from."""

    @property
    def position(self) -> int: ...
    @property
    def as_of(self) -> datetime: ...
    def batches(self, bounds: _Bounds, shape: Shape) -> Callable[[], Batches]:
        """A way to read what is within the bounds, as often as wanted."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class _Bounds:
    """Which rows are wanted. A `is_table` is what each key has now: over the wire it is read to its very end."""

    patterns: tuple[str, ...]
    start: Bound
    end: Bound
    batch_rows: int
    is_table: bool = False


@dataclass(frozen=True)
class _Dress:
    """In which types they are wanted."""

    unit: str
    views: bool
    parsed: bool

    def shape(self, columns: Sequence[str]) -> Shape:
        from headrace.store.snapshots import Shape

        return Shape(tuple(columns), self.unit, self.views, self.parsed)


class _Files:
    """A snapshot in files: a pin's, or that of a store that nobody has open."""

    def __init__(self, snapshot: Snapshot, release: Callable[[], None] = lambda: None) -> None:
        self._snapshot = snapshot
        self._release: Callable[[], None] | None = release

    @property
    def position(self) -> int:
        return self._snapshot.manifest.committed_seq

    @property
    def as_of(self) -> datetime:
        return datetime.fromtimestamp(self._snapshot.manifest.as_of_ns / 1e9, UTC)

    def batches(self, bounds: _Bounds, shape: Shape) -> Callable[[], Batches]:
        selection = _selection(bounds)
        return lambda: self._snapshot.batches(selection, shape, bounds.batch_rows)

    def close(self) -> None:
        self._snapshot.close()
        release, self._release = self._release, None
        if release is not None:
            release()


@dataclass(frozen=True)
class _Span:
    """A range of sequences for the wire's reader."""

    start: int
    end: int
    first_seq: int
    pin: str = ""


class _Wire:
    """A server; each pass over the rows has a connection of its own, so that several can be under way."""

    def __init__(self, options: Options) -> None:
        from headrace.spark.doors import WireDoor

        self._options = options
        self._door = WireDoor(options)
        self._facts = self._door.facts()
        self.as_of = datetime.now(UTC)

    @property
    def position(self) -> int:
        return self._facts.next_seq - 1

    def batches(self, bounds: _Bounds, shape: Shape) -> Callable[[], Batches]:
        if "size" in shape.columns:
            raise ValueError("there is no column size over the wire; take the length of data, or give `path`")
        start = max(self._place(bounds.start, self._facts.first_seq), self._facts.first_seq)
        end = min(self._place(bounds.end, self._facts.next_seq), self._facts.next_seq)
        span = _Span(start, _END if bounds.is_table and bounds.end is None else end, self._facts.first_seq)
        return lambda: self._rows(span, bounds, shape.schema())

    def _place(self, bound: Bound, default: int) -> int:
        seq, time_ns = _bound(bound)
        if time_ns is not None:
            return self._door.seq_at(time_ns) or self._facts.next_seq
        return default if seq is None else seq

    def _rows(self, span: _Span, bounds: _Bounds, schema: pa.Schema) -> Batches:
        from headrace.spark import link, wire

        address = replace(self._options.address, name=f"headrace.read {next(_numbers)}")
        subject = bounds.patterns[0] if len(bounds.patterns) == 1 else ""
        options = replace(self._options, address=address, subject=subject, fail_on_data_loss=False)
        needed = schema if "subject" in schema.names else schema.append(_text_field("subject"))
        try:
            for batch in wire.read_range(options, span, needed):
                kept = batch if subject else _matching(batch, bounds.patterns)
                yield kept if needed is schema else kept.select(schema.names)
        finally:
            link.drop_link(address)

    def close(self) -> None:
        from headrace.spark import link

        link.drop_link(self._options.address)


def _text_field(name: str) -> pa.Field:
    import pyarrow as pa

    return pa.field(name, pa.string(), nullable=False)


def _matching(batch: pa.RecordBatch, patterns: tuple[str, ...]) -> pa.RecordBatch:
    """The rows whose subject matches one of several patterns: a server filters by one at most."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from headrace.protocol.subjects import matches

    if not patterns:
        return batch
    subjects = batch.column("subject")
    wanted = [
        text
        for text in pc.unique(subjects).to_pylist()
        if any(matches(pattern.encode(), text.encode()) for pattern in patterns)
    ]
    return batch.filter(pc.is_in(subjects, pa.array(wanted, pa.string())))


def _is_server(source: Path) -> bool:
    return isinstance(source, str) and "://" in source


def _folder(folder: str, stream: str, pin: str | None) -> Origin:
    from headrace.store import snapshots

    return _Files(snapshots.open_pin(folder, stream, pin) if pin else snapshots.open_folder(folder, stream))


def _served(servers: str, stream: str, connection: Mapping[str, str] | None, path: Path | None) -> Origin:
    """A stream of a server: by a pin that it grants where its files can be reached, else over the wire."""
    from headrace.spark import streams
    from headrace.spark.options import source_options
    from headrace.store.holding import store_folder
    from headrace.store.snapshots import open_pin

    given = {**(connection or {}), "servers": servers, "stream": stream}
    options = source_options(given if path is None else {**given, "path": os.fspath(path)})
    if path is None:
        return _Wire(options)
    folder = str(store_folder(path))
    streams.stream_facts(options)
    pin = streams.pin_stream(options)
    return _Files(open_pin(folder, stream, pin), lambda: streams.unpin_stream(options, pin))


def _stream_rows(
    origin: Origin,
    bounds: _Bounds,
    dress: _Dress,
    columns: Sequence[str] | None,
    resolving: Options | None,
) -> tuple[pa.Schema, Callable[[], Batches]]:
    """The schema of a stream's rows, and a way to read them."""
    from headrace.store.snapshots import COLUMNS

    known = COLUMNS if isinstance(origin, _Files) else tuple(name for name in COLUMNS if name != "size")
    wanted = tuple(columns) if columns is not None else known
    if resolving is None:
        shape = dress.shape(wanted)
        return shape.schema(), origin.batches(bounds, shape)
    if dress.views:
        raise ValueError("views=True leaves payloads in the files of the stream; claims are elsewhere")
    base = [name for name in wanted if name not in ("claim", "claim_error")]
    shape = dress.shape(list(dict.fromkeys([*base, "headers", "data"])))
    schema = _claim_schema(shape.schema(), wanted, resolving)
    plain = origin.batches(bounds, shape)
    return schema, lambda: _with_claims(plain(), schema, resolving)


def _claim_schema(base: pa.Schema, wanted: Sequence[str], resolving: Options) -> pa.Schema:
    import pyarrow as pa

    from headrace.spark.claims import CLAIM_KIND

    fields = {field.name: field.with_nullable(field.nullable or field.name == "data") for field in base}
    fields["claim"] = pa.field("claim", CLAIM_KIND)
    names = [*wanted, *(name for name in ("claim",) if name not in wanted)]
    if resolving.claims == "inline" and resolving.claim_errors == "column":
        fields["claim_error"] = pa.field("claim_error", pa.string())
        names += [name for name in ("claim_error",) if name not in names]
    return pa.schema([fields[name] for name in names])


def _with_claims(batches: Iterable[pa.RecordBatch], schema: pa.Schema, resolving: Options) -> Batches:
    from headrace.spark.claims import claim_column

    def told() -> Batches:
        for batch in batches:
            yield batch.append_column("claim", claim_column(batch.column("headers"), batch.column("data")))

    if resolving.claims == "ref":
        return (batch.select(schema.names).cast(schema) for batch in told())
    from headrace.spark.resolving import inlined

    return inlined(told(), schema, resolving)


def _claims_of(claims: str, config: ClaimConfig | Path | None, errors: str) -> Options | None:
    """How claims are read; None when nobody asked for them."""
    if not claims:
        return None
    from headrace.spark.link import Address
    from headrace.spark.options import Options

    if claims not in ("ref", "inline") or errors not in ("fail", "column"):
        raise ValueError(f"claims={claims!r} with claim_errors={errors!r}: say ref or inline, fail or column")
    options = Options(Address(), "", claims=claims, claim_errors=errors)
    if claims == "ref":
        return options
    from headrace.spark.payloads import configs_of, usable

    if config is None:
        raise ValueError('claims="inline" needs claim_config, a ClaimConfig or a YAML file')
    found = configs_of(config) if isinstance(config, str | os.PathLike) else usable([config])
    return replace(options, claim_configs=found)


def _bucket_rows(
    origin: Origin, bounds: _Bounds, dress: _Dress, bucket: str, history: bool
) -> tuple[pa.Schema, Callable[[], Batches]]:
    """The schema of a bucket's rows, and a way to read them."""
    import pyarrow as pa

    from headrace.spark import entries as kv
    from headrace.spark.columns import assemble

    time = pa.timestamp(dress.unit, tz="UTC")
    kinds = (pa.string(), pa.binary(), pa.uint64(), time, pa.string(), time)
    schema = pa.schema(list(zip(kv.COLUMNS, kinds, strict=True)))
    plain = origin.batches(bounds, dress.shape(kv.NEEDED))

    def rows() -> Batches:
        prefix = kv.prefix_of(bucket)
        return (assemble(kv.entries(batch, prefix), schema) for batch in plain())

    return schema, rows if history else (lambda: kv.live(rows(), schema))


def _with_arrow() -> None:
    try:
        from headrace.store import snapshots  # noqa: F401
    except ImportError as error:
        if error.name and error.name.split(".")[0] == "pyarrow":
            raise ImportError("headrace.read needs pyarrow: pip install 'headrace[read]'") from error
        raise


def _patterns(given: str | Sequence[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def _selection(bounds: _Bounds) -> Selection:
    from headrace.store.snapshots import Selection

    first_seq, first_ns = _bound(bounds.start)
    end_seq, end_ns = _bound(bounds.end)
    return Selection(tuple(p.encode() for p in bounds.patterns), first_seq, end_seq, first_ns, end_ns)


def _bound(value: Bound) -> tuple[int | None, int | None]:
    """(sequence, nanoseconds): which of the two a bound names."""
    if isinstance(value, str):
        from headrace.spark.options import bound_of

        place = bound_of(value)
        if place.word == "last-per-subject":
            raise ValueError("last-per-subject is a way to read a bucket: use read_kv")
        if place.word in ("earliest", "latest"):
            return (None, None) if place.word == "earliest" else (_END, None)
        return (None, place.time_ns) if place.time_ns else (place.seq, None)
    if value is None or isinstance(value, int):
        return value, None
    if value.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone; say which one, e.g. tzinfo=datetime.UTC")
    since = value - datetime(1970, 1, 1, tzinfo=UTC)
    return None, (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000
