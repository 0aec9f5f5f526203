"""Messages of a task in pieces that are stored together.

Owns where a piece ends and what is recorded of it. Invariant: the same messages make the same pieces with the same
checksums, in whatever portions they come, which is how a repeated task recognises what it has written. Must not know how
pieces are published.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

from headrace.errors import HeadraceError
from headrace.kernel import twin
from headrace.spark.rows import Lot, Message, ends_and_bytes, lot_of

if TYPE_CHECKING:
    from headrace.kernel.frames import publishes
else:
    publishes = twin("frames").publishes

_CHUNK_BYTES = 4 << 20
_GATHERED = 1000
#: What the publishers' own headers take at most.
_HEADERS_ADDED = 200


class WriteError(HeadraceError):
    """Rows that could not be written, or not once."""


@dataclass(frozen=True)
class Chunk:
    """Messages that are stored together, and where the task stands behind them."""

    lots: list[Lot]
    rows: int
    crc: int

    def __len__(self) -> int:
        return sum(len(each) for each in self.lots)

    def payload(self, row: int) -> bytes:
        """That of the message at a place."""
        for each in self.lots:
            if row < len(each):
                return bytes(each.payloads[row].as_py())
            row -= len(each)
        raise IndexError(row)

    def frames(
        self, reply: bytes, mark: bytes, first: int, own: Mapping[int, bytes] | None = None
    ) -> bytearray:
        """The publishes of all messages; each one's number completes the header that `mark` begins.

        Answers go to `reply`, or to the inbox that the message at a place has of its `own`.
        """
        out = bytearray()
        for each, inbox in self._addressed(reply, own or {}):
            try:
                out += publishes(*each.columns(), inbox, mark, first)
            except ValueError as error:
                raise WriteError(f"{error}; set one, or filter such rows out") from error
            first += len(each)
        return out

    def _addressed(self, reply: bytes, own: Mapping[int, bytes]) -> Iterator[tuple[Lot, bytes]]:
        """Messages whose answers go to the same inbox, in order."""
        at = 0
        for each in self.lots:
            places = [place - at for place in own if at <= place < at + len(each)]
            cuts = sorted({0, len(each), *places, *(place + 1 for place in places)})
            for start, stop in pairwise(cuts):
                yield each.part(start, stop), own.get(at + start, reply)
            at += len(each)


def lots_of(messages: Iterable[Message]) -> Iterator[Lot]:
    """Messages that come one by one, gathered."""
    held = iter(messages)
    while some := list(islice(held, _GATHERED)):
        yield lot_of(some)


def chunks(lots: Iterable[Lot], size: int) -> Iterator[Chunk]:
    """Messages in pieces that one atomic batch takes; the same messages make the same pieces, however they come."""
    held: list[Lot] = []
    rows = crc = count = length = 0
    for each in lots:
        at = 0
        while at < len(each):
            taken, weight = _fitting(each, at, size - count, _CHUNK_BYTES - length)
            held.append(each.part(at, at + taken))
            at, count, length = at + taken, count + taken, length + weight
            if count == size or length >= _CHUNK_BYTES:
                rows, crc = rows + count, _crc(held, crc)
                yield Chunk(held, rows, crc)
                held, count, length = [], 0, 0
    if held:
        yield Chunk(held, rows + count, _crc(held, crc))


def _fitting(lot: Lot, at: int, rows: int, room: int) -> tuple[int, int]:
    """How many messages from `at` on still fit, and their bytes; the one that fills the room fits too."""
    ends, _ = ends_and_bytes(lot.payloads)
    reach = ends[at + 1 : at + 1 + rows]
    taken = min(int(np.searchsorted(reach, int(ends[at]) + room)) + 1, len(reach))
    return taken, int(reach[taken - 1] - ends[at])


def _crc(lots: list[Lot], crc: int) -> int:
    """What the messages were: their lengths and bytes, column by column."""
    columns = [0] * 6
    for each in lots:
        for place, column in enumerate(each.columns()):
            if column:
                ends, data = column
                columns[2 * place] = crc32(np.diff(ends), columns[2 * place])
                columns[2 * place + 1] = crc32(data[ends[0] : ends[-1]], columns[2 * place + 1])
    return crc32(np.array(columns, np.int64).tobytes(), crc)


def check_size(chunk: Chunk, limit: int) -> None:
    """A message beyond the server's limit would end the connection."""
    largest = max(_largest(each) for each in chunk.lots) + _HEADERS_ADDED
    if largest > limit:
        raise WriteError(
            f"a message of {largest} bytes with its headers is larger than the server takes ({limit}); "
            "raise its max_payload, or send the payload as a claim"
        )


def _largest(lot: Lot) -> int:
    sizes = np.diff(ends_and_bytes(lot.payloads)[0])
    if lot.lines is not None:
        sizes = sizes + np.diff(ends_and_bytes(lot.lines)[0])
    return int(sizes.max())
