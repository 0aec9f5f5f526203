"""A block of direct-get answers becomes columns, all messages at once.

Owns what the numbers that the kernel finds in a receive buffer mean for Arrow. Invariant: no step costs Python time per
message. The rows are those that the direct path makes of the same messages. Must not know sockets or Spark.
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

from headrace.durations import duration_ns
from headrace.errors import ProtocolError
from headrace.kernel import twin
from headrace.spark.claims import claim_column
from headrace.store.arrow import NS, TTL_NEVER, binary_views, parse_headers

if TYPE_CHECKING:
    from headrace.kernel.frames import WIDTH, Frames
else:
    _kernel = twin("frames")
    WIDTH, Frames = _kernel.WIDTH, _kernel.Frames

Ints = npt.NDArray[np.int64]

_H = ord("H")
#: The first line of a header block, which says nothing of a message.
_OPENING = len(b"NATS/1.0\r\n")
_TTL = "Nats-TTL"
#: Stores keep no longer ones.
_TTL_S_MAX = TTL_NEVER - 1
_TIME = pa.timestamp("ns", tz="UTC")
#: The bytes of a binary array; its offsets have 32 bits, and Arrow lets them wrap.
_BINARY_MAX = 2**31 - 1


class Scanner:
    """Finds the frames of one request's answers in a buffer that is still being filled."""

    def __init__(self, reply: bytes) -> None:
        self._frames = Frames(reply)

    @property
    def at(self) -> int:
        """How far the buffer is understood."""
        return self._frames.at

    @property
    def status(self) -> bytes:
        """The header of the answer that ended the block."""
        return self._frames.status

    def scan(self, buffer: bytearray) -> bool:
        """Go on as far as there are whole frames; True once the answer that ends the block was found.

        False with `at` before something that is no frame of this request, or before what is not whole yet.
        """
        try:
            return self._frames.scan(buffer)
        except ValueError as error:
            raise ProtocolError(f"an answer to a direct get lacks '{error}'; what server is this?") from error

    def foreign(self, buffer: bytearray) -> bool:
        """Whether the next thing in the buffer is a line of the protocol and no message."""
        return len(buffer) > self.at and buffer[self.at] != _H

    def block(self, buffer: bytearray) -> Block:
        """The messages found so far; what is scanned leaves the buffer."""
        data = memoryview(bytes(memoryview(buffer)[: self.at]))
        del buffer[: self.at]
        return Block(data, np.frombuffer(self._frames.table(), np.int64).reshape(-1, WIDTH))


class Message(NamedTuple):
    """One stored message. `header` is its header block as it was published, b"" if it has none."""

    seq: int
    time_ns: int
    subject: bytes
    header: bytes
    payload: bytes


@dataclass(frozen=True)
class Block:
    """Messages in memory, and of each the eight numbers that `Frames.table` names."""

    data: memoryview
    table: Ints

    def __len__(self) -> int:
        return len(self.table)

    @property
    def seqs(self) -> Ints:
        return self.table[:, 3]

    def subjects(self) -> list[str]:
        """The subjects of the messages."""
        found: list[str] = self._subject().to_pylist()
        return found

    def first(self, count: int) -> Block:
        """The first so many messages."""
        return self if count >= len(self) else Block(self.data, self.table[:count])

    def is_from(self, stream: str) -> bool:
        """Whether the answers come from this stream, not from a mirror that answers for it.

        One responder answers a whole request, so the first message tells for all.
        """
        at = int(self.table[0, 7])
        line = b"Nats-Stream: %s\r\n" % stream.encode()
        return bool(self.data[at : at + len(line)] == line)

    def columns(self, names: list[str], keep: slice) -> dict[str, pa.Array]:
        """The columns that are wanted, of the rows that are wanted."""
        part = self if keep == slice(0, len(self)) else Block(self.data, self.table[keep])
        return {name: getattr(part, f"_{name}")() for name in names}

    def _seq(self) -> pa.Array:
        return pa.array(self.seqs)

    def _time(self) -> pa.Array:
        return pa.array(self.table[:, 4]).cast(_TIME)

    def _subject(self) -> pa.Array:
        raw = self._slices(self.table[:, 5], self.table[:, 6])
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array([each.decode("utf-8", "replace") for each in raw.to_pylist()], pa.string())

    def _data(self) -> pa.Array:
        starts, heads, totals = self.table[:, 0], self.table[:, 1], self.table[:, 2]
        return self._slices(starts + heads, totals - heads)

    def _headers(self) -> pa.Array:
        return self._own_headers

    def _expires_at(self) -> pa.Array:
        if self._own_headers.null_count == len(self):
            return pa.nulls(len(self), _TIME)
        ttls = pc.list_element(
            pc.fill_null(pc.map_lookup(self._own_headers, pa.scalar(_TTL), "first"), [None]), 0
        )
        return deadlines(self._time(), ttls)

    def _claim(self) -> pa.Array:
        return claim_column(self._own_headers, self._data())

    @cached_property
    def _own_headers(self) -> pa.Array:
        """The headers that were stored with the messages: what stands before those that the server added."""
        starts, ends = self.table[:, 0], self.table[:, 7]
        own = ends - starts > _OPENING
        if not own.any():
            return pa.nulls(len(self), pa.map_(pa.string(), pa.list_(pa.string())))
        return parse_headers(binary_views(self.data, starts, ends - starts, own))

    def _slices(self, starts: Ints, lengths: Ints) -> pa.Array:
        if int(lengths.sum()) > _BINARY_MAX:
            raise OverflowError(
                f"{len(self)} messages of {int(lengths.sum())} bytes are too many for one batch"
            )
        return binary_views(self.data, starts, lengths, None).cast(pa.binary())


def block_of(messages: Sequence[Message]) -> Block:
    """A block of messages that were fetched one by one."""
    data = bytearray()
    table = np.empty((len(messages), WIDTH), np.int64)
    for row, message in enumerate(messages):
        start, head = len(data), len(message.header)
        data += message.header
        data += message.payload
        place = len(data)
        data += message.subject
        # The empty line that ends a header block is no part of the headers.
        own_end = start + max(head - 2, 0)
        total = head + len(message.payload)
        table[row] = start, head, total, message.seq, message.time_ns, place, len(message.subject), own_end
    return Block(memoryview(bytes(data)), table)


def deadlines(times: pa.Array, ttls: pa.Array) -> pa.Array:
    """When messages expire, by their time and the text of their TTL."""
    distinct = ttls.dictionary_encode()
    spans = pa.array([_span_ns(text) for text in distinct.dictionary.to_pylist()], pa.duration("ns"))
    return pc.add(times, spans.take(distinct.indices))


def _span_ns(text: str | None) -> int | None:
    """The nanoseconds of a TTL; None for one that does not end, as for one that says nothing or makes no sense."""
    if text is None or text.lower() == "never":
        return None
    plain = text.removeprefix("+")
    try:
        seconds = int(plain) if plain.isdigit() else duration_ns(plain) // NS
    except ValueError:
        return None
    return min(seconds, _TTL_S_MAX) * NS or None
