"""Encodes the lines that a server sends: INFO, errors, messages created inside the server.

The hot path (published messages to subscriptions) is encoded by the compiled core; this module encodes the rest.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

OK = b"+OK\r\n"
PING = b"PING\r\n"
PONG = b"PONG\r\n"


def encode_info(fields: Mapping[str, Any]) -> bytes:
    """Encode an INFO line; the fields keep their order, and a blank precedes the end as in nats-server."""
    return b"INFO " + msgspec.json.encode(fields) + b" \r\n"


def encode_error(text: str | bytes) -> bytes:
    """Encode an error line."""
    return b"-ERR '%s'\r\n" % (text if isinstance(text, bytes) else text.encode())


def encode_msg(subject: bytes, sid: bytes, reply: bytes, header: bytes, payload: bytes) -> bytes:
    """Encode a MSG, or an HMSG if there is a header block."""
    target = b"%s %s %s " % (subject, sid, reply) if reply else b"%s %s " % (subject, sid)
    if not header:
        return b"MSG %s%d\r\n%s\r\n" % (target, len(payload), payload)
    size = len(header)
    return b"HMSG %s%d %d\r\n%s%s\r\n" % (target, size, size + len(payload), header, payload)


def no_responders_header(subject: bytes) -> bytes:
    """Return the header block of the reply to a request whose subject has no subscribers."""
    return b"NATS/1.0 503\r\nNats-Subject: %s\r\n\r\n" % subject
