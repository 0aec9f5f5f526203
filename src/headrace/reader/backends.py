"""Backends of a scan: a snapshot in files, or a server.

Owns both backends and the range of a read. Invariant: both return the same rows and types for the same messages. Must
not know how the rows are used.
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

    from headrace.reader.options import ReadOptions
    from headrace.storage.snapshot.open_snapshot import ArrowLayout, Selection, StreamSnapshot

BoundLike = int | datetime | str | None
PathLike = str | os.PathLike[str]
Batches = Iterator["pa.RecordBatch"]

_connection_numbers = itertools.count(1)


class Backend(Protocol):
    """Source of rows."""

    @property
    def position(self) -> int: ...
    @property
    def as_of(self) -> datetime: ...
    def find_key_prefix(self, bucket: str) -> str:
        """Return the prefix of the subjects of a bucket's keys."""

    def make_batch_reader(self, read_range: ReadRange, layout: ArrowLayout) -> Callable[[], Batches]:
        """Return a function that reads the range, any number of times."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class ReadRange:
    """Which rows to read. With `is_table` (the current value of each key) a server is read to the end of the stream."""

    patterns: tuple[str, ...]
    start: BoundLike
    end: BoundLike
    batch_rows: int
    is_table: bool = False


class SnapshotBackend:
    """A snapshot in files: of a pin, or of a store that no broker has open."""

    def __init__(
        self,
        snapshot: StreamSnapshot,
        release: Callable[[], None] = lambda: None,
        find_key_prefix: Callable[[str], str] | None = None,
    ) -> None:
        from headrace.reader.kv_rows import make_key_prefix

        self.find_key_prefix = find_key_prefix or make_key_prefix
        self._snapshot = snapshot
        self._release: Callable[[], None] | None = release

    @property
    def position(self) -> int:
        return self._snapshot.manifest.committed_seq

    @property
    def as_of(self) -> datetime:
        return datetime.fromtimestamp(self._snapshot.manifest.as_of_ns / 1e9, UTC)

    def make_batch_reader(self, read_range: ReadRange, layout: ArrowLayout) -> Callable[[], Batches]:
        selection = _make_selection(read_range)
        return lambda: self._snapshot.batches(selection, layout, read_range.batch_rows)

    def close(self) -> None:
        self._snapshot.close()
        release, self._release = self._release, None
        if release is not None:
            release()


@dataclass(frozen=True)
class _FixedSeqRange:
    """A range of sequences for the direct-get reader."""

    start: int
    end: int
    first_seq: int
    pin: str = ""


class ServerBackend:
    """A server; each pass over the rows has its own connection, so that several can run at once."""

    def __init__(self, options: ReadOptions) -> None:
        from headrace.reader.stream_catalog import ServerSource

        self._options = options
        self._source = ServerSource(options)
        self._stream_info = self._source.get_info()
        self.as_of = datetime.now(UTC)

    @property
    def position(self) -> int:
        return self._stream_info.next_seq - 1

    def find_key_prefix(self, bucket: str) -> str:
        from headrace.reader.stream_admin import find_key_prefix

        return find_key_prefix(self._options, self._stream_info)

    def make_batch_reader(self, read_range: ReadRange, layout: ArrowLayout) -> Callable[[], Batches]:
        from headrace.reader.batch_cast import OPEN_END

        if "size" in layout.columns:
            raise ValueError("there is no column size over the wire; take the length of data, or give `path`")
        start = max(self._to_seq(read_range.start, self._stream_info.first_seq), self._stream_info.first_seq)
        end = min(self._to_seq(read_range.end, self._stream_info.next_seq), self._stream_info.next_seq)
        seq_range = _FixedSeqRange(
            start,
            OPEN_END if read_range.is_table and read_range.end is None else end,
            self._stream_info.first_seq,
        )
        return lambda: self._read_rows(seq_range, read_range, layout.schema())

    def _to_seq(self, bound: BoundLike, default: int) -> int:
        seq, time_ns = _parse_bound(bound)
        if time_ns is not None:
            return self._source.find_seq_at_time(time_ns) or self._stream_info.next_seq
        return default if seq is None else seq

    def _read_rows(self, seq_range: _FixedSeqRange, read_range: ReadRange, schema: pa.Schema) -> Batches:
        from headrace.reader import blocking_connection, direct_get_reader

        address = replace(self._options.address, name=f"headrace.read {next(_connection_numbers)}")
        subject = read_range.patterns[0] if len(read_range.patterns) == 1 else ""
        options = replace(self._options, address=address, subject=subject, fail_on_data_loss=False)
        needed = schema if "subject" in schema.names else schema.append(_make_string_field("subject"))
        try:
            for batch in direct_get_reader.read_seq_range(options, seq_range, needed):
                matching = batch if subject else _filter_subjects(batch, read_range.patterns)
                yield matching if needed is schema else matching.select(schema.names)
        finally:
            blocking_connection.drop_connection(address)

    def close(self) -> None:
        from headrace.reader import blocking_connection

        blocking_connection.drop_connection(self._options.address)


def _make_string_field(name: str) -> pa.Field:
    import pyarrow as pa

    return pa.field(name, pa.string(), nullable=False)


def _filter_subjects(batch: pa.RecordBatch, patterns: tuple[str, ...]) -> pa.RecordBatch:
    """Return the rows whose subject matches one of several patterns: a server filters by one at most."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from headrace.protocol.subjects import matches

    if not patterns:
        return batch
    subjects = batch.column("subject")
    matching_subjects = [
        text
        for text in pc.unique(subjects).to_pylist()
        if any(matches(pattern.encode(), text.encode()) for pattern in patterns)
    ]
    return batch.filter(pc.is_in(subjects, pa.array(matching_subjects, pa.string())))


def open_folder(folder: str, stream: str, pin: str | None) -> Backend:
    from headrace.storage.snapshot import open_snapshot

    return SnapshotBackend(
        open_snapshot.open_pin(folder, stream, pin) if pin else open_snapshot.open_folder(folder, stream)
    )


def open_server(
    servers: str,
    stream: str,
    connection: Mapping[str, str] | None,
    path: PathLike | None,
    *,
    lease_claims: bool = False,
) -> Backend:
    """Open a stream of a server: by a pin if its files can be reached, otherwise by direct gets."""
    from headrace.reader import stream_admin
    from headrace.reader.options import parse_read_options
    from headrace.storage.snapshot.offline_pin import find_store_folder
    from headrace.storage.snapshot.open_snapshot import open_pin

    raw_options = {**(connection or {}), "servers": servers, "stream": stream}
    options = parse_read_options(raw_options if path is None else {**raw_options, "path": os.fspath(path)})
    if lease_claims:
        from headrace.reader.claim_lease import lease_once

        lease_once(options, 0)
    if path is None:
        return ServerBackend(options)
    folder = str(find_store_folder(path))
    stream_info = stream_admin.fetch_info(options)
    pin = stream_admin.pin_stream(options)
    return SnapshotBackend(
        open_pin(folder, stream, pin),
        lambda: stream_admin.unpin_stream(options, pin),
        lambda bucket: stream_admin.find_key_prefix(options, stream_info),
    )


def _make_selection(read_range: ReadRange) -> Selection:
    from headrace.storage.snapshot.open_snapshot import Selection

    first_seq, first_ns = _parse_bound(read_range.start)
    end_seq, end_ns = _parse_bound(read_range.end)
    return Selection(tuple(p.encode() for p in read_range.patterns), first_seq, end_seq, first_ns, end_ns)


def _parse_bound(value: BoundLike) -> tuple[int | None, int | None]:
    """Return (sequence, nanoseconds), of which at most one is not None."""
    if isinstance(value, str):
        from headrace.reader.batch_cast import OPEN_END
        from headrace.reader.options import parse_bound

        parsed = parse_bound(value)
        if parsed.keyword == "last-per-subject":
            raise ValueError("last-per-subject is a way to read a bucket: use read_kv")
        if parsed.keyword in ("earliest", "latest"):
            return (None, None) if parsed.keyword == "earliest" else (OPEN_END, None)
        return (None, parsed.time_ns) if parsed.time_ns else (parsed.seq, None)
    if value is None or isinstance(value, int):
        return value, None
    if value.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone; say which one, e.g. tzinfo=datetime.UTC")
    since_epoch = value - datetime(1970, 1, 1, tzinfo=UTC)
    return None, (
        since_epoch.days * 86_400 + since_epoch.seconds
    ) * 1_000_000_000 + since_epoch.microseconds * 1000
