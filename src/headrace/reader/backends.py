"""Backends of a scan: one state of a stream that this process reads, from files or from a server.

Owns the backends; a source opens them (`ReadSource.open_backend`). Invariant: all return the same
rows and types for the same messages. Must not know how the rows are used.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.reader.read_source import Batches, BoundLike, ReadRange, ReadSource

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.reader.batch_cast import SeqRange
    from headrace.reader.options import ReadOptions
    from headrace.reader.stream_admin import StreamInfo
    from headrace.storage.snapshot.open_snapshot import ArrowLayout, Selection, StreamSnapshot

_connection_numbers = itertools.count(1)


class SnapshotBackend:
    """A snapshot in files: of a pin, or of a store that no broker has open."""

    def __init__(self, snapshot: StreamSnapshot) -> None:
        self._snapshot = snapshot

    @property
    def position(self) -> int:
        return self._snapshot.manifest.committed_seq

    @property
    def as_of(self) -> datetime:
        return datetime.fromtimestamp(self._snapshot.manifest.as_of_ns / 1e9, UTC)

    @property
    def columns(self) -> tuple[str, ...]:
        from headrace.storage.snapshot.open_snapshot import COLUMNS

        return COLUMNS

    def find_key_prefix(self, bucket: str) -> str:
        from headrace.reader.kv_rows import make_key_prefix

        return make_key_prefix(bucket)

    def make_batch_reader(self, read_range: ReadRange, layout: ArrowLayout) -> Callable[[], Batches]:
        selection = _make_selection(read_range)
        return lambda: self._snapshot.batches(selection, layout, read_range.batch_rows)

    def close(self) -> None:
        self._snapshot.close()


class PinnedBackend(SnapshotBackend):
    """A snapshot of a pin that a broker granted for this scan, and that is released with it."""

    def __init__(
        self, snapshot: StreamSnapshot, source: ReadSource, stream_info: StreamInfo, pin: str
    ) -> None:
        super().__init__(snapshot)
        self._source = source
        self._stream_info = stream_info
        self._pin = pin

    def find_key_prefix(self, bucket: str) -> str:
        return self._source.find_key_prefix(self._stream_info)

    def close(self) -> None:
        super().close()
        pin, self._pin = self._pin, ""
        if pin:
            self._source.unpin(pin)


class ServerBackend:
    """A server; each pass over the rows has its own connection, so that several can run at once."""

    def __init__(self, source: ReadSource, options: ReadOptions) -> None:
        self._options = options
        self._source = source
        self._stream_info = source.get_info()
        self.as_of = datetime.now(UTC)

    @property
    def position(self) -> int:
        return self._stream_info.next_seq - 1

    @property
    def columns(self) -> tuple[str, ...]:
        from headrace.storage.snapshot.open_snapshot import COLUMNS

        return tuple(name for name in COLUMNS if name != "size")

    def find_key_prefix(self, bucket: str) -> str:
        return self._source.find_key_prefix(self._stream_info)

    def make_batch_reader(self, read_range: ReadRange, layout: ArrowLayout) -> Callable[[], Batches]:
        from headrace.reader.batch_cast import OPEN_END, SeqRange

        if "size" in layout.columns:
            raise ValueError("column size needs `path`; when reading from a server, use the length of data")
        start = max(self._to_seq(read_range.start, self._stream_info.first_seq), self._stream_info.first_seq)
        end = min(self._to_seq(read_range.end, self._stream_info.next_seq), self._stream_info.next_seq)
        seq_range = SeqRange(
            start,
            OPEN_END if read_range.is_table and read_range.end is None else end,
            self._stream_info.first_seq,
        )
        return lambda: self._read_rows(seq_range, read_range, layout.schema())

    def _to_seq(self, bound: BoundLike, default: int) -> int:
        seq, time_ns = parse_range_bound(bound)
        if time_ns is not None:
            return self._source.find_seq_at_time(time_ns) or self._stream_info.next_seq
        return default if seq is None else seq

    def _read_rows(self, seq_range: SeqRange, read_range: ReadRange, schema: pa.Schema) -> Batches:
        from headrace.reader import blocking_connection
        from headrace.reader.range_reader import read_seq_range
        from headrace.reader.read_method import choose_method

        fetch = choose_method(self._stream_info).fetch
        address = replace(self._options.address, name=f"headrace.read {next(_connection_numbers)}")
        subject = read_range.patterns[0] if len(read_range.patterns) == 1 else ""
        options = replace(self._options, address=address, subject=subject, fail_on_data_loss=False)
        needed = schema if "subject" in schema.names else schema.append(_make_string_field("subject"))
        try:
            for batch in read_seq_range(options, seq_range, needed, fetch):
                matching = batch if subject else filter_subjects(batch, read_range.patterns)
                yield matching if needed is schema else matching.select(schema.names)
        finally:
            blocking_connection.drop_connection(address)

    def close(self) -> None:
        from headrace.reader import blocking_connection

        blocking_connection.drop_connection(self._options.address)


def _make_string_field(name: str) -> pa.Field:
    import pyarrow as pa

    return pa.field(name, pa.string(), nullable=False)


def filter_subjects(batch: pa.RecordBatch, patterns: tuple[str, ...]) -> pa.RecordBatch:
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


def _make_selection(read_range: ReadRange) -> Selection:
    from headrace.storage.snapshot.open_snapshot import Selection

    first_seq, first_ns = parse_range_bound(read_range.start)
    end_seq, end_ns = parse_range_bound(read_range.end)
    return Selection(tuple(p.encode() for p in read_range.patterns), first_seq, end_seq, first_ns, end_ns)


def parse_range_bound(value: BoundLike) -> tuple[int | None, int | None]:
    """Return (sequence, nanoseconds), of which at most one is not None."""
    if isinstance(value, str):
        from headrace.reader.batch_cast import OPEN_END
        from headrace.reader.options import parse_bound

        parsed = parse_bound(value)
        if parsed.keyword == "last-per-subject":
            raise ValueError("last-per-subject is only available for buckets: use read_kv")
        if parsed.keyword in ("earliest", "latest"):
            return (None, None) if parsed.keyword == "earliest" else (OPEN_END, None)
        return (None, parsed.time_ns) if parsed.time_ns else (parsed.seq, None)
    if value is None or isinstance(value, int):
        return value, None
    if value.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone; set one, e.g. tzinfo=datetime.UTC")
    since_epoch = value - datetime(1970, 1, 1, tzinfo=UTC)
    return None, (
        since_epoch.days * 86_400 + since_epoch.seconds
    ) * 1_000_000_000 + since_epoch.microseconds * 1000
