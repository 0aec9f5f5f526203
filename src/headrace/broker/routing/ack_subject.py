"""Decodes deliveries: parses ack subjects and iterates over the records of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from headrace._native.record_header import RECORD_HEADER, RECORD_HEADER_BYTES

if TYPE_CHECKING:
    from headrace.storage.sequence_arrays import Seqs

_PREFIX = [b"$JS", b"ACK"]
_DIGITS_MAX = 20


class Delivery(NamedTuple):
    """The fields of an ack subject."""

    consumer: bytes
    delivery_count: int  # how often the message was delivered
    seq: int
    consumer_seq: int
    time_ns: int
    pending: int


def parse_ack_subject(reply: bytes) -> Delivery | None:
    """Parse an ack subject; None if it is another kind of subject.

    The form is `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<count>.<seq>.<dseq>.<time>.<pending>`.
    """
    tokens = reply.split(b".")
    if len(tokens) < 9 or tokens[:2] != _PREFIX:
        return None
    at = 3 if len(tokens) == 9 else 5
    numbers = tokens[at + 1 : at + 6]
    if len(numbers) < 5 or not all(number.isdigit() and len(number) <= _DIGITS_MAX for number in numbers):
        return None
    return Delivery(tokens[at], *map(int, numbers))


def iter_selected_records(
    view: memoryview, seqs: Seqs, at: int, most: int
) -> Iterator[tuple[int, int, bytes, bytes, bytes]]:
    """Yield sequence, time, subject, header and payload of the records in `seqs[at : at + most]`."""
    wanted = iter(seqs[at : at + most].tolist())
    next_seq = next(wanted, 0)
    offset, end = 0, len(view)
    while next_seq and end - offset >= RECORD_HEADER_BYTES:
        size, subject_size, _, header_size, _, seq, time_ns = RECORD_HEADER.unpack_from(view, offset)
        start = offset + RECORD_HEADER_BYTES
        offset += size
        if seq < next_seq:
            continue
        if seq > next_seq or offset > end:
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
        next_seq = next(wanted, 0)
