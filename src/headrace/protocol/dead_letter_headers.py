"""Headers of dead letters: where a message came from and why it was given up; and the message's own headers.

Headers that the server acts on are renamed in a dead letter, so that neither deduplication nor expectations, TTLs,
rollups, schedules, counters or batches apply to it. `restore` names them as before, except those on which the server, or
a copy of the stream, would act again. Knows no streams.
"""

from __future__ import annotations

from headrace.protocol import headers

_NATS = b"Nats-"
PREFIX = _NATS + b"DL-"
STREAM, SEQ, CONSUMER = b"Nats-DL-Stream", b"Nats-DL-Seq", b"Nats-DL-Consumer"
SUBJECT, REASON, DETAIL = b"Nats-DL-Subject", b"Nats-DL-Reason", b"Nats-DL-Detail"
DELIVERIES, TIME = b"Nats-DL-Deliveries", b"Nats-DL-Time"
#: Before the rest of a renamed header: that of a message id ends with `-Msg-Id`.
RENAMED = b"Nats-DL-Header-"

_CONTROL = (
    b"Nats-Msg-Id",
    _NATS + b"Expected-",
    b"Nats-TTL",
    b"Nats-Rollup",
    b"Nats-Schedule",
    b"Nats-Incr",
    _NATS + b"Batch-",
    PREFIX,
)
#: These stay renamed in the message that is published again: it would purge others, or start a schedule again.
_ACTED_ON = (b"Nats-Schedule", b"Nats-Rollup")
_TTL = b"Nats-TTL"


def build(header: bytes, about: list[tuple[bytes, bytes]]) -> bytes:
    """Return the headers of a dead letter: those of the message, then those `about` it."""
    own = [
        (_rename(key) if key.startswith(_CONTROL) else key, value)
        for key, value in headers.parse_pairs(header)
    ]
    return headers.build([*own, *about])


def restore(header: bytes, *, with_ttl: bool) -> bytes:
    """Return the headers of the message that is published again; `with_ttl`: its TTL applies."""
    own = []
    for key, value in headers.parse_pairs(header):
        if key.startswith(RENAMED):
            original = _NATS + key[len(RENAMED) :]
        elif key.startswith(PREFIX):
            continue
        else:
            original = key
        stays_renamed = original.startswith(_ACTED_ON) or (original == _TTL and not with_ttl)
        own.append((_rename(original) if stays_renamed else original, value))
    return headers.build(own) if own else b""


def _rename(key: bytes) -> bytes:
    return RENAMED + key[len(_NATS) :]
