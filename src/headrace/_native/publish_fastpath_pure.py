"""Publish fast path of a stream, in pure Python; the compiled version is `publish_fastpath.pyx`."""

from collections.abc import Callable
from typing import Any

from headrace._native.ingest_state_pure import DedupWindow, OpenBatch, parse_nats_headers
from headrace.errors import StoreError

OutboundMsg = tuple[bytes, bytes, bytes, bytes]


HEADER_BYTES_MAX = 65_535


_MSG_ID, _TTL = b"Nats-Msg-Id", b"Nats-TTL"
_CHEAP_HEADERS = frozenset((_MSG_ID, _TTL))
#: The headers of a batch member, in either spelling.
_BATCH_HEADERS = [
    {name, position}
    for name in (b"Nats-Batch-Id", b"Nats-Batch-ID")
    for position in (b"Nats-Batch-Sequence", b"Nats-Batch-Seq")
]
_DIGITS_MAX = 9


def is_storable(header: bytes) -> bool:
    """Return whether a header block has no status and is small enough to be stored."""
    return header.startswith(b"NATS/1.0\r\n") and len(header) <= HEADER_BYTES_MAX


class PendingReplies:
    """Replies that wait for the open frame to commit: (subject, reply, header, payload), in order."""

    __slots__ = ("messages",)

    def __init__(self) -> None:
        self.messages: list[OutboundMsg] = []


class PublishFastPath:
    """Internal subscriber of one stream's subjects; stores simple messages without the slow path.

    `append` stores a message. `on_slow_path(session, ...)` handles everything unusual. `on_fast_ingest(session, ...)`
    gets members of fast-ingest batches, recognised by their reply subject. `on_store_error(reply, failure)` replies
    when the store rejects a message. `on_first_change()` is called on the stream's first change in a frame. `enabled`
    is whether messages without special headers may take the fast path.

    After each message `after_append(subject, seq, time_ns, ttl_s)` is called or, if that is None and the message has a
    TTL, `track_ttl(seq, time_ns, ttl_s)`. `parse_ttl(text)` returns the seconds of a `Nats-TTL` (-1: use
    `on_slow_path`); `expire_until(now_ns)` is called before a message with a TTL is stored. `dedup` has the ids seen
    recently, `open_batch` is the batch that was added to last.
    """

    __slots__ = (
        "ack_prefix",
        "after_append",
        "append",
        "dedup",
        "dirty",
        "enabled",
        "expire_until",
        "last_message_id",
        "now_ns",
        "on_fast_ingest",
        "on_first_change",
        "on_slow_path",
        "on_store_error",
        "open_batch",
        "parse_ttl",
        "pending_replies",
        "sends_acks",
        "track_ttl",
    )

    append: Callable[..., int]
    now_ns: Callable[[], int]
    on_slow_path: Callable[[Any, bytes, bytes, bytes, bytes], None]
    on_fast_ingest: Callable[[Any, bytes, bytes, bytes, bytes], None]
    on_store_error: Callable[[bytes, StoreError], None]
    on_first_change: Callable[[], None]
    after_append: Callable[[bytes, int, int, int], None] | None
    track_ttl: Callable[[int, int, int], None]
    parse_ttl: Callable[[bytes], int]
    expire_until: Callable[[int], None]
    dedup: DedupWindow | None
    open_batch: OpenBatch | None

    def __init__(self, pending_replies: PendingReplies) -> None:
        self.pending_replies = pending_replies
        self.ack_prefix = self.last_message_id = b""
        self.enabled = self.sends_acks = self.dirty = False
        self.after_append = self.dedup = self.open_batch = None

    def reset_ttl_cache(self) -> None:
        """Forget parsed TTLs: the meaning of `Nats-TTL` may have changed. The pure version has no cache."""

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Handle a publish on one of the stream's subjects."""
        if reply.endswith(b".$FI"):
            self.on_fast_ingest(session, subject, reply, header, payload)
        elif not self.enabled:
            self.on_slow_path(session, subject, reply, header, payload)
        elif not header:
            self._store(subject, reply, header, payload, self.now_ns(), 0, b"")
        elif not self._publish_with_headers(subject, reply, header, payload):
            self.on_slow_path(session, subject, reply, header, payload)

    def _publish_with_headers(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bool:
        """Store a message with headers; return False, without any effect, if it needs the slow path."""
        if not is_storable(header):
            return False
        found = parse_nats_headers(header)
        if not found.keys() <= _CHEAP_HEADERS:
            return found.keys() in _BATCH_HEADERS and self._add_to_batch(
                subject, reply, header, payload, found
            )
        ttl_s = 0
        if _TTL in found:
            ttl_s = self.parse_ttl(found[_TTL]) if found[_TTL] else -1
            if ttl_s < 0:
                return False
        time_ns = self.now_ns()
        if ttl_s:
            self.expire_until(time_ns)
        message_id = found.get(_MSG_ID, b"")
        if message_id and self.dedup is not None and self.dedup.find(message_id, time_ns):
            return False
        self._store(subject, reply, header, payload, time_ns, ttl_s, message_id)
        return True

    def _add_to_batch(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, found: dict[bytes, bytes]
    ) -> bool:
        """Add the next member of the batch that was added to last; return False if it is anything else."""
        name = found.get(b"Nats-Batch-Id", found.get(b"Nats-Batch-ID", b""))
        text = found.get(b"Nats-Batch-Sequence", found.get(b"Nats-Batch-Seq", b""))
        size = len(header) + len(payload)
        if not text.isdigit() or len(text) > _DIGITS_MAX or self.open_batch is None:
            return False
        if not self.open_batch.accepts(name, int(text), size):
            return False
        self.open_batch.add((subject, header, payload), size)
        self.open_batch.deadline_ns = self.now_ns() + self.open_batch.timeout_ns
        if self.sends_acks and reply:
            self._mark_dirty()
            self.pending_replies.messages.append((reply, b"", b"", b""))
        return True

    def _store(
        self,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        time_ns: int,
        ttl_s: int,
        message_id: bytes,
    ) -> None:
        """Store a message and queue its reply."""
        try:
            seq = self.append(subject, header, payload, time_ns, ttl_s)
            ack = b"%b%d}" % (self.ack_prefix, seq)
            self.last_message_id = message_id
            if message_id and self.dedup is not None:
                self.dedup.add(message_id, seq, time_ns)
            if self.after_append is not None:
                self.after_append(subject, seq, time_ns, ttl_s)
            elif ttl_s:
                self.track_ttl(seq, time_ns, ttl_s)
        except StoreError as failure:
            self.on_store_error(reply, failure)
            return
        self._mark_dirty()
        if self.sends_acks and reply:
            self.pending_replies.messages.append((reply, b"", b"", ack))

    def _mark_dirty(self) -> None:
        if not self.dirty:
            self.dirty = True
            self.on_first_change()
