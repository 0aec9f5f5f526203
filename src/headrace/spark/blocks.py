"""A block of direct-get answers becomes columns, all messages at once.

Owns the reading of `HMSG` frames out of a receive buffer and of the headers that a server adds to a stored message.
Invariant: per message there are a few integers and no other Python object; what Arrow and NumPy can do for a whole block
they do. The rows are those that the direct path makes of the same messages. Must not know sockets or Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.durations import duration_ns
from headrace.errors import ProtocolError
from headrace.spark.claims import claim_column
from headrace.store.arrow import binary_views, parse_headers

Ints = npt.NDArray[np.int64]

_CRLF = b"\r\n"
_H, _SPACE = ord("H"), ord(" ")
#: What a server appends to the stored headers, in this order; two empty lines follow.
_ADDED = (
    b"Nats-Stream: ",
    b"Nats-Subject: ",
    b"Nats-Sequence: ",
    b"Nats-Time-Stamp: ",
    b"Nats-Num-Pending: ",
    b"Nats-Last-Sequence: ",
)
#: The status line, what is added, and the two empty ends: more lines than these are headers of the message's own.
_LINES_BARE = 1 + len(_ADDED) + 2
_TTL = "Nats-TTL"


class Scanner:
    """Finds the frames of one request's answers in a buffer that is still being filled."""

    def __init__(self, reply: bytes) -> None:
        self.at = 0
        self.status = b""
        self._line = b"HMSG %s 1 " % reply
        self._starts: list[int] = []
        self._heads: list[int] = []
        self._totals: list[int] = []

    def scan(self, buffer: bytearray) -> bool:
        """Go on as far as there are whole frames; True once the answer that ends the block was found.

        False with `at` before something that is no frame of this request, or before what is not whole yet.
        """
        at, line, skip = self.at, self._line, len(self._line)
        starts, heads, totals = self._starts, self._heads, self._totals
        length = len(buffer)
        while buffer.startswith(line, at):
            end = buffer.find(_CRLF, at + skip, at + skip + 24)
            if end < 0:
                break
            head, _, total = buffer[at + skip : end].partition(b" ")
            after = end + 4 + int(total)
            if after > length:
                break
            if buffer[end + 10] == _SPACE:
                self.status = bytes(buffer[end + 2 : after - 2])
                self.at = after
                return True
            starts.append(end + 2)
            heads.append(int(head))
            totals.append(int(total))
            at = after
        self.at = at
        return False

    def foreign(self, buffer: bytearray) -> bool:
        """Whether the next thing in the buffer is a line of the protocol and no message."""
        return len(buffer) > self.at and buffer[self.at] != _H

    def block(self, buffer: bytearray) -> Block:
        """The messages found so far; what is scanned leaves the buffer."""
        data = memoryview(bytes(memoryview(buffer)[: self.at]))
        del buffer[: self.at]
        self.at = 0
        arrays = [np.array(each, np.int64) for each in (self._starts, self._heads, self._totals)]
        return Block(data, *arrays)


@dataclass(frozen=True)
class Block:
    """Messages in memory: where each one's header begins, how long it is, and how long header and payload are."""

    data: memoryview
    starts: Ints
    heads: Ints
    totals: Ints

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def seqs(self) -> Ints:
        numbers = self._added(b"Nats-Sequence: ").cast(pa.string()).cast(pa.int64())
        return np.asarray(numbers.to_numpy(zero_copy_only=False))

    def columns(self, names: list[str], keep: slice) -> dict[str, pa.Array]:
        """The columns that are wanted, of the rows that are wanted."""
        return {name: getattr(self, f"_{name}")().__getitem__(keep) for name in names}

    def _seq(self) -> pa.Array:
        return pa.array(self.seqs)

    def _time(self) -> pa.Array:
        return self._added(b"Nats-Time-Stamp: ").cast(pa.string()).cast(pa.timestamp("ns", tz="UTC"))

    def _subject(self) -> pa.Array:
        raw = self._added(b"Nats-Subject: ")
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array([each.decode("utf-8", "replace") for each in raw.to_pylist()], pa.string())

    def _data(self) -> pa.Array:
        return binary_views(self.data, self.starts + self.heads, self.totals - self.heads, None).cast(
            pa.binary()
        )

    def _headers(self) -> pa.Array:
        return self._own_headers

    def _expires_at(self) -> pa.Array:
        if self._own_headers.null_count == len(self):
            return pa.nulls(len(self), pa.timestamp("ns", tz="UTC"))
        ttls = pc.list_element(
            pc.fill_null(pc.map_lookup(self._own_headers, pa.scalar(_TTL), "first"), [None]), 0
        )
        return deadlines(self._time(), ttls)

    def _claim(self) -> pa.Array:
        return claim_column(self._own_headers, self._data())

    @cached_property
    def _own_headers(self) -> pa.Array:
        """The headers that were stored with the messages: what stands before those that the server added."""
        begins, _, counts = self._tail
        own = counts > _LINES_BARE
        if not own.any():
            return pa.nulls(len(self), pa.map_(pa.string(), pa.list_(pa.string())))
        first = begins[_ADDED[0]]
        return parse_headers(binary_views(self.data, self.starts, first - self.starts, own))

    @cached_property
    def _tail(self) -> tuple[dict[bytes, Ints], dict[bytes, Ints], Ints]:
        """Where the lines that the server added begin, how long they are, and how many lines each message has."""
        texts = binary_views(self.data, self.starts, self.heads, None).cast(pa.binary())
        split = pc.split_pattern(texts, _CRLF)
        offsets = np.asarray(split.offsets.to_numpy(zero_copy_only=False), np.int64)
        lengths = np.asarray(pc.binary_length(split.values).to_numpy(zero_copy_only=False), np.int64)
        begin = self.starts + self.heads - 2
        begins, sizes = {}, {}
        for back, name in enumerate(reversed(_ADDED), 3):
            sizes[name] = lengths[offsets[1:] - back]
            begin = begins[name] = begin - sizes[name] - 2
        return begins, sizes, np.diff(offsets)

    def _added(self, name: bytes) -> pa.Array:
        """The values of a header that the server added."""
        begins, sizes, _ = self._tail
        begin, skip = begins[name], len(name)
        window = np.ndarray((len(self.data) - skip + 1,), f"S{skip}", self.data, strides=(1,))
        # A trailing space is part of the name, and NumPy's comparison of texts keeps it.
        if not (window[begin] == name).all():
            raise ProtocolError(f"an answer to a direct get lacks {name.decode()!r}; what server is this?")
        return binary_views(self.data, begin + skip, sizes[name] - skip, None).cast(pa.binary())


def deadlines(times: pa.Array, ttls: pa.Array) -> pa.Array:
    """When messages expire, by their time and the text of their TTL."""
    distinct = ttls.dictionary_encode()
    spans = pa.array([_span_ns(text) for text in distinct.dictionary.to_pylist()], pa.duration("ns"))
    return pc.add(times, spans.take(distinct.indices))


def _span_ns(text: str | None) -> int | None:
    """The nanoseconds of a TTL; None for one that does not end, as for one that says nothing."""
    if text is None or text == "never":
        return None
    seconds = int(text) if text.isdigit() else duration_ns(text) // 1_000_000_000
    return seconds * 1_000_000_000 or None
