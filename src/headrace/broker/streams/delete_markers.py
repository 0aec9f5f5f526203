"""Subject delete markers: stores a marker when the last message of a subject is removed.

For expiry (`max_age` or a TTL) always, if the stream has a marker TTL; for purges and deletions only if the stream's
metadata asks for it (`headrace.markers: purge,remove`), because nats-server never does that.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from headrace.code_probes import sometimes
from headrace.errors import CorruptData
from headrace.jetstream_api.times import SECOND_NS, format_duration
from headrace.protocol import headers

if TYPE_CHECKING:
    import numpy as np

    from headrace.broker.streams.stream_context import StreamContext

METADATA_OPTION = "headrace.markers"
REASON = b"Nats-Marker-Reason"


def is_enabled_for(stream: StreamContext, reason: str) -> bool:
    """Whether this stream places markers for removals of that kind."""
    config = stream.config
    if config.subject_delete_marker_ttl <= 0:
        return False
    return reason.lower() in config.metadata.get(METADATA_OPTION, "").replace(" ", "").split(",")


def is_marker(header: bytes) -> bool:
    """Whether a message is a marker or the tombstone of a KV purge: these leave no marker when they are removed."""
    return bool(headers.get(header, REASON)) or headers.get(header, b"KV-Operation") == b"PURGE"


def remove_with_marker(stream: StreamContext, seq: int, reason: str) -> bool:
    """Remove a message, and place a marker if it was the last of its subject; return False if it did not exist."""
    log = stream.log
    try:
        message = log.get(seq)
    except CorruptData:  # the store reports it; its subject is unknown
        return stream.retention.remove_one(seq)
    if message is None:
        return False
    _, subject, header, _, _ = message
    if log.get_subject_count(subject) > 1 or (header and is_marker(header)):
        stream.retention.remove_one(seq)
        return True
    if stream.config.sealed:
        return False  # it accepts nothing more, so the last message of a subject stays, as in nats-server
    sometimes("delete marker stored")
    ttl_s = stream.config.subject_delete_marker_ttl // SECOND_NS
    marker_header, now_ns = _make_header(ttl_s, reason), stream.clock.now_ns()
    stream.store(subject, marker_header, b"", now_ns, ttl_s, rollup=b"sub", forced=True)
    subject_text = subject.decode("utf-8", "replace")
    stream.record_event("marker", f"{subject_text} ({reason})")
    return True


def remove_all_with_markers(stream: StreamContext, seqs: np.ndarray, reason: str) -> int:
    """Remove messages, with a marker for each that was the last of its subject; return how many existed."""
    return sum(remove_with_marker(stream, seq, reason) for seq in seqs.tolist())


@lru_cache(maxsize=64)
def _make_header(ttl_s: int, reason: str) -> bytes:
    lines = [
        (REASON, reason.encode()),
        (b"Nats-TTL", format_duration(ttl_s * SECOND_NS).encode()),
        (b"Nats-Rollup", b"sub"),
    ]
    if reason == "MaxAge":
        lines.append((b"Nats-Applied-Limit", b"MaxAge"))
    return headers.build(lines)
