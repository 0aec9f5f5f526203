"""Deliveries taken apart: the acknowledgement subject that numbers a message, and the records of a run."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.broker.progress_codec import Seqs

_PREFIX = [b"$JS", b"ACK"]
_RECORD = struct.Struct("<IHHIIQQ")


class Delivery(NamedTuple):
    """The numbers of one delivery."""

    consumer: bytes
    times: int  # how often it was delivered
    seq: int
    dseq: int
    time_ns: int
    pending: int


def delivery_of(reply: bytes) -> Delivery | None:
    """Read `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<count>.<seq>.<dseq>.<time>.<pending>`; None if it is
    something else.
    """
    words = reply.split(b".")
    if len(words) < 9 or words[:2] != _PREFIX:
        return None
    at = 3 if len(words) == 9 else 5
    numbers = words[at + 1 : at + 6]
    if len(numbers) < 5 or not all(number.isdigit() for number in numbers):
        return None
    return Delivery(words[at], *map(int, numbers))


def records_of(
    view: memoryview, seqs: Seqs, at: int, most: int
) -> Iterator[tuple[int, int, bytes, bytes, bytes]]:
    """Sequence, time, subject, header and payload of the records that are in `seqs` from `at` on, at most so many."""
    wanted = iter(seqs[at : at + most].tolist())
    want = next(wanted, 0)
    offset, end = 0, len(view)
    while want and end - offset >= _RECORD.size:
        size, subject_size, _, header_size, _, seq, time_ns = _RECORD.unpack_from(view, offset)
        start = offset + _RECORD.size
        offset += size
        if seq < want:
            continue
        if seq > want or offset > end:
            return
        header_at = start + subject_size
        payload_at = header_at + header_size
        yield (
            seq,
            time_ns,
            bytes(view[start:header_at]),
            bytes(view[header_at:payload_at]) if header_size else b"",
            bytes(view[payload_at:offset]),
        )
        want = next(wanted, 0)
