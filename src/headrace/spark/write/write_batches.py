"""Groups the messages of a task into batches that are stored together.

Owns where a batch ends and what is recorded about it. Invariant: the same messages make the same batches with the same
checksums, in whatever portions they arrive, which is how a repeated task recognises what it has written. Must not know
how batches are published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from headrace._native import load_native
from headrace.errors import HeadraceError
from headrace.spark.write.encode_rows import (
    MessageColumns,
    RawMessage,
    get_offsets_and_bytes,
    make_message_columns,
)

if TYPE_CHECKING:
    from headrace._native.reply_scanner import encode_publishes
else:
    encode_publishes = load_native("reply_scanner").encode_publishes

_BATCH_BYTES_MAX = 4 << 20
_GATHER_MESSAGES = 1000
#: Maximum size of the headers that publishers add.
_HEADERS_ADDED = 200


class WriteError(HeadraceError):
    """Rows could not be written, or not exactly once."""


@dataclass(frozen=True)
class WriteBatch:
    """Messages that are stored together, and the task's progress after them."""

    column_groups: list[MessageColumns]
    rows: int
    crc: int

    def __len__(self) -> int:
        return sum(len(each) for each in self.column_groups)

    def get_payload(self, row: int) -> bytes:
        """Return the payload of the message at `row`."""
        for each in self.column_groups:
            if row < len(each):
                return bytes(each.payloads[row].as_py())
            row -= len(each)
        raise IndexError(row)

    def encode(
        self, reply: bytes, header_prefix: bytes, first: int, own_inboxes: Mapping[int, bytes] | None = None
    ) -> bytearray:
        """Encode the publishes of all messages; each one's number completes the header that `header_prefix` begins.

        Replies go to `reply`, or to the message's inbox in `own_inboxes`.
        """
        out = bytearray()
        for each, inbox in self._split_by_inbox(reply, own_inboxes or {}):
            try:
                out += encode_publishes(*each.to_buffers(), inbox, header_prefix, first)
            except ValueError as error:
                raise WriteError(f"{error}; set one, or filter such rows out") from error
            first += len(each)
        return out

    def _split_by_inbox(
        self, reply: bytes, own_inboxes: Mapping[int, bytes]
    ) -> Iterator[tuple[MessageColumns, bytes]]:
        """Yield groups of messages whose replies go to the same inbox, in order."""
        offset = 0
        for each in self.column_groups:
            indexes = [index - offset for index in own_inboxes if offset <= index < offset + len(each)]
            cuts = sorted({0, len(each), *indexes, *(index + 1 for index in indexes)})
            for start, stop in pairwise(cuts):
                yield each.slice(start, stop), own_inboxes.get(offset + start, reply)
            offset += len(each)


def gather_messages(messages: Iterable[RawMessage]) -> Iterator[MessageColumns]:
    """Gather single messages into columns."""
    pending = iter(messages)
    while gathered := list(islice(pending, _GATHER_MESSAGES)):
        yield make_message_columns(gathered)


def make_write_batches(column_groups: Iterable[MessageColumns], size: int) -> Iterator[WriteBatch]:
    """Group messages into chunks that fit one atomic batch.

    The same messages make the same chunks, however they arrive.
    """
    pending: list[MessageColumns] = []
    rows = crc = count = length = 0
    for each in column_groups:
        offset = 0
        while offset < len(each):
            fit_count, fit_bytes = _count_fitting(each, offset, size - count, _BATCH_BYTES_MAX - length)
            pending.append(each.slice(offset, offset + fit_count))
            offset, count, length = offset + fit_count, count + fit_count, length + fit_bytes
            if count == size or length >= _BATCH_BYTES_MAX:
                rows, crc = rows + count, _compute_crc(pending, crc)
                yield WriteBatch(pending, rows, crc)
                pending, count, length = [], 0, 0
    if pending:
        yield WriteBatch(pending, rows + count, _compute_crc(pending, crc))


def _count_fitting(columns: MessageColumns, offset: int, rows: int, bytes_left: int) -> tuple[int, int]:
    """Return how many messages from `offset` on still fit, and their bytes; the one that fills the chunk still fits."""
    ends, _ = get_offsets_and_bytes(columns.payloads)
    next_ends = ends[offset + 1 : offset + 1 + rows]
    fit_count = min(int(np.searchsorted(next_ends, int(ends[offset]) + bytes_left)) + 1, len(next_ends))
    return fit_count, int(next_ends[fit_count - 1] - ends[offset])


def _compute_crc(column_groups: list[MessageColumns], crc: int) -> int:
    """Return the checksum of the messages: their lengths and bytes, column by column."""
    columns = [0] * 6
    for each in column_groups:
        for index, column in enumerate(each.to_buffers()):
            if column:
                ends, data = column
                columns[2 * index] = crc32(np.diff(ends), columns[2 * index])
                columns[2 * index + 1] = crc32(data[ends[0] : ends[-1]], columns[2 * index + 1])
    return crc32(np.array(columns, np.int64).tobytes(), crc)


def check_size(batch: WriteBatch, limit: int) -> None:
    """Reject a message beyond the server's limit, which would end the connection."""
    largest = max(_find_largest(each) for each in batch.column_groups) + _HEADERS_ADDED
    if largest > limit:
        raise WriteError(
            f"a message with its headers has {largest} bytes, more than the server accepts ({limit}); "
            "raise its max_payload, or send the payload as a claim"
        )


def _find_largest(columns: MessageColumns) -> int:
    sizes = np.diff(get_offsets_and_bytes(columns.payloads)[0])
    if columns.header_lines is not None:
        sizes = sizes + np.diff(get_offsets_and_bytes(columns.header_lines)[0])
    return int(sizes.max())
