"""Fast ingest: batches of any length whose members are stored as they arrive, with one ack per group of messages.

The reply subject tells what a member is: `<prefix>.<id>.<flow>.<ok|fail>.<position>.<operation>.$FI`. Each member is
checked and stored like a single message; only the replies differ. Nothing is staged, so an open batch is a handful of
numbers; batches are bounded by their count and by time: one without traffic is dropped. See ADR 40.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.broker.streams import publish_checks
from headrace.broker.streams.publish_checks import DuplicateMessage
from headrace.errors import RequestError, StoreError
from headrace.jetstream_api import errors
from headrace.jetstream_api.encode import dumps
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.required_api_level import REQUIRED_LEVEL, requires_newer_api
from headrace.protocol import headers

if TYPE_CHECKING:
    from headrace.broker.routing.session import Session
    from headrace.broker.streams.stream_context import StreamContext
    from headrace.broker.timers import TimerHandle

START, APPEND, COMMIT, COMMIT_END, PING = range(5)
_ID_BYTES_MAX = 64
_FLOW_DEFAULT, _FLOW_MAX = 10, 65_535
#: The maximum number of messages per ack, shared among the open batches of a stream.
_FLOW_SHARED = 500
_POSITION_END = 2**64 - 1
_REPLY_TOKENS = 7


@dataclass(frozen=True, slots=True)
class FastIngestLimits:
    """How many batches may be open, and for how long without traffic."""

    per_stream: int = 1000
    per_server: int = 50_000
    timeout_ns: int = 10_000_000_000


DEFAULT_LIMITS = FastIngestLimits()


class FastIngestBudget:
    """The batches that all streams of a server have open, in all accounts."""

    __slots__ = ("limits", "open_batches")

    def __init__(self, limits: FastIngestLimits) -> None:
        self.limits = limits
        self.open_batches = 0


class BatchReplySubject(NamedTuple):
    """The fields of a reply subject."""

    id: bytes
    flow: int
    gap_ok: bool
    position: int
    operation: int

    @property
    def is_commit(self) -> bool:
        return self.operation in (COMMIT, COMMIT_END)


def parse_reply_subject(reply: bytes) -> BatchReplySubject | None:
    """Parse a reply subject that ends in `.$FI`; None if it is not valid."""
    tokens = reply.rsplit(b".", _REPLY_TOKENS - 1)
    if len(tokens) != _REPLY_TOKENS:
        return None
    _, name, flow_text, gap, position_text, operation_text, _ = tokens
    operation, position = (
        publish_checks.parse_number(operation_text),
        publish_checks.parse_number(position_text),
    )
    if operation is None or operation > PING or gap not in (b"ok", b"fail"):
        return None
    if position is None or not 0 < position < _POSITION_END:
        return None
    is_misplaced = operation in (APPEND, COMMIT_END) if position == 1 else operation == START
    if is_misplaced:
        return None
    flow = min(publish_checks.parse_number(flow_text) or _FLOW_DEFAULT, _FLOW_MAX)
    return BatchReplySubject(name, flow, gap == b"ok", position, operation)


class FastIngestBatch:
    """An open batch, described by positions.

    `last_position` is the newest received, `stored_position` the newest stored, `acked_position` the newest
    acknowledged.
    """

    __slots__ = (
        "acked_position",
        "deadline_ns",
        "flow",
        "flow_max",
        "gap_ok",
        "id",
        "last_position",
        "stored_position",
        "stream_seq",
        "timer",
    )

    def __init__(self, name: bytes, gap_ok: bool, flow_max: int) -> None:
        self.id = name
        self.gap_ok = gap_ok
        self.flow = self.flow_max = flow_max
        self.last_position = self.stored_position = self.acked_position = 0
        self.stream_seq = 0  # sequence in the stream
        self.deadline_ns = 0
        self.timer: TimerHandle | None = None


class MemberProcessor(Protocol):
    """Checks and stores the members of batches."""

    def process_fast_ingest(self, subject: bytes, header: bytes, payload: bytes) -> int:
        """Check and store a member like a single message; return its sequence."""


class FastIngestBatches:
    """The open fast batches of one stream."""

    __slots__ = ("_budget", "_group_commit", "_open", "_processor", "_stream", "_timers")

    def __init__(self, stream: StreamContext, processor: MemberProcessor, budget: FastIngestBudget) -> None:
        self._stream = stream
        self._processor = processor
        self._timers = stream.jetstream.timers
        self._group_commit = stream.group_commit
        self._budget = budget
        self._open: dict[bytes, FastIngestBatch] = {}

    def __len__(self) -> int:
        return len(self._open)

    def on_publish(
        self, session: Session, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        """Handle a message whose reply subject marks it as part of a fast-ingest batch."""
        try:
            parsed = self._parse_and_check(reply, header, payload)
            batch = self._get_or_open(parsed)
            header = self._check_api_level(batch, header)
            limits = self._budget.limits
            batch.deadline_ns = self._timers.now_ns() + limits.timeout_ns
            if parsed.operation == PING:
                self._on_ping(batch, parsed, reply)
            elif self._is_next(batch, parsed, reply):
                self._on_member(batch, parsed, subject, reply, header, payload)
        except RequestError as api_error:
            self._reply_error(reply, api_error)
        finally:
            self._stream.mark_dirty()

    # Checks, in nats-server's order

    def _parse_and_check(self, reply: bytes, header: bytes, payload: bytes) -> BatchReplySubject:
        config = self._stream.config
        if config.sealed:
            raise ApiError.STREAM_SEALED()
        if 0 <= config.max_msg_size < len(header) + len(payload):
            raise ApiError.STREAM_MESSAGE_EXCEEDS_MAXIMUM()
        if not config.allow_batched:
            raise ApiError.BATCH_PUBLISH_DISABLED()
        parsed = parse_reply_subject(reply)
        if parsed is None:
            raise ApiError.BATCH_PUBLISH_INVALID_PATTERN()
        if len(parsed.id) > _ID_BYTES_MAX:
            raise ApiError.BATCH_PUBLISH_INVALID_BATCH_ID()
        return parsed

    def _get_or_open(self, parsed: BatchReplySubject) -> FastIngestBatch:
        """Return the open batch with that name, or open it if this is a first message."""
        batch = self._open.get(parsed.id)
        if batch is not None:
            return batch
        if parsed.position != 1:
            raise ApiError.BATCH_PUBLISH_UNKNOWN_BATCH_ID()
        limits = self._budget.limits
        if len(self._open) >= limits.per_stream or self._budget.open_batches >= limits.per_server:
            raise ApiError.BATCH_PUBLISH_TOO_MANY_INFLIGHT()
        batch = self._open[parsed.id] = FastIngestBatch(parsed.id, parsed.gap_ok, parsed.flow)
        self._budget.open_batches += 1
        batch.flow = 1 if len(self._open) > 1 else min(_FLOW_SHARED, parsed.flow)
        batch.timer = self._timers.after(limits.timeout_ns, lambda: self._check_timeout(batch))
        return batch

    def _check_api_level(self, batch: FastIngestBatch, header: bytes) -> bytes:
        if REQUIRED_LEVEL not in header:
            return header
        if requires_newer_api(header):
            self._close(batch)
            raise ApiError.REQUIRED_API_LEVEL()
        return headers.strip(header, REQUIRED_LEVEL)

    def _is_next(self, batch: FastIngestBatch, parsed: BatchReplySubject, reply: bytes) -> bool:
        """Whether the message is the next one, or a gap is allowed; otherwise the batch ends with what it has."""
        expected = batch.last_position + 1
        if parsed.position != expected:
            self._send_gap(reply, expected, parsed.position)
        if parsed.position == expected or (batch.gap_ok and parsed.position > expected):
            batch.last_position = parsed.position
            return True
        self._finish(batch, reply)
        return False

    # One message

    def _on_ping(self, batch: FastIngestBatch, parsed: BatchReplySubject, reply: bytes) -> None:
        """Reply with the current state; the client has sent everything up to its position."""
        if parsed.position > batch.last_position:
            self._send_gap(reply, batch.last_position + 1, parsed.position + 1)
            if not batch.gap_ok:
                self._finish(batch, reply)
                return
            batch.last_position = batch.stored_position = parsed.position
            if self._ack_if_due(batch, reply):
                return
        self._send_flow(batch, reply)

    def _on_member(
        self,
        batch: FastIngestBatch,
        parsed: BatchReplySubject,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
    ) -> None:
        if parsed.operation == COMMIT_END:
            batch.last_position -= 1
            self._finish(batch, reply)
            return
        if parsed.position == 1 and not parsed.is_commit:
            self._send_flow(batch, reply)
        try:
            batch.stream_seq = self._store(subject, header, payload)
        except DuplicateMessage as duplicate:
            self._on_duplicate(batch, parsed, reply, duplicate.seq)
        except RequestError as api_error:
            self._on_rejected(batch, parsed, reply, api_error)
        else:
            batch.stored_position = batch.last_position
            if parsed.is_commit:
                self._finish(batch, reply)
            else:
                self._ack_if_due(batch, reply)

    def _store(self, subject: bytes, header: bytes, payload: bytes) -> int:
        try:
            return self._processor.process_fast_ingest(subject, header, payload)
        except StoreError as store_error:
            raise ApiError.INSUFFICIENT_RESOURCES() from store_error

    def _on_duplicate(
        self, batch: FastIngestBatch, parsed: BatchReplySubject, reply: bytes, seq: int
    ) -> None:
        """Count a message that was stored before as done."""
        batch.stored_position = parsed.position
        self._ack_if_due(batch, reply)
        if not parsed.is_commit:
            return
        if batch.last_position == 1 and not parsed.gap_ok:
            self._close(batch)
            fields = (self._stream.pub_ack_prefix, seq, self._encode_batch_id(batch), parsed.position)
            self._reply_after_commit(reply, b'%b%d,"duplicate": true,"batch":%b,"count":%d}' % fields)
        else:
            self._finish(batch, reply)

    def _on_rejected(
        self, batch: FastIngestBatch, parsed: BatchReplySubject, reply: bytes, api_error: RequestError
    ) -> None:
        """Handle a rejected member: if gaps are allowed the batch continues, otherwise it ends before this member."""
        if batch.last_position == 1 and not parsed.gap_ok:
            self._close(batch)
            raise api_error
        fields = (parsed.position, errors.encode_error(api_error))
        self._reply_after_commit(reply, b'{"type":"err","seq":%d,"error":%b}' % fields)
        if parsed.gap_ok and not parsed.is_commit:
            return
        batch.last_position -= 1
        self._finish(batch, reply)

    # Replies; each waits for the frame with the messages it refers to

    def _reply_after_commit(self, reply: bytes, text: bytes) -> None:
        config = self._stream.config
        if not config.no_ack:
            self._group_commit.reply_after_commit(reply, b"", b"", text)

    def _reply_error(self, reply: bytes, api_error: RequestError) -> None:
        config = self._stream.config
        if not config.no_ack:
            self._group_commit.reply_error(reply, errors.encode_pub_ack_error(config.name, api_error))

    def _send_flow(self, batch: FastIngestBatch, reply: bytes) -> None:
        self._reply_after_commit(
            reply, b'{"type":"ack","seq":%d,"msgs":%d}' % (batch.acked_position, batch.flow)
        )

    def _send_gap(self, reply: bytes, missing: int, position: int) -> None:
        self._reply_after_commit(reply, b'{"type":"gap","last_seq":%d,"seq":%d}' % (missing, position))

    def _ack_if_due(self, batch: FastIngestBatch, reply: bytes) -> bool:
        """Send an ack after every `flow` messages, and adjust `flow` by a factor of at most two each time."""
        steps = (batch.stored_position - batch.acked_position) // batch.flow
        if not steps:
            return False
        batch.acked_position += steps * batch.flow
        flow_limit = min(max(_FLOW_SHARED // len(self._open), 1), batch.flow_max)
        batch.flow = (
            min(batch.flow * 2, flow_limit) if batch.flow < flow_limit else max(batch.flow // 2, flow_limit)
        )
        self._send_flow(batch, reply)
        return True

    def _finish(self, batch: FastIngestBatch, reply: bytes) -> None:
        """End the batch with what it has."""
        self._close(batch)
        fields = (
            self._stream.pub_ack_prefix,
            batch.stream_seq,
            self._encode_batch_id(batch),
            batch.last_position,
        )
        self._reply_after_commit(reply, b'%b%d,"batch":%b,"count":%d}' % fields)

    @staticmethod
    def _encode_batch_id(batch: FastIngestBatch) -> bytes:
        return dumps(batch.id.decode("utf-8", "replace"))

    # End of a batch

    def _check_timeout(self, batch: FastIngestBatch) -> None:
        """Close the batch if nothing arrived since, else arm the timer again."""
        timers = self._timers
        if batch.deadline_ns > timers.now_ns():
            batch.timer = timers.at_monotonic(batch.deadline_ns, lambda: self._check_timeout(batch))
        else:
            self._close(batch)

    def _close(self, batch: FastIngestBatch) -> None:
        if self._open.pop(batch.id, None) is None:
            return
        self._budget.open_batches -= 1
        if batch.timer is not None:
            batch.timer.cancel()

    def clear(self) -> None:
        """Drop all batches without a reply: the stream is deleted, or fast ingest was disabled."""
        for batch in list(self._open.values()):
            self._close(batch)
