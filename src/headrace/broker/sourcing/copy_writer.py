"""Stores the messages that a stream copies: a mirror stores the same message, a source a message of its own stream.

A mirror keeps sequence and time; messages it did not receive count as deleted. A source assigns new ones, records the
upstream position in the last header, and stores that position in the same frame. Neither checks whether a publisher
would have been allowed to use the headers; neither acts on headers of features that its stream lacks. Knows no gaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.broker.routing.apply_transform import Transform, make_first_matching
from headrace.broker.sourcing.source_positions import SourcePositions, recover_from_copies
from headrace.broker.sourcing.staged_atomic_batch import PendingBatch, SourcedMessage
from headrace.broker.sourcing.upstream_requests import StartPosition, Upstream
from headrace.broker.streams import publish_checks
from headrace.broker.streams.atomic_batch import get_batch_id
from headrace.broker.streams.counters import CounterTotals
from headrace.code_probes import sometimes
from headrace.errors import RequestError, StoreError
from headrace.jetstream_api import times
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.times import TTL_INVALID, TTL_NEVER, parse_ttl

if TYPE_CHECKING:
    from headrace.broker.streams.stream_context import StreamContext

_SOURCE = b"Nats-Stream-Source"
_EMPTY_HEADER = b"NATS/1.0\r\n\r\n"
_NO_HEADERS: Mapping[bytes, bytes] = {}
_COMMIT = b"Nats-Batch-Commit"
#: Members of an incomplete batch are held back up to this size; a larger batch becomes visible in parts.
_PENDING_BATCH_BYTES_MAX = 64 * 1024 * 1024
#: And up to this time after the last member arrived.
_PENDING_BATCH_TIMEOUT_NS = 10 * times.SECOND_NS


def strip_upstream_headers(header: bytes, *, is_source: bool) -> bytes:
    """Remove headers that were meant for the upstream only; return b"" if none are left."""
    dropped_prefixes: list[bytes] = [b"Nats-Expected-", b"Nats-Batch-"]
    if is_source:
        dropped_prefixes.append(_SOURCE + b":")
    if not any(each in header for each in dropped_prefixes):
        return header
    lines = [line for line in header.split(b"\r\n") if not line.startswith(tuple(dropped_prefixes))]
    block = b"\r\n".join(lines)
    return b"" if block == _EMPTY_HEADER else block


class _BaseWriter:
    """The common part of both writers."""

    __slots__ = ("_stream", "_subject_transform", "upstream")

    def __init__(self, stream: StreamContext, upstream: Upstream) -> None:
        self._stream = stream
        self.upstream = upstream
        self._subject_transform: Transform | None = make_first_matching(upstream.entry.subject_transforms)

    def _transform_subject(self, subject: bytes) -> bytes:
        if self._subject_transform is not None:
            subject = self._subject_transform(subject) or subject
        return self._stream.transform_subject(subject)

    def _parse_ttl(self, header_map: Mapping[bytes, bytes]) -> int:
        """Return the seconds to live: 0 if invalid, and exempt only if TTLs are enabled."""
        value = header_map.get(publish_checks.TTL)
        if not value:
            return 0
        kind, seconds = parse_ttl(value)
        if kind == TTL_INVALID:
            return 0
        if kind == TTL_NEVER:
            return publish_checks.TTL_EXEMPT if self._stream.config.allow_msg_ttl else 0
        return min(seconds, publish_checks.TTL_SECONDS_MAX)

    def _get_rollup(self, header_map: Mapping[bytes, bytes]) -> bytes:
        config = self._stream.config
        value = header_map.get(publish_checks.ROLLUP, b"").lower()
        return (
            value if value in (b"sub", b"all") and config.allow_rollup_hdrs and not config.deny_purge else b""
        )

    def _check_capacity(self, subject: bytes, header: bytes, payload: bytes, rollup: bytes) -> None:
        """Raise if the stream is full and discards new messages; the copy is retried later."""
        if self._stream.config.storage in self._stream.jetstream.server_quota.exhausted:
            raise ApiError.INSUFFICIENT_RESOURCES()
        if self._stream.config.discard == "new":
            publish_checks.check_discard_new(self._stream, subject, header, payload, rollup)

    def _get_configured_start(self) -> StartPosition:
        entry = self.upstream.entry
        if entry.opt_start_seq:
            return StartPosition(entry.opt_start_seq)
        return StartPosition(0, times.parse_time_ns(entry.opt_start_time) if entry.opt_start_time else 0)


class MirrorWriter(_BaseWriter):
    """Keeps a stream identical to its upstream. `stored_seq` is the newest sequence that is done here."""

    __slots__ = ()

    @property
    def stored_seq(self) -> int:
        return self._stream.log.last_seq

    @property
    def received_seq(self) -> int:
        return self._stream.log.last_seq

    @property
    def durable_seq(self) -> int:
        """The newest sequence that is durable with the open frame."""
        return self._stream.log.last_seq

    @property
    def identity(self) -> str:
        return ""

    def get_start_position(self) -> StartPosition:
        """Return where the upstream has to start."""
        last = self._stream.log.last_seq
        return StartPosition(last + 1) if last else self._get_configured_start()

    def skip_to(self, seq: int, identity: str) -> None:
        """Skip to `seq`: the upstream will not deliver anything up to it."""
        if seq > self._stream.log.last_seq:
            self._stream.log.advance(seq)
            self._stream.mark_dirty()

    def reset_identity(self) -> None:
        """Do nothing: a mirror follows the sequences of a new upstream with the same name."""

    def store(self, seq: int, time_ns: int, subject: bytes, header: bytes, payload: bytes) -> None:
        """Store the next message."""
        stream = self._stream
        if (
            not header
            and self._subject_transform is None
            and stream.fast_path.enabled
            and seq == stream.log.last_seq + 1
        ):
            self._store_plain(stream, seq, time_ns, subject, payload)
            return
        header_map = _NO_HEADERS
        if header:
            header = strip_upstream_headers(header, is_source=False)
            header_map = publish_checks.parse_nats_headers(header)
        subject = self._transform_subject(subject)
        rollup, ttl_s = (
            (self._get_rollup(header_map), self._parse_ttl(header_map)) if header_map else (b"", 0)
        )
        self._check_capacity(subject, header, payload, rollup)
        if seq > stream.log.last_seq + 1:
            stream.log.advance(seq - 1)
        if not stream.retention.has_interest(subject):
            stream.log.advance(seq)
            stream.apply_side_effects(subject, rollup, header_map)
        else:
            stream.store(
                subject, header, payload, time_ns, ttl_s, header_map.get(publish_checks.MSG_ID, b""), rollup
            )
        stream.mark_dirty()

    @staticmethod
    def _store_plain(stream: StreamContext, seq: int, time_ns: int, subject: bytes, payload: bytes) -> None:
        """Store the next message without any checks, on a stream whose fast path is enabled."""
        fast_path = stream.fast_path
        stream.log.append(subject, b"", payload, time_ns)
        fast_path.last_message_id = b""
        if fast_path.after_append is not None:
            fast_path.after_append(subject, seq, time_ns, 0)
        stream.mark_dirty()

    def flush_incomplete_batch(self, *, idle: bool) -> None:
        """Do nothing: a mirror holds nothing back."""

    def rollback(self) -> None:
        """Do nothing: a mirror holds nothing back."""

    def take_over(self, other: CopyWriter) -> None:
        """Do nothing: a mirror holds nothing back."""

    def finish(self) -> None:
        """Do nothing: a mirror holds nothing back."""


class SourceWriter(_BaseWriter):
    """Adds the messages of one upstream to a stream. `stored_seq` is the newest upstream sequence that is done here.

    If the stream supports atomic batches, members are held back until the batch is complete and then stored within one
    frame (batch.md, 6); `received_seq` includes them, `stored_seq` does not. They are durable meanwhile.
    """

    __slots__ = (
        "_positions",
        "_source_header_end",
        "_source_header_middle",
        "_source_header_start",
        "_unfiltered",
        "batch_id",
        "identity",
        "pending_batch",
        "received_seq",
        "stored_seq",
    )

    def __init__(self, stream: StreamContext, upstream: Upstream, positions: SourcePositions) -> None:
        super().__init__(stream, upstream)
        self._positions = positions
        saved = positions.get(upstream.index_name)
        if not positions.has_position(upstream.index_name):
            saved = recover_from_copies(stream.log, upstream.index_name)
        self.pending_batch = PendingBatch(stream, upstream.index_name)
        self.stored_seq = saved.seq
        self.received_seq = max(saved.seq, self.pending_batch.durable_seq)
        self._set_identity(saved.identity)
        self._unfiltered = not upstream.get_filters()
        if self.pending_batch:
            sometimes("a sourced batch waited through a restart")
        self.batch_id = self._read_batch_id(self.pending_batch.messages[0]) if self.pending_batch else b""

    def _set_identity(self, identity: str) -> None:
        self.identity = identity
        upstream_name, filters, destinations = (part.encode() for part in self.upstream.index_name.split(" "))
        self._source_header_start = b"Nats-Stream-Source: %s " % upstream_name
        self._source_header_middle = b" %s %s " % (filters, destinations)
        self._source_header_end = b" %s\r\n\r\n" % identity.encode() if identity else b"\r\n\r\n"

    @property
    def durable_seq(self) -> int:
        return max(self.stored_seq, self.pending_batch.durable_seq)

    def get_start_position(self) -> StartPosition:
        if self.durable_seq:
            return StartPosition(self.durable_seq + 1)
        start_position, log = self._get_configured_start(), self._stream.log
        if start_position.seq:
            return start_position
        if start_position.time_ns:
            return StartPosition(0, max(start_position.time_ns, log.last_time_ns))
        return StartPosition(0, log.last_time_ns if log.first_seq > 1 else 0)

    def skip_to(self, seq: int, identity: str) -> None:
        if seq > self.received_seq or identity != self.identity:
            if seq > self.received_seq:
                self._store_pending_batch()  # the missing members of a batch will not come
                self.stored_seq = self.received_seq = seq
            self._set_identity(identity)
            self._save_position()

    def reset_identity(self) -> None:
        """Start over: another stream now has the upstream's name."""
        self._store_pending_batch()
        self.stored_seq = self.received_seq = 0
        self._set_identity("")
        self._save_position()

    def store(self, seq: int, time_ns: int, subject: bytes, header: bytes, payload: bytes) -> None:
        try:
            if self.pending_batch or (b"Nats-Batch-" in header and self._is_batch_aware()):
                self._add_to_batch((seq, subject, header, payload))
            else:
                self._store_message(seq, subject, header, payload)
        except (RequestError, StoreError):
            self.rollback()
            raise
        self.received_seq = seq

    # Batches

    def _is_batch_aware(self) -> bool:
        return self._unfiltered and self._stream.config.allow_atomic

    def _add_to_batch(self, message: SourcedMessage) -> None:
        """Handle a message while a batch is open, or the first member of one."""
        header_map = publish_checks.parse_nats_headers(message[2])
        member_batch_id = get_batch_id(header_map)
        if self.pending_batch and (
            member_batch_id != self.batch_id or self.pending_batch.bytes > _PENDING_BATCH_BYTES_MAX
        ):
            self._store_pending_batch()
        if not member_batch_id:
            self._store_message(*message)
            return
        self.batch_id = member_batch_id
        self.pending_batch.add(message, self._stream.jetstream.timers.now_ns())
        if header_map.get(_COMMIT):
            self._store_pending_batch()

    @staticmethod
    def _read_batch_id(message: SourcedMessage) -> bytes:
        return get_batch_id(publish_checks.parse_nats_headers(message[2]))

    def _store_pending_batch(self) -> None:
        """Store the members held back, complete or not; those that do not fit stay."""
        pending_batch = self.pending_batch
        if not pending_batch:
            return
        self._stream.reserve_frame_space(pending_batch.bytes, len(pending_batch.messages))
        stored_count = 0
        try:
            for message in pending_batch.messages:
                self._store_message(*message)
                stored_count += 1
        finally:
            pending_batch.remove_first(stored_count)

    def flush_incomplete_batch(self, *, idle: bool) -> None:
        """Store an incomplete batch if the upstream has nothing more (`idle`) or sent nothing for long."""
        if not self.pending_batch:
            return
        if (
            idle
            or self._stream.jetstream.timers.now_ns() - self.pending_batch.last_added_ns
            > _PENDING_BATCH_TIMEOUT_NS
        ):
            sometimes("a sourced batch is never finished")
            self._store_pending_batch()
            self.received_seq = self.stored_seq

    def rollback(self) -> None:
        """Drop what would not survive a crash; the upstream will deliver it again."""
        self.pending_batch.rollback()
        self.received_seq = self.durable_seq

    def take_over(self, other: CopyWriter) -> None:
        """Take over the members that the predecessor holds back."""
        if isinstance(other, SourceWriter) and other.pending_batch:
            self.pending_batch.take_over(other.pending_batch)
            self.batch_id = other.batch_id
            self.received_seq = self.durable_seq

    def finish(self) -> None:
        """Store the members held back, because they were already acknowledged to the upstream."""
        self._store_pending_batch()

    # Storing

    def _store_message(self, seq: int, subject: bytes, header: bytes, payload: bytes) -> None:
        if not header:
            header = b"NATS/1.0\r\n%s%d%s%s%s" % (
                self._source_header_start,
                seq,
                self._source_header_middle,
                subject,
                self._source_header_end,
            )
            self._store_copy(subject, header, payload, _NO_HEADERS)
        else:
            block = strip_upstream_headers(header, is_source=True) or _EMPTY_HEADER
            header_map = publish_checks.parse_nats_headers(block)
            header = b"%s%s%d%s%s%s" % (
                block[:-2],
                self._source_header_start,
                seq,
                self._source_header_middle,
                subject,
                self._source_header_end,
            )
            self._store_copy(subject, header, payload, header_map)
        self.stored_seq = seq
        self._save_position()

    def _save_position(self) -> None:
        self._positions.set(self.upstream.index_name, self.stored_seq, self.identity)
        self._stream.mark_dirty()

    def _store_copy(
        self, subject: bytes, header: bytes, payload: bytes, header_map: Mapping[bytes, bytes]
    ) -> None:
        stream = self._stream
        if stream.config.sealed:
            raise ApiError.STREAM_SEALED()
        original, subject = subject, self._transform_subject(subject)
        now_ns = stream.jetstream.now_ns()
        stream.retention.expire_due(now_ns)
        message_id = header_map.get(publish_checks.MSG_ID, b"")
        if message_id and stream.dedup is not None and stream.dedup.find(message_id, now_ns):
            return
        if stream.config.allow_msg_counter:
            upstream_name = self.upstream.index_name.partition(" ")[0]
            subject_text = original.decode("utf-8", "replace")
            header, payload = CounterTotals(stream).apply_copy(
                subject, header, payload, header_map, upstream_name, subject_text
            )
        rollup, ttl_s = (
            (self._get_rollup(header_map), self._parse_ttl(header_map)) if header_map else (b"", 0)
        )
        if ttl_s:
            header, ttl_s = publish_checks.apply_min_ttl(stream, header, ttl_s)
        if not stream.retention.has_interest(subject):
            stream.skip(subject, message_id, now_ns, rollup, header_map)
            return
        self._check_capacity(subject, header, payload, rollup)
        stream.store(subject, header, payload, now_ns, ttl_s, message_id, rollup)


CopyWriter = MirrorWriter | SourceWriter
