"""Shows the state and the history of a table, verifies its rows, and sets its position.

Owns what is compared. Reads only, except `resync`. Invariant of `resync`: unless it is asked to, it never sets a position
below a row that the table has, because that row would be written twice, nor takes one of another stream.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.table import Table

from headrace.errors import HeadraceError, PositionConflict, StreamReplaced, TableError
from headrace.reader.stream_admin import StreamInfo
from headrace.tables.commits import TableCommit, send_commit
from headrace.tables.position import (
    GAP,
    LastMessage,
    TablePosition,
    find_committed,
    find_last_row,
    find_position,
    find_seq_column,
    parse_position,
)
from headrace.tables.stream_range import NextRange, StreamRangeReader

Ints = npt.NDArray[np.int64]
#: How many wrong sequences a report names.
_EXAMPLES_MAX = 10


@dataclass
class TableStatus:
    """How far a table is."""

    name: str
    stream: str
    table: str
    seq: int = 0
    stream_seq: int = 0
    rows: int = 0
    files: int = 0
    #: Seconds since the last commit; None if there was none.
    age_s: float | None = None
    error: str = ""

    @property
    def lag_messages(self) -> int:
        return max(self.stream_seq - self.seq, 0)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "lag_messages": self.lag_messages}


@dataclass(frozen=True)
class HistoryEntry:
    """A snapshot of a table."""

    snapshot_id: int
    time_ms: int
    operation: str
    added_rows: int
    rows: int
    seq: int | None
    gap: str = ""


@dataclass
class TableVerification:
    """What was found in a table, and compared with its stream."""

    rows: int = 0
    seq: int = 0
    compared: int = 0
    problems: list[str] = field(default_factory=list)


def fill_status(status: TableStatus, table: Table, reader: StreamRangeReader) -> TableStatus:
    """Add the state of a table and its stream; problems go to `error`."""
    snapshot = table.current_snapshot()
    if snapshot is not None and snapshot.summary is not None:
        summary = snapshot.summary.additional_properties
        status.rows = int(summary.get("total-records", 0))
        status.files = int(summary.get("total-data-files", 0))
        status.age_s = max(time.time() - snapshot.timestamp_ms / 1000, 0.0)
    try:
        position = find_position(table)
        status.seq = position.seq if position else 0
        info = reader.get_info()
        status.stream_seq = info.next_seq - 1
        if position is not None:
            reader.check_position(position, info)
    except HeadraceError as error:
        status.error = str(error)
    return status


def list_history(table: Table) -> list[HistoryEntry]:
    """Return the snapshots of a table that are not expired, oldest first."""
    found = []
    for snapshot in sorted(table.metadata.snapshots, key=lambda each: each.timestamp_ms):
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        position = parse_position(summary)
        found.append(
            HistoryEntry(
                snapshot.snapshot_id,
                snapshot.timestamp_ms,
                snapshot.summary.operation.value if snapshot.summary else "",
                int(summary.get("added-records", 0)),
                int(summary.get("total-records", 0)),
                position.seq if position else None,
                summary.get(GAP, ""),
            )
        )
    return found


def verify_table(table: Table, reader: StreamRangeReader) -> TableVerification:
    """Check that no row is there twice, none is above the position, and no live message is missing."""
    report = TableVerification()
    position = find_position(table)
    seqs = np.sort(_read_seqs(table))
    report.rows, report.seq = len(seqs), position.seq if position else 0
    _add_problem(report, "rows are duplicates", seqs[1:][seqs[1:] == seqs[:-1]])
    _add_problem(report, "rows are above the position", seqs[seqs > report.seq])
    if position is not None:
        info = reader.get_info()
        reader.check_position(position, info)
        live = NextRange(info, info.first_seq, position.seq + 1)
        # Without the payloads of claims, which are not compared.
        for batch in reader.read_stored(live, finds_gaps=False):
            live_seqs = batch.column("seq").to_numpy()
            _add_problem(report, "messages of the stream are missing", _find_missing(live_seqs, seqs))
            report.compared += len(live_seqs)
    return report


def _find_missing(wanted: Ints, present: Ints) -> Ints:
    places = np.searchsorted(present, wanted)
    is_there = np.zeros(len(wanted), bool)
    inside = places < len(present)
    is_there[inside] = present[places[inside]] == wanted[inside]
    return wanted[~is_there]


def _add_problem(report: TableVerification, text: str, seqs: Ints) -> None:
    if len(seqs):
        examples = ", ".join(str(seq) for seq in np.unique(seqs)[:_EXAMPLES_MAX].tolist())
        report.problems.append(f"{len(seqs):,} {text}: sequences {examples}")


def _read_seqs(table: Table) -> Ints:
    def read_arrays() -> Iterator[Ints]:
        if table.current_snapshot() is None:
            return
        column = find_seq_column(table)
        for batch in table.scan(selected_fields=(column,)).to_arrow_batch_reader():
            yield batch.column(column).cast(pa.int64()).to_numpy()

    arrays = list(read_arrays())
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)


def resync(
    table: Table, reader: StreamRangeReader, seq: int | None, *, allow_duplicates: bool = False
) -> TablePosition:
    """Set the position: to `seq`, or to that of the snapshot from which the current state was made.

    Writes a snapshot without rows, so that properties and summary agree again. With `allow_duplicates` the position may be
    below rows that the table has.
    """
    info = reader.get_info()
    if seq is None:
        seq, last_message = _find_committed_in(table, reader, info)
    else:
        last_message = reader.find_last_message(seq)
    last_row = find_last_row(table) if table.current_snapshot() else 0
    if seq < last_row and not allow_duplicates:
        raise PositionConflict(
            f"table {'.'.join(table.name())} has rows up to sequence {last_row}: with position {seq}, messages that the "
            "stream has above it would be written again. Delete these rows first, use --position with a higher sequence, or "
            "add --allow-duplicates if the stream has other messages there"
        )
    if seq >= info.next_seq:
        raise TableError(
            f"stream {info.name!r} ends at sequence {info.next_seq - 1}: position {seq} is above it"
        )
    position = TablePosition(seq, info.name, info.identity, uuid.uuid4().hex, last_message)
    send_commit(table, TableCommit((), None, position))
    return position


def _find_committed_in(
    table: Table, reader: StreamRangeReader, info: StreamInfo
) -> tuple[int, LastMessage | None]:
    """Return the sequence and the last message of the newest position that the current state was made from.

    Raises StreamReplaced if it is not a position in this stream.
    """
    committed, _ = find_committed(table)
    if committed is None:
        return 0, None
    try:
        reader.check_position(committed, info)
    except StreamReplaced as error:
        raise StreamReplaced(
            f"{error}. Its sequence {committed.seq} may be another message than that of the table, so that it is not the "
            "default: name the last sequence that the table has with --position"
        ) from error
    return committed.seq, committed.last_message
