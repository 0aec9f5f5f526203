"""Counters: a message carries an increment (`Nats-Incr`), the stream stores the sum (`{"val":"42"}`), one per subject.

A copied message carries its upstream's sum, so the copy adds the difference to the sum it last received from there, and
keeps those values in `Nats-Counter-Sources`: nothing is counted twice, however often it is delivered. Numbers may have
as many digits as fit into a message; they are decimals, because parsing and formatting decimals takes time proportional
to their length, while it is quadratic for integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Context, Decimal, Inexact
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.streams.publish_checks import INCREMENT, check_increment
from headrace.jetstream_api.encode import dumps
from headrace.jetstream_api.errors import ApiError
from headrace.protocol import headers
from headrace.protocol.json_exceptions import JSON_ERRORS

if TYPE_CHECKING:
    from headrace.broker.streams.stream_context import StreamContext

SOURCES = b"Nats-Counter-Sources"
#: More digits than a message has bytes: no sum is ever rounded.
_EXACT = Context(prec=100_000_000, Emax=999_999_999, Emin=-999_999_999, traps=[Inexact])
_ZERO = Decimal(0)

HeaderMap = Mapping[bytes, bytes]
#: The last value received of a counter: upstream stream -> subject there -> value.
CounterSources = dict[str, dict[str, str]]


class _CounterValue(msgspec.Struct):
    val: str = ""


class CounterTotals:
    """The counters of a stream during a batch: each member sees the sums of those before it."""

    __slots__ = ("_stream", "_totals")

    def __init__(self, stream: StreamContext) -> None:
        self._stream = stream
        self._totals: dict[bytes, tuple[Decimal, CounterSources]] = {}

    def apply_increment(self, subject: bytes, header: bytes, header_map: HeaderMap) -> tuple[bytes, bytes]:
        """Return header and payload to store for a checked increment; raise if the message has none."""
        increment = header_map.get(INCREMENT)
        if not increment:
            raise ApiError.MESSAGE_INCR_MISSING()
        if SOURCES in header_map:  # only a copy may carry source values
            header = headers.strip(header, SOURCES)
        total, sources = self._get_total(subject)
        return self._set_total(subject, header, _EXACT.add(total, _parse_decimal(increment)), sources)

    def apply_copy(
        self,
        subject: bytes,
        header: bytes,
        payload: bytes,
        header_map: HeaderMap,
        upstream_stream: str,
        upstream_subject: str,
    ) -> tuple[bytes, bytes]:
        """Do the same for a copied counter; `upstream_stream` and `upstream_subject` say whose value the payload is."""
        check_increment(header_map.get(INCREMENT, b""))
        if not header_map.get(INCREMENT):
            raise ApiError.MESSAGE_INCR_MISSING()
        total, sources = self._get_total(subject)
        value = _parse_value(payload)
        before = sources.get(upstream_stream, {}).get(upstream_subject, "")
        difference = _EXACT.subtract(value, _parse_decimal(before.encode()))
        sources = {
            **sources,
            upstream_stream: {**sources.get(upstream_stream, {}), upstream_subject: str(value)},
        }
        header = _set_header(header, INCREMENT, str(difference).encode())
        return self._set_total(subject, header, _EXACT.add(total, difference), sources)

    def _get_total(self, subject: bytes) -> tuple[Decimal, CounterSources]:
        known = self._totals.get(subject)
        if known is not None:
            return known
        log = self._stream.log
        seq = log.get_last_seq(subject)
        message = log.get(seq) if seq else None
        if message is None:
            return _ZERO, {}
        return _parse_value(message[3]), _parse_sources(message[2])

    def _set_total(
        self, subject: bytes, header: bytes, total: Decimal, sources: CounterSources
    ) -> tuple[bytes, bytes]:
        self._totals[subject] = total, sources
        if sources:
            header = _set_header(header, SOURCES, dumps(_sort_sources(sources)))
        payload = b'{"val":"%b"}' % str(total).encode()
        config = self._stream.config
        if 0 <= config.max_msg_size < len(header) + len(payload):
            raise ApiError.STREAM_MESSAGE_EXCEEDS_MAXIMUM()
        return header, payload


def apply_increment(
    stream: StreamContext, subject: bytes, header: bytes, header_map: HeaderMap
) -> tuple[bytes, bytes]:
    """Return header and payload to store for a single publish to a counter stream."""
    return CounterTotals(stream).apply_increment(subject, header, header_map)


def encode_pub_ack(stream: StreamContext, seq: int) -> bytes:
    """Encode the publisher's ack: the sequence, and the sum as it was stored."""
    message = stream.log.get(seq)
    assert message is not None
    return b"%b%d,%b" % (stream.pub_ack_prefix, seq, message[3][1:])


def _parse_decimal(text: bytes) -> Decimal:
    """Parse a number; as in nats-server, anything else is 0."""
    digits = text[1:] if text[:1] in (b"+", b"-") else text
    return _EXACT.create_decimal(text.decode()) if digits.isdigit() else _ZERO


def _parse_value(payload: bytes) -> Decimal:
    try:
        return _parse_decimal(msgspec.json.decode(payload, type=_CounterValue).val.encode())
    except JSON_ERRORS:
        raise ApiError.MESSAGE_COUNTER_BROKEN() from None


def _parse_sources(header: bytes) -> CounterSources:
    value = headers.get(header, SOURCES) if SOURCES in header else None
    if not value:
        return {}
    try:
        return msgspec.json.decode(value, type=CounterSources)
    except JSON_ERRORS:
        raise ApiError.MESSAGE_COUNTER_BROKEN() from None


def _sort_sources(sources: CounterSources) -> CounterSources:
    return {stream: dict(sorted(sources[stream].items())) for stream in sorted(sources)}


def _set_header(block: bytes, name: bytes, value: bytes) -> bytes:
    """Set a header in a block, at its old position if it has one."""
    at = headers.find(block, name)
    if at < 0:
        return headers.append(block, [(name, value)])
    return block[:at] + name + b": " + value + block[block.index(headers.CRLF, at) :]
