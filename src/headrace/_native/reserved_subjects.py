"""Subjects of the server itself, to which a client must not direct what the server sends.

An ack confirmation is an empty message, and an empty message to `$JS.API.STREAM.DELETE.<stream>` is a request. The
compiled parser has its own version of `is_reserved_reply`; a test compares the two.
"""

from __future__ import annotations

RESERVED_REPLY_PREFIXES = (b"_R_.", b"_GR_.", b"$JS.ACK.", b"$JS.API.")


def is_reserved_reply(reply: bytes) -> bool:
    """Return whether a client must not use a reply subject, because it belongs to the server itself."""
    if reply.startswith(RESERVED_REPLY_PREFIXES):
        return reply not in RESERVED_REPLY_PREFIXES
    return is_api_subject(reply)


def is_api_subject(subject: bytes) -> bool:
    """Return whether a subject is one of the JetStream API: below `$JS.API.` or `$JS.<domain>.API.`."""
    tokens = subject.split(b".", 3)
    if tokens[0] != b"$JS" or len(tokens) < 3:
        return False
    is_plain = tokens[1] == b"API" and tokens[2] != b""
    return is_plain or (len(tokens) == 4 and tokens[2] == b"API" and tokens[3] != b"")


def is_server_subject(subject: bytes) -> bool:
    """Return whether messages that a stream or consumer sends must not go to this subject, or pattern of subjects."""
    return is_api_subject(subject) or subject.startswith((b"$SYS.", b"$JS.ACK."))
