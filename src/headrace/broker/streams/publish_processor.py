"""The slow path of publishing: everything that the compiled fast path leaves to Python.

Owns the order of the checks of one message; `publish_checks` has the checks, the stream stores what passes them. Every
reply waits, through group commit, for the frame with the changes it refers to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.broker.routing.message_trace import disable
from headrace.broker.streams import counters, publish_checks, schedules
from headrace.broker.streams.atomic_batch import AtomicBatches, BatchMember, get_batch_id
from headrace.broker.streams.fast_ingest import FastIngestBatches
from headrace.broker.streams.publish_checks import DuplicateMessage
from headrace.code_probes import sometimes
from headrace.errors import RequestError, StoreError
from headrace.jetstream_api import errors, times
from headrace.jetstream_api.errors import ApiError
from headrace.protocol import headers

if TYPE_CHECKING:
    from headrace.broker.routing.message_trace import MessageTrace
    from headrace.broker.routing.traced_delivery import TracedMessage
    from headrace.broker.streams.atomic_batch import AtomicBatchBudget
    from headrace.broker.streams.fast_ingest import FastIngestBudget
    from headrace.broker.streams.retention import Retention
    from headrace.broker.streams.stream_context import StreamContext

_NO_HEADERS: Mapping[bytes, bytes] = {}
_EXPECTED_LAST = b"Nats-Expected-Last-Sequence"


class CheckedMessage(NamedTuple):
    """A message that passed the checks."""

    header: bytes
    payload: bytes
    now_ns: int
    ttl_s: int
    message_id: bytes
    rollup: bytes


class PublishProcessor:
    """Processes the publishes to one stream that need checks. Implements `PublishHandler` of the fast path."""

    __slots__ = (
        "_clock",
        "_group_commit",
        "_log",
        "_retention",
        "_router",
        "_stream",
        "atomic_batches",
        "fast_ingest",
        "stream",
    )

    def __init__(
        self,
        stream: StreamContext,
        retention: Retention,
        batch_budget: AtomicBatchBudget,
        fast_ingest_budget: FastIngestBudget,
    ) -> None:
        self.stream = self._stream = stream
        self._log = stream.log
        self._router = stream.jetstream.router
        self._clock = stream.clock
        self._group_commit = stream.group_commit
        self._retention = retention
        self.atomic_batches = AtomicBatches(stream, batch_budget)
        self.fast_ingest = FastIngestBatches(stream, self, fast_ingest_budget)

    def on_publish(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Process a publish that needs checks: store or reject it; the reply waits for its frame."""
        stream = self._stream
        try:
            ack = self._process(subject, header, payload)
        except DuplicateMessage as duplicate:
            sometimes("duplicate publish acknowledged")
            ack = b'%b%d,"duplicate": true}' % (stream.pub_ack_prefix, duplicate.seq)
        except RequestError as api_error:
            ack = errors.encode_pub_ack_error(stream.name, api_error)
        except StoreError as store_error:
            self.on_store_error(reply, store_error)
            return
        finally:
            stream.mark_dirty()
        config = stream.config
        if not reply or config.no_ack:
            return
        if config.persist_mode == "async":  # as configured, the reply does not wait for the disk
            self._router.publish(reply, b"", b"", ack)
        else:
            self._group_commit.reply_after_commit(reply, b"", b"", ack)

    def on_traced_publish(self, trace: MessageTrace, session: Any, message: TracedMessage) -> None:
        """Process a traced publish; with `Nats-Trace-Only` it is checked and not stored."""
        stream = self._stream
        event = trace.add("js", stream=stream.name)
        subject, reply, header, payload = message
        error: Exception | None = None
        try:
            stored_subject, no_interest = self._check_only(subject, header, payload)
            event["subject"] = stored_subject.decode("utf-8", "replace")
            event |= {"nointerest": True} if no_interest else {}
        except (RequestError, DuplicateMessage, StoreError) as failure:
            error = failure
            event["error"] = describe_trace_error(failure, header)
        if not trace.trace_only:
            stream.fast_path.on_message(session, subject, reply, disable(header), payload)
        elif isinstance(error, RequestError) and reply and not stream.config.no_ack:
            ack = errors.encode_pub_ack_error(stream.name, error)
            self._group_commit.reply_error(reply, ack)

    def on_fast_ingest(
        self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        """Process a member of a fast-ingest batch."""
        self.fast_ingest.on_publish(session, subject, reply, header, payload)

    def on_first_change(self) -> None:
        """Take part in the next commit."""
        self._group_commit.mark_dirty(self._stream)

    def on_store_error(self, reply: bytes, failure: StoreError) -> None:
        """Reply with an error if the store accepts nothing."""
        config = self._stream.config
        if reply and not config.no_ack:
            sometimes("publish fails because the store accepts nothing")
            api_error = ApiError.INSUFFICIENT_RESOURCES()
            self._group_commit.reply_error(reply, errors.encode_pub_ack_error(config.name, api_error))

    def parse_ttl(self, text: bytes) -> int:
        """Return the seconds to live of a valid `Nats-TTL`, or -1 if the slow path has to decide."""
        kind, seconds = times.parse_ttl(text)
        config = self._stream.config
        if not config.allow_msg_ttl or kind not in (times.TTL_SECONDS, times.TTL_NEVER):
            return -1
        if kind == times.TTL_NEVER:
            return publish_checks.TTL_EXEMPT
        return min(seconds, publish_checks.TTL_SECONDS_MAX)

    def _process(self, subject: bytes, header: bytes, payload: bytes) -> bytes:
        """Check and store a message; return the reply or raise the error."""
        stream = self._stream
        header_map = publish_checks.parse_nats_headers(header) if header else _NO_HEADERS
        subject = stream.transform_subject(subject)
        if header_map and (name := get_batch_id(header_map)):
            return self.atomic_batches.on_member(BatchMember(subject, header, payload, header_map), name)
        seq = self._process_single(subject, header, payload, header_map)
        if stream.config.allow_msg_counter:
            return counters.encode_pub_ack(stream, seq)
        return b"%b%d}" % (stream.pub_ack_prefix, seq)

    def process_fast_ingest(self, subject: bytes, header: bytes, payload: bytes) -> int:
        """Check and store a member of a fast-ingest batch like a single message; return its sequence."""
        stream = self._stream
        fast_path = stream.fast_path
        if fast_path.enabled and (
            not header or (b"Nats-" not in header and publish_checks.is_storable_header(header))
        ):
            now_ns = self._clock.now_ns()
            seq = self._log.append(subject, header, payload, now_ns)
            fast_path.last_message_id = b""
            if fast_path.calls_after_append:
                self._retention.after_append(subject, seq, now_ns, 0)
            return seq
        header_map = publish_checks.parse_nats_headers(header) if header else _NO_HEADERS
        return self._process_single(stream.transform_subject(subject), header, payload, header_map)

    def store_unconditionally(self, subject: bytes, header: bytes, payload: bytes) -> int:
        """Store a message of the server with the open frame, without acting on its headers; return its sequence."""
        subject = self._stream.transform_subject(subject)
        return self._store_checked(subject, self._check_single(subject, header, payload, _NO_HEADERS))

    def store_again(self, subject: bytes, header: bytes, payload: bytes) -> int:
        """Store a message that was in the stream before with the open frame; of its headers, only a TTL counts."""
        stream = self._stream
        checked = self._check_single(subject, header, payload, _NO_HEADERS)
        if stream.config.allow_msg_ttl:
            ttl_s = publish_checks.parse_ttl_header(stream, publish_checks.parse_nats_headers(header))
            header, ttl_s = publish_checks.apply_min_ttl(stream, checked.header, ttl_s)
            checked = checked._replace(header=header, ttl_s=ttl_s)
        return self._store_checked(subject, checked)

    def _store_checked(self, subject: bytes, message: CheckedMessage) -> int:
        """Store a message of the server; raise the error if nobody wants it."""
        stream = self._stream
        if not self._retention.has_interest(subject):
            raise ApiError.STREAM_STORE_FAILED(
                err=f"no consumer of stream {stream.name} needs {subject.decode()}"
            )
        stream.reserve_frame_space(len(subject) + len(message.header) + len(message.payload), 1)
        seq = stream.store(subject, message.header, message.payload, message.now_ns, message.ttl_s)
        stream.mark_dirty()
        return seq

    def _check_only(self, subject: bytes, header: bytes, payload: bytes) -> tuple[bytes, bool]:
        """Check a message without storing it; return its subject in the stream, and whether nobody needs it."""
        header_map = publish_checks.parse_nats_headers(header) if header else _NO_HEADERS
        subject = self._stream.transform_subject(subject)
        if not (header_map and get_batch_id(header_map)):
            self._check_single(subject, header, payload, header_map)
        return subject, not self._retention.has_interest(subject)

    def _process_single(
        self, subject: bytes, header: bytes, payload: bytes, header_map: Mapping[bytes, bytes]
    ) -> int:
        stream = self._stream
        checked = self._check_single(subject, header, payload, header_map)
        if not self._retention.has_interest(subject):
            return stream.skip(subject, checked.message_id, checked.now_ns, checked.rollup, header_map)
        header = publish_checks.strip_status(checked.header) if checked.header else checked.header
        return stream.store(
            subject,
            header,
            checked.payload,
            checked.now_ns,
            checked.ttl_s,
            checked.message_id,
            checked.rollup,
        )

    def _check_single(
        self, subject: bytes, header: bytes, payload: bytes, header_map: Mapping[bytes, bytes]
    ) -> CheckedMessage:
        """Check a message; return it as it is to be stored."""
        stream, retention = self._stream, self._retention
        config = stream.config
        if config.sealed:
            raise ApiError.STREAM_SEALED()
        now_ns = self._clock.now_ns()
        if retention.expires_messages:
            retention.expire_slice(now_ns)
        message_id = rollup = b""
        ttl_s = 0
        if header_map:
            cheap = header_map.keys() <= publish_checks.CHEAP_HEADERS
            if cheap:
                publish_checks.check_id_and_ttl(stream, header_map)
            else:
                publish_checks.check_counter(stream, header_map, payload)
                publish_checks.check_expectations(stream, subject, header_map)
                if schedules.SCHEDULE in header:
                    header, header_map = schedules.check_schedule(stream, subject, header, header_map)
            message_id = publish_checks.check_message_id(stream, header_map, now_ns)
            rollup = b"" if cheap else publish_checks.check_rollup(stream, header_map)
        if config.allow_msg_counter:
            header, payload = counters.apply_increment(stream, subject, header, header_map)
        publish_checks.check_size(stream, header, payload)
        if header_map:
            ttl_s = publish_checks.parse_ttl_header(stream, header_map)
            header, ttl_s = publish_checks.apply_min_ttl(stream, header, ttl_s)
        if retention.has_interest(subject):
            if stream.quota.has_limit(config.storage):
                publish_checks.check_account_quota(stream, subject, header, payload)
            if config.discard == "new":
                publish_checks.check_discard_new(stream, subject, header, payload, rollup)
        return CheckedMessage(header, payload, now_ns, ttl_s, message_id, rollup)


#: What nats-server writes into a trace instead of the text of the PubAck, by error code.
_TRACE_ERRORS = {
    10054: "maximum payload exceeded",
    10060: "expected stream does not match",
    10166: "message TTL disabled",
}
_WRONG_LAST_SEQUENCE = 10071


def describe_trace_error(error: RequestError | DuplicateMessage | StoreError, header: bytes) -> str:
    """Return the text of a stream's error in a message trace."""
    if isinstance(error, DuplicateMessage):
        return "msgid is duplicate"
    if isinstance(error, StoreError):
        return str(error)
    if error.err_code == _WRONG_LAST_SEQUENCE and (expected := headers.get(header, _EXPECTED_LAST)):
        return f"last sequence mismatch: {expected.decode()} vs {error.description.rpartition(' ')[2]}"
    return _TRACE_ERRORS.get(error.err_code, error.description)
