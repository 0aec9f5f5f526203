"""Parses ack subjects: which delivery of which message a client acknowledges."""

from __future__ import annotations

from typing import NamedTuple

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
