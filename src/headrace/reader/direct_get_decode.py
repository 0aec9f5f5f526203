"""Decodes a block of direct-get replies to columns, all messages at once.

Owns the conversion to Arrow of the numbers that the native scanner finds in a receive buffer. Invariant: no step costs
Python time per message. The rows equal those that reading the files gives for the same messages. Must not know sockets
or Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace._native import load_native
from headrace.durations import parse_duration_ns
from headrace.errors import ProtocolError
from headrace.reader.claim_reference_column import make_claim_column
from headrace.storage.snapshot.arrow import NS, TTL_NEVER, make_binary_views, parse_headers

if TYPE_CHECKING:
    from headrace._native.reply_scanner import FIELDS_PER_MESSAGE, ReplyScanner
else:
    _native = load_native("reply_scanner")
    FIELDS_PER_MESSAGE, ReplyScanner = _native.FIELDS_PER_MESSAGE, _native.ReplyScanner

Ints = npt.NDArray[np.int64]

_H = ord("H")
#: The first line of a header block, which carries no information about a message.
_STATUS_LINE_BYTES = len(b"NATS/1.0\r\n")
_TTL = "Nats-TTL"
#: The longest TTL that a store can have.
_TTL_S_MAX = TTL_NEVER - 1
_TIME = pa.timestamp("ns", tz="UTC")
#: Maximum bytes of a binary array; its offsets have 32 bits, and Arrow lets them wrap around.
_BINARY_MAX = 2**31 - 1


class ReplyBlockScanner:
    """Finds the replies to one request in a buffer that is still being filled."""

    def __init__(self, reply: bytes) -> None:
        self._scanner = ReplyScanner(reply)

    @property
    def position(self) -> int:
        """How far the buffer has been scanned."""
        return self._scanner.position

    @property
    def status(self) -> bytes:
        """The header of the reply that ended the block."""
        return self._scanner.status

    @property
    def is_complete(self) -> bool:
        """Whether no reply is missing before the last message: each names the message that was sent before it."""
        return bool(self._scanner.is_complete)

    def scan(self, buffer: bytearray) -> bool:
        """Scan complete messages; return True once the reply that ends the block was found.

        Returns False with `position` before something that is not a reply to this request, or before an incomplete
        message.
        """
        try:
            return self._scanner.scan(buffer)
        except ValueError as error:
            raise ProtocolError(
                f"a reply to a direct get has no '{error}'; this server is not supported"
            ) from error

    def is_at_control_line(self, buffer: bytearray) -> bool:
        """Return whether a control line comes next in the buffer, not a message."""
        return len(buffer) > self.position and buffer[self.position] != _H

    def take_block(self, buffer: bytearray) -> ReplyBlock:
        """Return the messages found so far and remove them from the buffer."""
        data = memoryview(bytes(memoryview(buffer)[: self.position]))
        del buffer[: self.position]
        return ReplyBlock(
            data, np.frombuffer(self._scanner.packed_rows(), np.int64).reshape(-1, FIELDS_PER_MESSAGE)
        )


class StoredMessage(NamedTuple):
    """One stored message. `header` is its header block as published, b"" if it has none."""

    seq: int
    time_ns: int
    subject: bytes
    header: bytes
    payload: bytes


@dataclass(frozen=True)
class ReplyBlock:
    """Messages in memory, and for each the eight numbers that `ReplyScanner` describes."""

    data: memoryview
    message_fields: Ints

    def __len__(self) -> int:
        return len(self.message_fields)

    @property
    def seqs(self) -> Ints:
        return self.message_fields[:, 3]

    def subjects(self) -> list[str]:
        """Return the subjects of the messages."""
        found: list[str] = self._subject().to_pylist()
        return found

    def first(self, count: int) -> ReplyBlock:
        """Return the first `count` messages."""
        return self if count >= len(self) else ReplyBlock(self.data, self.message_fields[:count])

    def is_from(self, stream: str) -> bool:
        """Return whether the replies come from this stream and not from a mirror of it.

        One server replies to a whole request, so the first message is representative.
        """
        at = int(self.message_fields[0, 7])
        line = b"Nats-Stream: %s\r\n" % stream.encode()
        return bool(self.data[at : at + len(line)] == line)

    def to_columns(self, names: list[str], rows: slice) -> dict[str, pa.Array]:
        """Return the named columns of the selected rows; method `_<name>` makes the column `<name>`."""
        selected = self if rows == slice(0, len(self)) else ReplyBlock(self.data, self.message_fields[rows])
        return {name: getattr(selected, f"_{name}")() for name in names}

    def _seq(self) -> pa.Array:
        return pa.array(self.seqs)

    def _time(self) -> pa.Array:
        return pa.array(self.message_fields[:, 4]).cast(_TIME)

    def _subject(self) -> pa.Array:
        raw = self._make_binary(self.message_fields[:, 5], self.message_fields[:, 6])
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array([each.decode("utf-8", "replace") for each in raw.to_pylist()], pa.string())

    def _data(self) -> pa.Array:
        starts, header_lengths, totals = (
            self.message_fields[:, 0],
            self.message_fields[:, 1],
            self.message_fields[:, 2],
        )
        return self._make_binary(starts + header_lengths, totals - header_lengths)

    def _headers(self) -> pa.Array:
        return self._stored_headers

    def _expires_at(self) -> pa.Array:
        if self._stored_headers.null_count == len(self):
            return pa.nulls(len(self), _TIME)
        ttls = pc.list_element(
            pc.fill_null(pc.map_lookup(self._stored_headers, pa.scalar(_TTL), "first"), [None]), 0
        )
        return compute_expires_at(self._time(), ttls)

    def _claim(self) -> pa.Array:
        return make_claim_column(self._stored_headers, self._data())

    @cached_property
    def _stored_headers(self) -> pa.Array:
        """Return the headers stored with the messages, without those that the server added after them."""
        starts, ends = self.message_fields[:, 0], self.message_fields[:, 7]
        has_headers = ends - starts > _STATUS_LINE_BYTES
        if not has_headers.any():
            return pa.nulls(len(self), pa.map_(pa.string(), pa.list_(pa.string())))
        return parse_headers(make_binary_views(self.data, starts, ends - starts, has_headers))

    def _make_binary(self, starts: Ints, lengths: Ints) -> pa.Array:
        if int(lengths.sum()) > _BINARY_MAX:
            raise OverflowError(
                f"{len(self)} messages with {int(lengths.sum())} bytes are too large for one batch"
            )
        return make_binary_views(self.data, starts, lengths, None).cast(pa.binary())


def block_of(messages: Sequence[StoredMessage]) -> ReplyBlock:
    """Make a block of messages that were fetched one by one."""
    data = bytearray()
    table = np.empty((len(messages), FIELDS_PER_MESSAGE), np.int64)
    for row, message in enumerate(messages):
        start, head = len(data), len(message.header)
        data += message.header
        data += message.payload
        place = len(data)
        data += message.subject
        # The empty line at the end of a header block does not belong to the headers.
        own_end = start + max(head - 2, 0)
        total = head + len(message.payload)
        table[row] = start, head, total, message.seq, message.time_ns, place, len(message.subject), own_end
    return ReplyBlock(memoryview(bytes(data)), table)


def compute_expires_at(times: pa.Array, ttls: pa.Array) -> pa.Array:
    """Compute when messages expire, from their time and the text of their TTL."""
    distinct = ttls.dictionary_encode()
    ttls_ns = pa.array([_parse_ttl_ns(text) for text in distinct.dictionary.to_pylist()], pa.duration("ns"))
    return pc.add(times, ttls_ns.take(distinct.indices))


def _parse_ttl_ns(text: str | None) -> int | None:
    """Return the nanoseconds of a TTL; None if it never expires, is empty or is invalid."""
    if text is None or text.lower() == "never":
        return None
    unsigned = text.removeprefix("+")
    try:
        seconds = int(unsigned) if unsigned.isdigit() else parse_duration_ns(unsigned) // NS
    except ValueError:
        return None
    return min(seconds, _TTL_S_MAX) * NS or None
