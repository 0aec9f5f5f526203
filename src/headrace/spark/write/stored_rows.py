"""Finds the rows of an epoch in the target, by the headers that they were published with.

Owns these headers and reading them back. Invariant: answers come from the stream's leader, so a row that is found is
stored, and one that is not found is not, unless the target has removed messages of the range (`is_complete`). Must not
know Spark. See ADR 59.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.reader.blocking_connection import BlockingConnection
from headrace.reader.direct_get_decode import StoredMessage
from headrace.reader.leader_reader import LeaderReader
from headrace.reader.options import ReadOptions
from headrace.spark.write.encode_rows import find_header
from headrace.spark.write.write_target import WriteTarget

#: Header of a row that has a message id of its own.
ROW_HEADER = b"Headrace-Row"
BATCH_ID = b"Nats-Batch-Id"
BATCH_SEQUENCE = b"Nats-Batch-Sequence"
MSG_ID = b"Nats-Msg-Id"
_READ_BYTES = 8 << 20


@dataclass
class StoredRows:
    """Rows of a commit that are in the target: (block, row) -> sequence."""

    rows: dict[tuple[int, int], int] = field(default_factory=dict)
    #: Blocks of which rows are stored as single messages: their other rows may have been sent like that, too.
    single_blocks: set[int] = field(default_factory=set)
    #: Whether every sequence of the range had a message.
    is_complete: bool = True


def make_row_mark(commit_id: str, block: int) -> bytes:
    """Return the evidence in a header of a row, which its number completes."""
    return f"{commit_id}-{block}-".encode()


def make_batch_mark(commit_id: str, block: int, row: int, length: int, nonce: str) -> bytes:
    """Return the id of an atomic batch of `length` rows that begins with a row."""
    return f"{commit_id}-{block}-{row}-{length}-{nonce}".encode()


def find_stored_rows(
    connection: BlockingConnection, target: WriteTarget, commit_id: str, after: int
) -> StoredRows:
    """Find all rows of a commit after a sequence of the target."""
    stored = StoredRows()
    expected = after + 1
    for message in iter_target(connection, target, after):
        stored.is_complete &= message.seq == expected
        expected = message.seq + 1
        place = parse_place(message.header, commit_id)
        if place is None:
            continue
        if not place.batch_length:
            stored.single_blocks.add(place.block)
        # A batch is stored as a whole: one of its rows shows them all, also those that were removed since.
        first_seq = message.seq - (place.row - place.batch_row)
        for row in range(place.batch_length or 1):
            stored.rows[place.block, place.batch_row + row] = first_seq + row
    last = LeaderReader(make_options(target), connection).last_seq()
    stored.is_complete &= expected == last + 1
    return stored


def iter_target(
    connection: BlockingConnection, target: WriteTarget, after: int, end: int = 0
) -> Iterator[StoredMessage]:
    """Yield the messages of the target after a sequence, up to its present end."""
    leader = LeaderReader(make_options(target), connection)
    end = end or leader.last_seq() + 1
    start = after + 1
    while start < end:
        # Skip what was removed, which may be millions of sequences.
        start = leader.next_seq(start)
        if not start or start >= end:
            return
        messages, start = leader.read(start, end, _READ_BYTES)
        yield from messages


def make_options(target: WriteTarget, subject: str = "") -> ReadOptions:
    """Return options to read the target, or one of its subjects, from its leader."""
    return ReadOptions(
        target.address,
        target.stream,
        subject=subject,
        domain=target.domain,
        reconnect_s=target.reconnect_s,
        claims="none",
    )


class RowPlace(NamedTuple):
    """Which row of a commit a message is, and the first row and length of its atomic batch (0: a single message)."""

    block: int
    row: int
    batch_row: int
    batch_length: int


def parse_place(header: bytes, commit_id: str) -> RowPlace | None:
    """Return which row of the commit a message is; None if it has other headers."""
    if commit_id.encode() not in header:
        return None
    for name, count in ((BATCH_ID, 5), (ROW_HEADER, 3), (MSG_ID, 3)):
        fields = (find_header(header, name) or b"").decode(errors="replace").split("-")
        if fields[0] != commit_id or len(fields) != count:
            continue
        block, row = int(fields[1]), int(fields[2])
        if name != BATCH_ID:
            return RowPlace(block, row, row, 0)
        offset = int(find_header(header, BATCH_SEQUENCE) or b"1") - 1
        return RowPlace(block, row + offset, row, int(fields[3]))
    return None
