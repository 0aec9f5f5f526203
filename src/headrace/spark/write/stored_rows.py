"""Finds the rows of an epoch in the target, by the headers that they were published with.

Owns these headers and reading them back. Invariant: answers come from the stream's leader, so a row that is found is
stored, and one that is not found is not, unless the target has removed messages of the range (`is_complete`). Must not
know Spark. See ADR 59.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator
from typing import NamedTuple

from headrace.reader.blocking_connection import BlockingConnection
from headrace.reader.direct_get_decode import StoredMessage
from headrace.reader.leader_reader import LeaderReader
from headrace.reader.options import ReadOptions
from headrace.spark.write.encode_rows import find_header
from headrace.spark.write.progress_log import Position
from headrace.spark.write.write_target import WriteTarget

#: Header of a row that has a message id of its own.
ROW_HEADER = b"Headrace-Row"
BATCH_ID = b"Nats-Batch-Id"
BATCH_SEQUENCE = b"Nats-Batch-Sequence"
MSG_ID = b"Nats-Msg-Id"
_READ_BYTES = 8 << 20
#: Bytes to read where a batch may begin, and how much more if there is none.
_PROBE_BYTES = 4 << 10
_GROWTH = 8


class StoredRows:
    """Rows of a commit that are in the target, as ranges of rows with consecutive sequences."""

    def __init__(self, end_seq: int = 0) -> None:
        #: The last sequence of the target that was searched.
        self.end_seq = end_seq
        #: Blocks of which rows are stored as single messages: their other rows may have been sent like that, too.
        self.single_blocks: set[int] = set()
        #: Whether every sequence of the range had a message, or is in a batch of which one was found.
        self.is_complete = True
        #: Block -> first row, row after the last, and first sequence of each range.
        self._ranges: dict[int, array[int]] = {}
        self._first_seqs: list[tuple[int, int]] | None = None

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, block: int, row: int, length: int, seq: int) -> None:
        """Add consecutive rows that are stored from `seq` on."""
        self._first_seqs = None
        ranges = self._ranges.setdefault(block, array("q"))
        if ranges and ranges[-2] == row and ranges[-1] + row - ranges[-3] == seq:
            ranges[-2] = row + length
        else:
            ranges.extend((row, row + length, seq))

    def iter_missing(self, block: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the ranges between two rows of a block that are not stored."""
        for first, after, _ in [*self._get_ranges(block), (stop, stop, 0)]:
            if start < min(first, stop):
                yield start, min(first, stop)
            start = max(start, after)

    def find_seqs(self, block: int, rows: Collection[int]) -> dict[int, int]:
        """Return the sequences of those of the given rows that are stored."""
        found: dict[int, int] = {}
        wanted = sorted(rows)
        for first, after, seq in self._get_ranges(block):
            for row in wanted[bisect_left(wanted, first) : bisect_left(wanted, after)]:
                found[row] = seq + row - first
        return found

    def find_floor(self, block: int, row: int) -> int:
        """Return a sequence after which all rows from a row on are: those found, and those stored since."""
        if self._first_seqs is None:
            self._first_seqs = []
            lowest = self.end_seq + 1
            for each in sorted(self._ranges, reverse=True):
                lowest = min(lowest, *self._ranges[each][2::3])
                self._first_seqs.append((-each, lowest))
        floor = self.end_seq
        later = bisect_left(self._first_seqs, (-block, 0))
        if later:
            floor = min(floor, self._first_seqs[later - 1][1] - 1)
        for first, after, seq in self._get_ranges(block):
            if after > row:
                floor = min(floor, seq + max(row - first, 0) - 1)
        return floor

    def _get_ranges(self, block: int) -> list[tuple[int, int, int]]:
        ranges = self._ranges.get(block, ())
        return sorted(zip(ranges[0::3], ranges[1::3], ranges[2::3], strict=True))


def make_row_mark(commit_id: str, block: int) -> bytes:
    """Return the evidence in a header of a row, which its number completes."""
    return f"{commit_id}-{block}-".encode()


def make_batch_mark(commit_id: str, block: int, row: int, length: int, nonce: str) -> bytes:
    """Return the id of an atomic batch of `length` rows that begins with a row."""
    return f"{commit_id}-{block}-{row}-{length}-{nonce}".encode()


def find_stored_rows(connection: BlockingConnection, target: WriteTarget, position: Position) -> StoredRows:
    """Find the rows of a commit from a position on in the target."""
    leader = LeaderReader(make_options(target), connection)
    end = leader.last_seq() + 1
    stored = StoredRows(end - 1)
    expected = position.target_seq + 1
    bytes_max = _PROBE_BYTES
    while expected < end:
        # Skip what was removed, which may be millions of sequences.
        start = leader.next_seq(expected)
        if not start or start >= end:
            stored.is_complete = False
            break
        messages, reached = leader.read(start, end, bytes_max)
        for message in messages:
            if message.seq >= expected:
                stored.is_complete &= message.seq == expected
                expected = _add_message(stored, message, position)
        # The rest of a batch is skipped; if there is none, more is read at once.
        bytes_max = _PROBE_BYTES if expected > reached else min(bytes_max * _GROWTH, _READ_BYTES)
        if expected < reached:
            stored.is_complete = False
            expected = reached
    return stored


def _add_message(stored: StoredRows, message: StoredMessage, position: Position) -> int:
    """Add the rows that a message shows; return the first sequence about which it says nothing."""
    place = parse_place(message.header, position.commit_id)
    if place is None:
        return message.seq + 1
    if not place.batch_length:
        stored.single_blocks.add(place.block)
    # A batch is stored as a whole: one of its rows shows them all, also those that were removed since.
    length = place.batch_length or 1
    first_seq = message.seq - (place.row - place.batch_row)
    if (place.block, place.batch_row + length) > (position.block, position.row):
        stored.add(place.block, place.batch_row, length, first_seq)
    return first_seq + length


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
