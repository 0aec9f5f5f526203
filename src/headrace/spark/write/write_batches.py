"""Divides the messages of a task into batches, and encodes their publishes.

Owns where a batch ends. Must not know how batches are published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from headrace._native import load_native
from headrace.errors import HeadraceError
from headrace.spark.write.encode_rows import (
    MessageColumns,
    RawMessage,
    get_offsets_and_bytes,
    join_columns,
    make_message_columns,
)

if TYPE_CHECKING:
    from headrace._native.reply_scanner import encode_publishes
else:
    encode_publishes = load_native("reply_scanner").encode_publishes

#: Maximum bytes of payloads in a batch; the message that exceeds it is the last one.
BATCH_BYTES_MAX = 4 << 20
_GATHER_MESSAGES = 1000
#: Maximum size of the headers that publishers add.
HEADERS_ADDED = 250


class WriteError(HeadraceError):
    """Rows could not be written, or not exactly once."""


@dataclass(frozen=True)
class WriteBatch:
    """Messages that are sent together; `first` is the number of the first row in its task."""

    columns: MessageColumns
    first: int

    def __len__(self) -> int:
        return len(self.columns)


def gather_messages(messages: Iterable[RawMessage]) -> Iterator[MessageColumns]:
    """Gather single messages into columns."""
    pending = iter(messages)
    while gathered := list(islice(pending, _GATHER_MESSAGES)):
        yield make_message_columns(gathered)


def make_write_batches(
    column_groups: Iterable[MessageColumns], size: int, bytes_max: int = BATCH_BYTES_MAX
) -> Iterator[WriteBatch]:
    """Divide messages into batches of at most `size` messages, in whatever portions they arrive."""
    pending: list[MessageColumns] = []
    first = count = length = 0
    for each in column_groups:
        offset = 0
        while offset < len(each):
            fit_count, fit_bytes = _count_fitting(each, offset, size - count, bytes_max - length)
            pending.append(each.slice(offset, offset + fit_count))
            offset, count, length = offset + fit_count, count + fit_count, length + fit_bytes
            if count == size or length >= bytes_max:
                yield WriteBatch(join_columns(pending), first)
                pending, first, count, length = [], first + count, 0, 0
    if pending:
        yield WriteBatch(join_columns(pending), first)


def _count_fitting(columns: MessageColumns, offset: int, rows: int, bytes_left: int) -> tuple[int, int]:
    """Return how many messages from `offset` on still fit, and their bytes; the one that fills the batch still fits."""
    ends, _ = get_offsets_and_bytes(columns.payloads)
    next_ends = ends[offset + 1 : offset + 1 + rows]
    fit_count = min(int(np.searchsorted(next_ends, int(ends[offset]) + bytes_left)) + 1, len(next_ends))
    return fit_count, int(next_ends[fit_count - 1] - ends[offset])


def encode_messages(columns: MessageColumns, reply: bytes, header_prefix: bytes, first: int) -> bytearray:
    """Encode the publishes of all messages; each one's number completes the header that `header_prefix` begins."""
    try:
        return encode_publishes(*columns.to_buffers(), reply, header_prefix, first)
    except ValueError as error:
        raise WriteError(f"{error}; set one, or filter such rows out") from error


def get_message_sizes(columns: MessageColumns) -> npt.NDArray[np.int64]:
    """Return the bytes of each message: its payload and its own headers."""
    sizes: npt.NDArray[np.int64] = np.diff(get_offsets_and_bytes(columns.payloads)[0]).astype(np.int64)
    if columns.header_lines is not None:
        sizes = sizes + np.diff(get_offsets_and_bytes(columns.header_lines)[0])
    return sizes
