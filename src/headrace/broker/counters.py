"""Counters: a message says by how much (`Nats-Incr`), what is stored is the sum (`{"val":"42"}`), a counter a subject.

A copied message carries its origin's sum, so the copy counts the difference to what it last heard from there, and
keeps those values in `Nats-Counter-Sources`: nothing is counted twice, however often it is delivered. Numbers have as
many digits as fit into a message; they are decimals, because reading and writing those takes time in proportion to
their length, where the time for integers grows with its square.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Context, Decimal, Inexact
from typing import TYPE_CHECKING

import msgspec

from headrace.api import errors
from headrace.api.encode import dumps
from headrace.broker.admission import INCREMENT, check_increment
from headrace.protocol import headers
from headrace.protocol.bodies import UNREADABLE

if TYPE_CHECKING:
    from headrace.broker.stream import Stream

SOURCES = b"Nats-Counter-Sources"
#: More digits than a message has bytes: no sum is ever rounded.
_EXACT = Context(prec=100_000_000, Emax=999_999_999, Emin=-999_999_999, traps=[Inexact])
_ZERO = Decimal(0)

Found = Mapping[bytes, bytes]
#: What was last heard of a counter: origin stream -> subject there -> value.
Sources = dict[str, dict[str, str]]


class _Value(msgspec.Struct):
    val: str = ""


class Totals:
    """The counters of a stream as a batch finds and leaves them: members see those before them."""

    __slots__ = ("_known", "_stream")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._known: dict[bytes, tuple[Decimal, Sources]] = {}

    def raise_by(self, subject: bytes, header: bytes, found: Found) -> tuple[bytes, bytes]:
        """Header and payload to store for an increment that passed its checks; raises if there is none."""
        increment = found.get(INCREMENT)
        if not increment:
            raise errors.error(10169)
        if SOURCES in found:  # only a copy may say what it heard from where
            header = headers.strip(header, SOURCES)
        total, sources = self._look_up(subject)
        return self._store(subject, header, _EXACT.add(total, _number(increment)), sources)

    def follow(
        self, subject: bytes, header: bytes, payload: bytes, found: Found, stream: str, origin: str
    ) -> tuple[bytes, bytes]:
        """The same for a counter that was copied: `stream` and `origin` say whose value the payload is."""
        check_increment(found.get(INCREMENT, b""))
        if not found.get(INCREMENT):
            raise errors.error(10169)
        total, sources = self._look_up(subject)
        value = _read(payload)
        before = sources.get(stream, {}).get(origin, "")
        difference = _EXACT.subtract(value, _number(before.encode()))
        sources = {**sources, stream: {**sources.get(stream, {}), origin: str(value)}}
        header = _set(header, INCREMENT, str(difference).encode())
        return self._store(subject, header, _EXACT.add(total, difference), sources)

    def _look_up(self, subject: bytes) -> tuple[Decimal, Sources]:
        known = self._known.get(subject)
        if known is not None:
            return known
        log = self._stream.log
        seq = log.last_of(subject)
        message = log.get(seq) if seq else None
        if message is None:
            return _ZERO, {}
        return _read(message[3]), _read_sources(message[2])

    def _store(self, subject: bytes, header: bytes, total: Decimal, sources: Sources) -> tuple[bytes, bytes]:
        self._known[subject] = total, sources
        if sources:
            header = _set(header, SOURCES, dumps(_sorted(sources)))
        payload = b'{"val":"%b"}' % str(total).encode()
        size_max = self._stream.config.max_msg_size
        if 0 <= size_max < len(header) + len(payload):
            raise errors.error(10054)
        return header, payload


def raised(stream: Stream, subject: bytes, header: bytes, found: Found) -> tuple[bytes, bytes]:
    """Header and payload to store for a single publish to a stream of counters."""
    return Totals(stream).raise_by(subject, header, found)


def answer(stream: Stream, seq: int) -> bytes:
    """What a publisher is told: the sequence, and the sum as it was stored."""
    message = stream.log.get(seq)
    assert message is not None
    return b"%b%d,%b" % (stream.ack_prefix, seq, message[3][1:])


def _number(text: bytes) -> Decimal:
    """What cannot be read is nothing, as with the reference."""
    digits = text[1:] if text[:1] in (b"+", b"-") else text
    return _EXACT.create_decimal(text.decode()) if digits.isdigit() else _ZERO


def _read(payload: bytes) -> Decimal:
    try:
        return _number(msgspec.json.decode(payload, type=_Value).val.encode())
    except UNREADABLE:
        raise errors.error(10172) from None


def _read_sources(header: bytes) -> Sources:
    value = headers.get(header, SOURCES) if SOURCES in header else None
    if not value:
        return {}
    try:
        return msgspec.json.decode(value, type=Sources)
    except UNREADABLE:
        raise errors.error(10172) from None


def _sorted(sources: Sources) -> Sources:
    return {stream: dict(sorted(sources[stream].items())) for stream in sorted(sources)}


def _set(block: bytes, name: bytes, value: bytes) -> bytes:
    """The block with this header set, in its place if it has one."""
    at = headers.find(block, name)
    if at < 0:
        return headers.append(block, [(name, value)])
    return block[:at] + name + b": " + value + block[block.index(headers.CRLF, at) :]
