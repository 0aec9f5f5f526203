"""Stored messages for the web page: newest first, one page at a time, each truncated to a readable size.

Contents are data, whatever they look like: they are sent as JSON strings and the page shows them as text.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from headrace.broker.stream import Stream
from headrace.errors import CorruptData
from headrace.monitor.query import Query
from headrace.monitor.varz import format_rfc3339
from headrace.protocol import headers, subjects

DEFAULT_LIMIT, LIMIT_MAX = 25, 100
DATA_BYTES_MAX = 4096


def browse_messages(stream: Stream, query: Query) -> dict[str, Any]:
    """Return messages from `seq` (0: the newest) downwards that match `subject`; raise ValueError on a bad query."""
    stream.retention.enforce()
    log, pattern = stream.log, query.get("subject", "").encode()
    if pattern and not subjects.is_valid(pattern):
        raise ValueError(f"invalid subject {query['subject']!r}")
    limit = min(max(int(query.get("limit", DEFAULT_LIMIT)), 1), LIMIT_MAX)
    seq = min(int(query.get("seq", 0)) or log.committed_seq, log.committed_seq)
    subject_filter = log.get_filter((pattern,)) if pattern else None
    found: list[dict[str, Any]] = []
    seq = log.find_prev(subject_filter, seq) if seq > 0 else 0
    while seq and len(found) < limit:
        found.append(_make_message(stream, seq))
        seq = log.find_prev(subject_filter, seq - 1) if seq > 1 else 0
    return {"stream": stream.name, "messages": found, "older": seq}


def _make_message(stream: Stream, seq: int) -> dict[str, Any]:
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
        "cut": len(payload) > DATA_BYTES_MAX,
    } | _encode_payload(payload[:DATA_BYTES_MAX])


def _encode_payload(payload: bytes) -> dict[str, str]:
    try:
        return {"text": payload.decode()}
    except UnicodeDecodeError as error:
        if len(payload) == DATA_BYTES_MAX and error.start > DATA_BYTES_MAX - 4:  # cut within a character
            return {"text": payload[: error.start].decode()}
        return {"base64": b64encode(payload).decode()}
