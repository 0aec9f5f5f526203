"""Publish fast path of a stream, in pure Python; the compiled version is `publish_fastpath.pyx`. See ADR 7."""

from typing import Any

from headrace._native.ingest_state_pure import DedupWindow, OpenBatch, parse_nats_headers
from headrace._native.publish_handler import MessageClock, MessageLog, MessageRetention, PublishHandler
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

    `handler` is the stream's `PublishProcessor`, `log` stores its messages, `clock` gives each of them its time,
    `retention` removes old ones. `enabled` is whether messages without special headers may take the fast path,
    `calls_after_append` whether `retention` must be called for each of them. `dedup` has the recent message ids,
    `open_batch` is the batch that was added to last. `dirty` is whether the stream has changed in the open frame.
    """

    __slots__ = (
        "_after_append",
        "_append",
        "_expire_slice",
        "_now_ns",
        "_parse_ttl",
        "_track_expiry",
        "ack_prefix",
        "calls_after_append",
        "dedup",
        "dirty",
        "enabled",
        "handler",
        "last_message_id",
        "open_batch",
        "pending_replies",
        "sends_acks",
    )

    dedup: DedupWindow | None
    open_batch: OpenBatch | None

    def __init__(
        self,
        handler: PublishHandler,
        log: MessageLog,
        clock: MessageClock,
        retention: MessageRetention,
        pending_replies: PendingReplies,
    ) -> None:
        self.handler = handler
        self._parse_ttl = handler.parse_ttl
        self._append = log.append
        self._now_ns = clock.now_ns
        self._after_append = retention.after_append
        self._track_expiry = retention.track_expiry
        self._expire_slice = retention.expire_slice
        self.pending_replies = pending_replies
        self.ack_prefix = self.last_message_id = b""
        self.enabled = self.sends_acks = self.calls_after_append = self.dirty = False
        self.dedup = self.open_batch = None

    def reset_ttl_cache(self) -> None:
        """Drop the cached TTL: the meaning of `Nats-TTL` may have changed. The pure version caches none."""

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Handle a publish on one of the stream's subjects."""
        if reply.endswith(b".$FI"):
            self.handler.on_fast_ingest(session, subject, reply, header, payload)
        elif not self.enabled:
            self.handler.on_publish(session, subject, reply, header, payload)
        elif not header:
            self._store(subject, reply, header, payload, self._now_ns(), 0, b"")
        elif not self._publish_with_headers(subject, reply, header, payload):
            self.handler.on_publish(session, subject, reply, header, payload)

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
            ttl_s = self._parse_ttl(found[_TTL]) if found[_TTL] else -1
            if ttl_s < 0:
                return False
        time_ns = self._now_ns()
        if ttl_s:
            self._expire_slice(time_ns)
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
        self.open_batch.deadline_ns = self._now_ns() + self.open_batch.timeout_ns
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
            seq = self._append(subject, header, payload, time_ns, ttl_s)
            ack = b"%b%d}" % (self.ack_prefix, seq)
            self.last_message_id = message_id
            if message_id and self.dedup is not None:
                self.dedup.add(message_id, seq, time_ns)
            if self.calls_after_append:
                self._after_append(subject, seq, time_ns, ttl_s)
            elif ttl_s:
                self._track_expiry(seq, time_ns, ttl_s)
        except StoreError as failure:
            self.handler.on_store_error(reply, failure)
            return
        self._mark_dirty()
        if self.sends_acks and reply:
            self.pending_replies.messages.append((reply, b"", b"", ack))

    def _mark_dirty(self) -> None:
        if not self.dirty:
            self.dirty = True
            self.handler.on_first_change()
