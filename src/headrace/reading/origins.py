"""Where the rows of a reading come from: a snapshot in files, or a server on the wire.

Owns the two and the bounds of a read. Invariant: both give the same rows and types of the same messages. Must not know what
becomes of the rows.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark.options import Options
    from headrace.store.snapshots import Selection, Shape, Snapshot

Bound = int | datetime | str | None
Path = str | os.PathLike[str]
Batches = Iterator["pa.RecordBatch"]

_numbers = itertools.count(1)


class Origin(Protocol):
    """Where rows come from."""

    @property
    def position(self) -> int: ...
    @property
    def as_of(self) -> datetime: ...
    def key_prefix(self, bucket: str) -> str:
        """What the subjects of a bucket's keys begin with."""

    def batches(self, bounds: Bounds, shape: Shape) -> Callable[[], Batches]:
        """A way to read what is within the bounds, as often as wanted."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Bounds:
    """Which rows are wanted. A `is_table` is what each key has now: over the wire it is read to its very end."""

    patterns: tuple[str, ...]
    start: Bound
    end: Bound
    batch_rows: int
    is_table: bool = False


class Files:
    """A snapshot in files: a pin's, or that of a store that nobody has open."""

    def __init__(
        self,
        snapshot: Snapshot,
        release: Callable[[], None] = lambda: None,
        key_prefix: Callable[[str], str] | None = None,
    ) -> None:
        from headrace.spark.entries import prefix_of

        self.key_prefix = key_prefix or prefix_of
        self._snapshot = snapshot
        self._release: Callable[[], None] | None = release

    @property
    def position(self) -> int:
        return self._snapshot.manifest.committed_seq

    @property
    def as_of(self) -> datetime:
        return datetime.fromtimestamp(self._snapshot.manifest.as_of_ns / 1e9, UTC)

    def batches(self, bounds: Bounds, shape: Shape) -> Callable[[], Batches]:
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


class Wire:
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

    def key_prefix(self, bucket: str) -> str:
        from headrace.spark.streams import key_prefix

        return key_prefix(self._options, self._facts)

    def batches(self, bounds: Bounds, shape: Shape) -> Callable[[], Batches]:
        from headrace.spark.columns import OPEN_END

        if "size" in shape.columns:
            raise ValueError("there is no column size over the wire; take the length of data, or give `path`")
        start = max(self._place(bounds.start, self._facts.first_seq), self._facts.first_seq)
        end = min(self._place(bounds.end, self._facts.next_seq), self._facts.next_seq)
        span = _Span(
            start, OPEN_END if bounds.is_table and bounds.end is None else end, self._facts.first_seq
        )
        return lambda: self._rows(span, bounds, shape.schema())

    def _place(self, bound: Bound, default: int) -> int:
        seq, time_ns = _bound(bound)
        if time_ns is not None:
            return self._door.seq_at(time_ns) or self._facts.next_seq
        return default if seq is None else seq

    def _rows(self, span: _Span, bounds: Bounds, schema: pa.Schema) -> Batches:
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


def folder(folder: str, stream: str, pin: str | None) -> Origin:
    from headrace.store import snapshots

    return Files(snapshots.open_pin(folder, stream, pin) if pin else snapshots.open_folder(folder, stream))


def served(
    servers: str,
    stream: str,
    connection: Mapping[str, str] | None,
    path: Path | None,
    *,
    holds_claims: bool = False,
) -> Origin:
    """A stream of a server: by a pin that it grants where its files can be reached, else over the wire."""
    from headrace.spark import streams
    from headrace.spark.options import source_options
    from headrace.store.holding import store_folder
    from headrace.store.snapshots import open_pin

    given = {**(connection or {}), "servers": servers, "stream": stream}
    options = source_options(given if path is None else {**given, "path": os.fspath(path)})
    if holds_claims:
        from headrace.spark.leases import protect_once

        protect_once(options, 0)
    if path is None:
        return Wire(options)
    folder = str(store_folder(path))
    facts = streams.stream_facts(options)
    pin = streams.pin_stream(options)
    return Files(
        open_pin(folder, stream, pin),
        lambda: streams.unpin_stream(options, pin),
        lambda bucket: streams.key_prefix(options, facts),
    )


def _selection(bounds: Bounds) -> Selection:
    from headrace.store.snapshots import Selection

    first_seq, first_ns = _bound(bounds.start)
    end_seq, end_ns = _bound(bounds.end)
    return Selection(tuple(p.encode() for p in bounds.patterns), first_seq, end_seq, first_ns, end_ns)


def _bound(value: Bound) -> tuple[int | None, int | None]:
    """(sequence, nanoseconds): which of the two a bound names."""
    if isinstance(value, str):
        from headrace.spark.columns import OPEN_END
        from headrace.spark.options import bound_of

        place = bound_of(value)
        if place.word == "last-per-subject":
            raise ValueError("last-per-subject is a way to read a bucket: use read_kv")
        if place.word in ("earliest", "latest"):
            return (None, None) if place.word == "earliest" else (OPEN_END, None)
        return (None, place.time_ns) if place.time_ns else (place.seq, None)
    if value is None or isinstance(value, int):
        return value, None
    if value.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone; say which one, e.g. tzinfo=datetime.UTC")
    since = value - datetime(1970, 1, 1, tzinfo=UTC)
    return None, (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1000
