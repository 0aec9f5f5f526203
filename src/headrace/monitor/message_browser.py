"""Stored messages for the web page: one page at a time, each truncated to a readable size.

Contents are data, whatever they look like: they are sent as JSON strings and the page shows them as text.
"""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

from headrace.broker.stream import Stream
from headrace.errors import CorruptData
from headrace.monitor.query import Query
from headrace.monitor.sliced_page import PageRows, PageText, Slices
from headrace.monitor.varz import format_rfc3339
from headrace.protocol import headers, subjects
from headrace.storage import Filter

DEFAULT_LIMIT, LIMIT_MAX = 25, 100
DATA_BYTES_MAX = 4096
#: Bytes of a single message that a viewer asks for as a whole.
WHOLE_BYTES_MAX = 1024 * 1024
#: Bytes of a payload that are encoded at once: control characters take six times their length in JSON.
_PIECE_BYTES = 48 * 1024
_ORDERS = ("older", "newer")


async def browse_messages(stream: Stream, query: Query) -> dict[str, Any]:
    """Return messages that match `subject`; raise ValueError on a bad query.

    They begin at `seq` (0: the newest, or with `order=newer` the first) or at a `time`, and go downwards, or upwards with
    `order=newer`. `older` and `newer` in the result are where to continue, 0 if there is nothing.
    """
    stream.retention.enforce()
    log = stream.log
    subject_filter = await find_subject_filter(stream, query)
    limit = min(max(int(query.get("limit", DEFAULT_LIMIT)), 1), LIMIT_MAX)
    order = query.get("order", "") or "older"
    if order not in _ORDERS:
        raise ValueError(f"order must be {' or '.join(_ORDERS)}")
    seq = _find_start(stream, query, order)
    data_max = WHOLE_BYTES_MAX if query.get("whole") and limit == 1 else DATA_BYTES_MAX
    found: list[int] = []
    step = _find_newer if order == "newer" else _find_older
    seq = step(stream, subject_filter, seq)
    while seq and len(found) < limit:
        found.append(seq)
        seq = step(stream, subject_filter, seq + 1 if order == "newer" else seq - 1)
    shown = found if order == "older" else found[::-1]
    newest, oldest = (shown[0], shown[-1]) if shown else (0, 0)
    return {
        "stream": stream.name,
        "messages": PageRows(lambda: (encode_message(stream, each, data_max) for each in shown)),
        "older": _find_older(stream, subject_filter, oldest - 1),
        "newer": _find_newer(stream, subject_filter, newest + 1) if newest else 0,
        "last_seq": log.committed_seq,
        "skipped": max(seq - 1, 0) if order == "newer" and seq else 0,
    }


async def find_subject_filter(stream: Stream, query: Query) -> Filter | None:
    """Return the filter that the query names, None for all messages; raise ValueError if it is not valid."""
    pattern = query.get("subject", "").encode()
    if not pattern:
        return None
    if not subjects.is_valid(pattern):
        raise ValueError(f"invalid subject {query['subject']!r}")
    return await make_subject_filter(stream, pattern)


async def make_subject_filter(stream: Stream, pattern: bytes) -> Filter:
    """Return the filter for a pattern, made in slices: a stream may have millions of subjects."""
    steps = stream.log.iter_filter((pattern,))
    with Slices() as slices:
        while True:
            try:
                next(steps)
            except StopIteration as finished:
                found: Filter = finished.value
                return found
            if slices.is_over():
                await slices.next_turn()


def parse_time_ns(text: str) -> int:
    """Parse a time such as 2026-01-31T12:00:00Z; raise ValueError if it is none. Without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"invalid time {text!r}: use a time such as 2026-01-31T12:00:00Z") from None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * 1000


def _find_start(stream: Stream, query: Query, order: str) -> int:
    log, last = stream.log, stream.log.committed_seq
    if text := query.get("time", ""):
        return log.find_seq_at_time(parse_time_ns(text)) or last + (order == "newer")
    seq = int(query.get("seq", 0) or 0)
    if order == "newer":
        return seq
    return min(seq or last, last)


def _find_older(stream: Stream, subject_filter: Filter | None, seq: int) -> int:
    return stream.log.find_prev(subject_filter, seq) if seq > 0 else 0


def _find_newer(stream: Stream, subject_filter: Filter | None, seq: int) -> int:
    found = stream.log.find_next(subject_filter, seq)
    return found if found <= stream.log.committed_seq else 0


def encode_message(stream: Stream, seq: int, data_max: int = DATA_BYTES_MAX) -> dict[str, Any]:
    """Return a message with at most `data_max` bytes of its payload."""
    try:
        message = stream.log.get(seq)
    except CorruptData as damage:
        return {"seq": seq, "error": str(damage)}
    if message is None:
        return {"seq": seq, "error": "gone meanwhile"}
    time_ns, subject, header, payload, ttl_s = message
    return {
        "seq": seq,
        "time": format_rfc3339(time_ns),
        "subject": subject.decode(errors="replace"),
        "headers": [
            [name.decode(errors="replace"), value.decode(errors="replace")]
            for name, value in headers.parse_pairs(header)
        ]
        if header
        else [],
        "ttl_s": ttl_s,
        "size": len(payload),
        "cut": len(payload) > data_max,
    } | _encode_payload(payload[:data_max], data_max)


def _encode_payload(payload: bytes, data_max: int) -> dict[str, str | PageText]:
    try:
        return {"text": _split_text(payload.decode())}
    except UnicodeDecodeError as error:
        if len(payload) == data_max and error.start > data_max - 4:  # cut within a character
            return {"text": _split_text(payload[: error.start].decode())}
        return {"base64": _split_base64(payload)}


def _split_text(text: str) -> str | PageText:
    if len(text) <= _PIECE_BYTES:
        return text
    starts = range(0, len(text), _PIECE_BYTES)
    return PageText(lambda: (text[start : start + _PIECE_BYTES] for start in starts))


def _split_base64(payload: bytes) -> str | PageText:
    if len(payload) <= _PIECE_BYTES:
        return b64encode(payload).decode()
    starts = range(0, len(payload), _PIECE_BYTES)
    return PageText(lambda: (b64encode(payload[start : start + _PIECE_BYTES]).decode() for start in starts))
