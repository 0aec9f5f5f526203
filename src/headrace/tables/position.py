"""The position of a table: up to which message of which stream it has the rows.

Owns the position's form and where it is found; `reader.landed_table` has the names of its properties. A commit writes it
as properties of the table and in the summary of its snapshot. Invariant: the properties and the newest summary among the
ancestors of the current snapshot agree; otherwise the table was rolled back or something else wrote it, and nothing may
be appended. Snapshots without a position, such as those of a compaction, do not count: they change no rows. See ADR 94.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.errors import PositionConflict, TableError
from headrace.reader.landed_table import COMMIT_ID, IDENTITY, SEQUENCE, STREAM
from headrace.tables.column_types import SEQUENCE_COLUMNS

if TYPE_CHECKING:
    from pyiceberg.table import Table

_LAST_MESSAGE = "headrace.last-message"
_LAST_MESSAGE_TEXT = re.compile(r"(\d+):(\d+)")
#: Property only: when this program created the table, in milliseconds.
CREATED_MS = "headrace.created-ms"
#: Summary only: messages that were removed before they were written, as `first-last`, with commas between several.
GAP = "headrace.gap"


@dataclass(frozen=True)
class LastMessage:
    """A message by which a stream is recognised: its sequence, and its time in microseconds."""

    seq: int
    time_us: int

    @classmethod
    def parse(cls, text: str) -> LastMessage | None:
        found = _LAST_MESSAGE_TEXT.fullmatch(text)
        return cls(int(found[1]), int(found[2])) if found else None

    def __str__(self) -> str:
        return f"{self.seq}:{self.time_us}"


@dataclass(frozen=True)
class TablePosition:
    """Up to which sequence of a stream the table has its messages, the stream's identity, and the id of the commit."""

    seq: int
    stream: str
    identity: str
    commit_id: str
    #: The last row, at `seq` or before it; None if it is unknown, as in positions that earlier versions wrote.
    last_message: LastMessage | None = field(default=None, compare=False)

    def to_properties(self) -> dict[str, str]:
        return {
            # Written in any case: the property of an earlier commit must not remain.
            _LAST_MESSAGE: str(self.last_message or "unknown"),
            SEQUENCE: str(self.seq),
            STREAM: self.stream,
            IDENTITY: self.identity,
            COMMIT_ID: self.commit_id,
        }


def parse_position(properties: Mapping[str, str | None]) -> TablePosition | None:
    """Return the position in properties or in a summary; None if there is none."""
    values = [properties.get(name) for name in (SEQUENCE, STREAM, IDENTITY, COMMIT_ID)]
    if not any(values):
        return None
    seq, stream, identity, commit_id = (value or "" for value in values)
    if not (seq.isdigit() and stream and identity and commit_id):
        raise PositionConflict(
            f"the table's position is incomplete: sequence {seq!r}, stream {stream!r}, identity {identity!r}, commit "
            f"{commit_id!r}; set it with 'headrace table resync'"
        )
    last_message = LastMessage.parse(properties.get(_LAST_MESSAGE) or "")
    return TablePosition(int(seq), stream, identity, commit_id, last_message)


def find_position(table: Table) -> TablePosition | None:
    """Return the position of a table; None if nothing was written yet. Raise PositionConflict if two disagree."""
    recorded = parse_position(table.properties)
    committed, is_complete = find_committed(table)
    if recorded == committed:
        # Not `recorded`, of which an earlier version leaves the last message as it was.
        return committed
    if recorded is not None and committed is None and not is_complete and _has_rows_of(table, recorded):
        # Others compacted the table and expired the snapshots with positions; the rows are there.
        return recorded
    name = ".".join(table.name())
    raise PositionConflict(
        f"table {name}: its properties record {_describe(recorded)}, but its current snapshot was made from "
        f"{_describe(committed)}. The table was rolled back, or another program wrote it. Nothing is written until "
        "'headrace table resync' sets the position"
    )


def find_committed(table: Table) -> tuple[TablePosition | None, bool]:
    """Return the newest position among the ancestors of the current snapshot, and whether all ancestors are known."""
    from pyiceberg.table.snapshots import ancestors_of

    oldest = None
    for snapshot in ancestors_of(table.current_snapshot(), table.metadata):
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        position = parse_position(summary)
        if position is not None:
            return position, True
        oldest = snapshot
    # Expiry may remove the reference to the parent, too; the first snapshot of a table has sequence number 1.
    return None, oldest is None or (oldest.parent_snapshot_id is None and (oldest.sequence_number or 0) <= 1)


def find_seq_column(table: Table) -> str:
    """Return the column with the sequences: `seq`, or `revision` for a bucket."""
    names = table.schema().column_names
    return next((name for name in SEQUENCE_COLUMNS if name in names), SEQUENCE_COLUMNS[0])


def find_last_row(table: Table) -> int:
    """Return the highest sequence of all rows, from the statistics of the data files; 0 if there are none."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import LongType

    column = find_seq_column(table)
    field_id = table.schema().find_field(column).field_id
    last = 0
    for task in table.scan(selected_fields=(column,)).plan_files():
        bound = (task.file.upper_bounds or {}).get(field_id)
        if bound is None:
            raise TableError(f"data file {task.file.file_path} has no statistics of column {column!r}")
        last = max(last, int(from_bytes(LongType(), bound)))
    return last


def _has_rows_of(table: Table, position: TablePosition) -> bool:
    last = position.last_message
    return find_last_row(table) >= (last.seq if last is not None else position.seq)


def _describe(position: TablePosition | None) -> str:
    if position is None:
        return "no position"
    return f"sequence {position.seq} (commit {position.commit_id})"
