"""Subject delete markers: when the last message of a subject goes, a message in its place says so.

Always for age (`max_age` or a TTL) where the stream has a marker TTL; for purges and deletions only where the stream's
metadata asks for it (`headrace.markers: purge,remove`), because the reference never does that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.api.times import SECOND, duration_text
from headrace.errors import Corrupt
from headrace.probes import probe
from headrace.protocol import headers

if TYPE_CHECKING:
    import numpy as np

    from headrace.broker.stream import Stream

OPTION = "headrace.markers"
REASON = b"Nats-Marker-Reason"


def wanted_for(stream: Stream, reason: str) -> bool:
    """Whether this stream marks removals of that kind."""
    config = stream.config
    if config.subject_delete_marker_ttl <= 0:
        return False
    return reason.lower() in config.metadata.get(OPTION, "").replace(" ", "").split(",")


def is_marker(header: bytes) -> bool:
    """Markers, and the tombstones of a KV purge, leave nothing behind when they go."""
    return bool(headers.get(header, REASON)) or headers.get(header, b"KV-Operation") == b"PURGE"


def remove_with_marker(stream: Stream, seq: int, reason: str) -> bool:
    """Remove a message; if it was the last of its subject a marker takes its place. False if it was not there."""
    log = stream.log
    try:
        message = log.get(seq)
    except Corrupt:  # the store reports it; what it was about cannot be told
        return stream.retention.drop_one(seq)
    if message is None:
        return False
    _, subject, header, _, _ = message
    if log.count_of(subject) > 1 or (header and is_marker(header)):
        stream.retention.drop_one(seq)
        return True
    if stream.config.sealed:
        return False  # it takes nothing more, so the last one of a subject stays, as in the reference
    probe("a marker is placed")
    ttl_s = stream.config.subject_delete_marker_ttl // SECOND
    block, now_ns = _block(ttl_s, reason), stream.jetstream.now_ns()
    stream.keep(subject, block, b"", now_ns, ttl_s, rollup=b"sub", forced=True)
    shown = subject.decode("utf-8", "replace")
    stream.jetstream.diary.note(now_ns, "marker", stream.name, f"{shown} ({reason})")
    return True


def remove_all(stream: Stream, seqs: np.ndarray, reason: str) -> int:
    """Remove many, each with its marker where it was the last; how many were there."""
    return sum(remove_with_marker(stream, seq, reason) for seq in seqs.tolist())


def _block(ttl_s: int, reason: str) -> bytes:
    lines = [
        (REASON, reason.encode()),
        (b"Nats-TTL", duration_text(ttl_s * SECOND).encode()),
        (b"Nats-Rollup", b"sub"),
    ]
    if reason == "MaxAge":
        lines.append((b"Nats-Applied-Limit", b"MaxAge"))
    return headers.build(lines)
