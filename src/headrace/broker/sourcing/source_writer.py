"""Stores the messages of a source: new messages of the stream, with sequences and times of its own.

Each carries the upstream position in its last header, and that position is stored in the same frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.broker.sourcing.batch_capacity import BatchCapacity, BatchCopy
from headrace.broker.sourcing.copy_writer import (
    EMPTY_HEADER,
    MESSAGE_OVERHEAD,
    NO_HEADERS,
    BaseCopyWriter,
    CopyWriter,
    strip_upstream_headers,
)
from headrace.broker.sourcing.handover import Handover, make_pattern_set
from headrace.broker.sourcing.source_positions import SourcePositions, recover_from_copies
from headrace.broker.sourcing.staged_atomic_batch import PendingBatch, SourcedMessage
from headrace.broker.sourcing.upstream_requests import StartPosition, Upstream
from headrace.broker.streams import publish_checks
from headrace.broker.streams.atomic_batch import get_batch_id
from headrace.broker.streams.counters import CounterTotals
from headrace.code_probes import sometimes
from headrace.errors import RequestError, StoreError
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.times import SECOND_NS

if TYPE_CHECKING:
    from headrace.broker.streams.stream_context import StreamContext
    from headrace.storage.sequence_arrays import Seqs

_COMMIT = b"Nats-Batch-Commit"
#: Members of an incomplete batch are held back up to this size; a larger batch becomes visible in parts.
_PENDING_BATCH_BYTES_MAX = 64 * 1024 * 1024
#: And up to this time after the last member arrived.
_PENDING_BATCH_TIMEOUT_NS = 10 * SECOND_NS


class SourceWriter(BaseCopyWriter):
    """Adds the messages of one upstream to a stream. `stored_seq` is the newest upstream sequence that is done here.

    If the stream supports atomic batches, members are held back until the batch is complete and then stored within one
    frame; `received_seq` includes them, `stored_seq` does not. They are durable meanwhile.
    """

    __slots__ = (
        "_copied",
        "_handover",
        "_positions",
        "_source_header_end",
        "_source_header_middle",
        "_source_header_start",
        "_timers",
        "_unfiltered",
        "batch_id",
        "identity",
        "pending_batch",
        "received_seq",
        "stored_seq",
    )

    def __init__(
        self,
        stream: StreamContext,
        upstream: Upstream,
        positions: SourcePositions,
        pending_batch: PendingBatch,
        handover: Handover,
    ) -> None:
        super().__init__(stream, upstream)
        self._handover = handover
        self._copied = [
            (make_pattern_set(each.filters or (">",)), each.seq) for each in handover.record.copied
        ]
        self._timers = stream.jetstream.timers
        self._positions = positions
        self.pending_batch = pending_batch
        saved = positions.get(upstream.index_name)
        if not positions.has_position(upstream.index_name):
            saved = recover_from_copies(stream.log, upstream.index_name)
        self.stored_seq = saved.seq
        self.received_seq = max(saved.seq, pending_batch.durable_seq)
        self._set_identity(saved.identity)
        self._unfiltered = not upstream.get_filters()
        if pending_batch:
            sometimes("incomplete sourced batch recovered")
        self.batch_id = self._read_batch_id(pending_batch.messages[0]) if pending_batch else b""

    def _set_identity(self, identity: str) -> None:
        self.identity = identity
        index_name = self._upstream.index_name
        upstream_name, filters, destinations = (part.encode() for part in index_name.split(" "))
        self._source_header_start = b"Nats-Stream-Source: %s " % upstream_name
        self._source_header_middle = b" %s %s " % (filters, destinations)
        self._source_header_end = b" %s\r\n\r\n" % identity.encode() if identity else b"\r\n\r\n"

    @property
    def added_bytes(self) -> int:
        return len(self._source_header_middle)

    @property
    def durable_seq(self) -> int:
        return max(self.stored_seq, self.pending_batch.durable_seq)

    def get_start_position(self) -> StartPosition:
        if self.durable_seq:
            return StartPosition(self.durable_seq + 1)
        start_position, log = self._upstream.get_configured_start(), self._log
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
        self._forget_copied()
        self.stored_seq = self.received_seq = 0
        self._set_identity("")
        self._save_position()

    def store(self, seq: int, time_ns: int, subject: bytes, header: bytes, payload: bytes) -> None:
        if self._copied and self._is_copied(seq, subject):
            self._skip_copied(seq)
            return
        try:
            if self.pending_batch or (b"Nats-Batch-" in header and self._is_batch_aware()):
                self._add_to_batch((seq, subject, header, payload))
            else:
                self._store_message(seq, subject, header, payload)
        except (RequestError, StoreError):
            self.rollback()
            raise
        self.received_seq = seq

    def store_plain_run(
        self, view: memoryview, seqs: Seqs, start: int, count_max: int, size_max: int
    ) -> tuple[int, int]:
        """Store the next messages that need no decision in one step; return how many, and their size."""
        if self._copied or self.pending_batch or not self._stores_runs:
            return 0, 0
        stream, log = self._stream, self._log
        stream.retention.expire_slice(stream.clock.now_ns())
        header = (
            EMPTY_HEADER[:-2] + self._source_header_start,
            self._source_header_middle,
            self._source_header_end,
        )
        time_ns, last_seq = stream.clock.reserve_times(count_max), log.last_seq
        try:
            return log.append_copies(
                view, seqs, start, count_max, size_max, MESSAGE_OVERHEAD, header, time_ns
            )
        finally:
            count = log.last_seq - last_seq
            if count:
                self.stored_seq = self.received_seq = int(seqs[start + count - 1])
                self._save_position()
                self._on_run_stored()

    # What was copied through another consumer

    def _is_copied(self, seq: int, subject: bytes) -> bool:
        if all(until < seq for _, until in self._copied):
            self._forget_copied()
        return any(seq <= until and patterns.covers(subject) for patterns, until in self._copied)

    def _forget_copied(self) -> None:
        self._copied = []
        self._handover.set_copied([])

    def _skip_copied(self, seq: int) -> None:
        sometimes("sourced message already copied through another consumer")
        self.received_seq = seq
        if not self.pending_batch:
            self.stored_seq = seq
            self._save_position()

    # Batches

    def _is_batch_aware(self) -> bool:
        config = self._stream.config
        return self._unfiltered and config.allow_atomic

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
        self.pending_batch.add(message, self._timers.now_ns())
        if header_map.get(_COMMIT):
            self._store_pending_batch()

    @staticmethod
    def _read_batch_id(message: SourcedMessage) -> bytes:
        return get_batch_id(publish_checks.parse_nats_headers(message[2]))

    def _store_pending_batch(self, *, in_parts: bool = False) -> None:
        """Store the members held back: a complete batch as a whole, or those of an incomplete one that fit."""
        pending_batch = self.pending_batch
        if not pending_batch:
            return
        if not in_parts:
            self._check_batch_capacity(pending_batch.messages)
        self._stream.reserve_frame_space(pending_batch.bytes, len(pending_batch.messages))
        stored_count = 0
        try:
            for message in pending_batch.messages:
                self._store_message(*message)
                stored_count += 1
        finally:
            pending_batch.remove_first(stored_count)

    def _check_batch_capacity(self, messages: list[SourcedMessage]) -> None:
        """Raise if a complete batch does not fit; one that is larger than the limits is stored in parts."""
        stream = self._stream
        is_complete = bool(publish_checks.parse_nats_headers(messages[-1][2]).get(_COMMIT))
        if stream.config.discard != "new" or not is_complete:
            return
        stream.retention.expire_slice(stream.clock.wall_ns())
        stream.retention.apply_limits()
        members = [self._make_batch_copy(*message) for message in messages]
        if BatchCapacity(stream, empty=True).fits(members) and not BatchCapacity(stream).fits(members):
            raise ApiError.STREAM_STORE_FAILED(err="no space for the whole batch")

    def _make_batch_copy(self, seq: int, subject: bytes, header: bytes, payload: bytes) -> BatchCopy:
        header, header_map = self._make_header(seq, subject, header)
        subject = self._transform_subject(subject)
        size = self._stream.compute_stored_size(subject, header, payload)
        return BatchCopy(subject, size, self._get_rollup(header_map))

    def flush_incomplete_batch(self, *, idle: bool) -> None:
        """Store an incomplete batch if the upstream has nothing more (`idle`) or sent nothing for long."""
        if not self.pending_batch:
            return
        waited_ns = self._timers.now_ns() - self.pending_batch.last_added_ns
        if idle or waited_ns > _PENDING_BATCH_TIMEOUT_NS:
            sometimes("incomplete sourced batch stored")
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
        """Store the members held back that fit, because they were already acknowledged to the upstream."""
        self._store_pending_batch(in_parts=True)

    # Storing

    def _store_message(self, seq: int, subject: bytes, header: bytes, payload: bytes) -> None:
        header, header_map = self._make_header(seq, subject, header)
        self._store_copy(subject, header, payload, header_map)
        self.stored_seq = seq
        self._save_position()

    def _make_header(self, seq: int, subject: bytes, header: bytes) -> tuple[bytes, Mapping[bytes, bytes]]:
        """Return the header of a copy, and those of the upstream that apply here, too."""
        block, header_map = EMPTY_HEADER, NO_HEADERS
        if header:
            block = strip_upstream_headers(header, is_source=True) or EMPTY_HEADER
            header_map = publish_checks.parse_nats_headers(block)
        return b"%s%s%d%s%s%s" % (
            block[:-2],
            self._source_header_start,
            seq,
            self._source_header_middle,
            subject,
            self._source_header_end,
        ), header_map

    def _save_position(self) -> None:
        self._positions.set(self._upstream.index_name, self.stored_seq, self.identity)
        self._stream.mark_dirty()

    def _store_copy(
        self, subject: bytes, header: bytes, payload: bytes, header_map: Mapping[bytes, bytes]
    ) -> None:
        stream = self._stream
        if stream.config.sealed:
            raise ApiError.STREAM_SEALED()
        original, subject = subject, self._transform_subject(subject)
        now_ns = stream.clock.now_ns()
        stream.retention.expire_slice(now_ns)
        message_id = header_map.get(publish_checks.MSG_ID, b"")
        if message_id and stream.dedup is not None and stream.dedup.find(message_id, now_ns):
            return
        if stream.config.allow_msg_counter:
            subject_text = original.decode("utf-8", "replace")
            header, payload = CounterTotals(stream).apply_copy(
                subject, header, payload, header_map, self._upstream.upstream_name, subject_text
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
