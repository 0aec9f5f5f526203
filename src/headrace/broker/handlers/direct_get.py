"""Direct get: returns stored messages as messages, not JSON; served only while a stream allows it.

Two subjects per stream: `$JS.API.DIRECT.GET.<stream>` with a JSON request, and `….<stream>.<subject>` for the last
message of a subject. The second is the hot path (every KV get) and therefore decodes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headrace._native import encode_last_by_subject, encode_replies, encode_reply
from headrace.broker.commit.group_commit import OutboundMsg
from headrace.code_probes import sometimes
from headrace.errors import RequestError, StoreError
from headrace.jetstream_api import times
from headrace.jetstream_api.decode import decode_lenient
from headrace.jetstream_api.requests import MessageGetRequest
from headrace.jetstream_api.required_api_level import requires_newer_api
from headrace.jetstream_api.token_limit import has_too_many_tokens
from headrace.storage import Filter, StreamLog

if TYPE_CHECKING:
    from headrace.broker.routing.router import SubjectRouter
    from headrace.broker.routing.session import Session
    from headrace.broker.stream import Stream

PREFIX = b"$JS.API.DIRECT.GET."
RESULTS_MAX = 1024
Array = NDArray[np.uint64]
#: How much is read and sent at a time.
_VIEW_BYTES = 65_536
_SCAN_MIN, _SCAN_MAX = 64, 16_384

_NOT_FOUND = b"NATS/1.0 404 Message Not Found\r\n\r\n"
_NO_RESULTS = b"NATS/1.0 404 No Results\r\n\r\n"
_EMPTY = b"NATS/1.0 408 Empty Request\r\n\r\n"
_MALFORMED = b"NATS/1.0 408 Malformed Request\r\n\r\n"
_BAD = b"NATS/1.0 408 Bad Request\r\n\r\n"
_LEVEL = b"NATS/1.0 412 Required Api Level\r\n\r\n"
_TOO_MANY = b"NATS/1.0 413 Too Many Results\r\n\r\n"
_UNREADABLE = b"NATS/1.0 500 Store Unavailable\r\n\r\n"


class DirectGet:
    """Serves direct gets for one stream, under its own name or, for a mirror, under its upstream's."""

    __slots__ = (
        "_group_commit",
        "_log",
        "_pending_max",
        "_prefix_length",
        "_retention",
        "_stream",
        "_stream_header",
        "_subject",
    )

    def __init__(self, stream: Stream, served_name: bytes) -> None:
        self._stream = stream
        self._log = stream.log
        self._retention = stream.retention
        self._group_commit = stream.group_commit
        self._pending_max = stream.jetstream.pending_max
        self._subject = PREFIX + served_name
        self._prefix_length = len(self._subject) + 1
        self._stream_header = b"Nats-Stream: " + stream.name_bytes + b"\r\nNats-Subject: "

    @property
    def subscriptions(self) -> tuple[bytes, bytes]:
        """The subjects to subscribe to."""
        return self._subject, self._subject + b".>"

    def on_message(
        self, session: Session, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        """Handle one request."""
        if not reply:
            return None
        if header and requires_newer_api(header):
            return self._send_status(reply, _LEVEL)
        try:
            if payload or len(subject) <= self._prefix_length:
                self._request(reply, subject[self._prefix_length :], payload)
            else:
                self._last_by_subject(reply, subject)
        except StoreError:
            self._send_status(reply, _UNREADABLE)

    def _last_by_subject(self, reply: bytes, request_subject: bytes) -> None:
        stream, log = self._stream, self._log
        self._retention.enforce()
        reply_parts = encode_last_by_subject(log, request_subject, self._prefix_length, self._stream_header)
        if reply_parts is None:
            seq = stream.find_last_seq(request_subject[self._prefix_length :])
            found = log.locate_record(seq) if seq else None
            if found is None:
                sometimes("direct get finds no message")
                return self._send_status(reply, _NOT_FOUND)
            reply_parts = encode_reply(*found, self._stream_header)
        self._group_commit.publish_when_durable(log, reply, b"", *reply_parts)

    def _request(self, reply: bytes, key: bytes, payload: bytes) -> None:
        if not key and not payload:
            return self._send_status(reply, _EMPTY)
        if has_too_many_tokens(payload):
            return self._send_status(reply, _BAD)
        try:
            request = decode_lenient(MessageGetRequest, payload)
        except RequestError:
            return self._send_status(reply, _MALFORMED)
        error = _check_last_by_subject(request) if key else _check(request)
        if error:
            return self._send_status(reply, error)
        if key:
            request.last_by_subj = key.decode("utf-8", "surrogateescape")
        self._retention.enforce()
        if request.multi_last:
            self._multi_last(reply, request)
        elif request.batch:
            self._batch(reply, request)
        else:
            self._single(reply, request)

    def _single(self, reply: bytes, request: MessageGetRequest) -> None:
        seq = find_seq(self._stream, request)
        found = self._log.locate_record(seq) if seq else None
        if found is None:
            return self._send_status(reply, _NOT_FOUND)
        block, payload = encode_reply(*found, self._stream_header)
        block = b"" if request.no_hdr else block
        if seq == request.seq and not request.next_by_subj:  # nothing else can change the reply
            self._group_commit.publish_message(self._log, seq, reply, block, payload)
        else:
            self._send(reply, block, payload)

    def _batch(self, reply: bytes, request: MessageGetRequest) -> None:
        log = self._log
        wanted = log.get_filter((request.next_by_subj.encode(),)) if request.next_by_subj else None
        start = request.seq
        if request.start_time is not None:
            start = log.find_seq_at_time(times.parse_time_ns(request.start_time))
            if not start:
                return self._send_status(reply, _NOT_FOUND)
        pending = log.count_from(wanted, start)
        if request.batch < 0:
            return self._send_end_of_batch(reply, pending, 0, b"")
        chunks = _iter_matches(log, wanted, start, request.batch)
        last, pending = self._send_run(reply, request, chunks, pending)
        if not last:
            return self._send_status(reply, _NOT_FOUND)
        self._send_end_of_batch(reply, pending, last, b"")

    def _multi_last(self, reply: bytes, request: MessageGetRequest) -> None:
        log = self._log
        up_to = request.up_to_seq or log.last_seq
        if request.up_to_time is not None:
            later = log.find_seq_at_time(times.parse_time_ns(request.up_to_time))
            up_to = later - 1 if later else log.last_seq
            if up_to < log.first_seq:
                return self._send_status(reply, _NO_RESULTS)
        wanted = log.get_filter(tuple(s.encode() for s in request.multi_last))
        seqs = log.find_last_per_subject(wanted, up_to)
        seqs = seqs[np.searchsorted(seqs, np.uint64(request.seq)) :]
        if len(seqs) > RESULTS_MAX:
            return self._send_status(reply, _TOO_MANY)
        if not len(seqs):
            return self._send_status(reply, _NO_RESULTS)
        last, pending = self._send_run(reply, request, [seqs], len(seqs))
        self._send_end_of_batch(reply, pending, last, b"Nats-UpTo-Sequence: %d\r\n" % up_to)

    def _send_run(
        self, reply: bytes, request: MessageGetRequest, chunks: Iterable[Array], pending: int
    ) -> tuple[int, int]:
        """Send the messages of a batch, within the requested limits; return the last sequence and how many are left."""
        log, group_commit = self._log, self._group_commit
        bytes_left = request.max_bytes or self._pending_max
        count_left = request.batch if request.batch > 0 else RESULTS_MAX
        stream_header = None if request.no_hdr else self._stream_header
        last = 0
        for seqs in chunks:
            at = 0
            while at < len(seqs) and count_left > 0 and bytes_left > 0:
                messages: list[OutboundMsg] = []
                view = log.read_view(int(seqs[at]), _VIEW_BYTES)[0]
                sent, size = encode_replies(
                    messages, view, seqs, at, count_left, bytes_left, reply, stream_header, pending, last
                )
                group_commit.publish_many_when_durable(log, messages)
                if sent:
                    last = int(seqs[at + sent - 1])
                at += sent or 1
                count_left -= sent
                bytes_left -= size
                pending = max(pending - sent, 0)
            if count_left <= 0 or bytes_left <= 0:
                break
        return last, pending

    def _send_end_of_batch(self, reply: bytes, pending: int, last: int, more: bytes) -> None:
        self._send_status(
            reply,
            b"NATS/1.0 204 EOB\r\nNats-Num-Pending: %d\r\nNats-Last-Sequence: %d\r\n%b\r\n"
            % (pending, last, more),
        )

    def _send_status(self, reply: bytes, block: bytes) -> None:
        self._send(reply, block, b"")

    def _send(self, reply: bytes, block: bytes, payload: bytes) -> None:
        self._group_commit.publish_when_durable(self._log, reply, b"", block, payload)


class MirrorDirectGet(DirectGet):
    """Serves direct gets for a mirror's upstream, once the mirror has nearly caught up.

    Only if there is no upstream in this server that serves them itself.
    """

    __slots__ = ("_sourcing", "_streams", "_upstream_name")

    def __init__(self, stream: Stream, served_name: bytes) -> None:
        super().__init__(stream, served_name)
        self._sourcing = stream.sourcing
        self._streams = stream.jetstream.streams
        self._upstream_name = served_name.decode()

    def on_message(
        self, session: Session, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        upstream = self._streams.get(self._upstream_name)
        if (upstream is None or not upstream.config.allow_direct) and self._sourcing.is_almost_caught_up:
            super().on_message(session, subject, reply, header, payload)


class DirectGetSubscriptions:
    """Subscribes the direct gets of an account's streams."""

    __slots__ = ("_router", "_subscribers")

    def __init__(self, router: SubjectRouter) -> None:
        self._router = router
        self._subscribers: dict[str, list[DirectGet]] = {}

    def subscribe(self, stream: Stream) -> None:
        """Serve the direct gets that the stream's configuration allows."""
        config = stream.config
        subscribers: list[DirectGet] = []
        if config.allow_direct:
            subscribers.append(DirectGet(stream, stream.name_bytes))
        if config.mirror_direct and config.mirror is not None:
            upstream = config.mirror.name
            subscribers.append(MirrorDirectGet(stream, upstream.encode()))
        self._subscribers[stream.name] = subscribers
        for subscriber in subscribers:
            for pattern in subscriber.subscriptions:
                self._router.subscribe_internal(pattern, subscriber)

    def unsubscribe(self, stream: Stream) -> None:
        """Stop serving direct gets of a stream."""
        for subscriber in self._subscribers.pop(stream.name, ()):
            for pattern in subscriber.subscriptions:
                self._router.unsubscribe_internal(pattern, subscriber)


def find_seq(stream: Stream, request: MessageGetRequest) -> int:
    """Return the sequence that a get for one message refers to; 0 if there is none."""
    log = stream.log
    seq = request.seq
    if request.start_time is not None:
        seq = log.find_seq_at_time(times.parse_time_ns(request.start_time))
        if not seq:
            return 0
    if request.next_by_subj:
        return log.find_next(log.get_filter((request.next_by_subj.encode(),)), seq)
    if seq:
        return seq
    return stream.find_last_seq(request.last_by_subj.encode("utf-8", "surrogateescape"))


def _iter_matches(log: StreamLog, wanted: Filter | None, seq: int, most: int) -> Iterator[Array]:
    """Yield the sequences of matching messages from `seq` on, some at a time, so that small requests scan little."""
    scan_rows = min(max(most, _SCAN_MIN), _SCAN_MAX)
    while seq := log.find_next(wanted, seq):
        yield log.find_seqs(wanted, seq, seq + scan_rows - 1)
        seq += scan_rows


def _check(request: MessageGetRequest) -> bytes:
    last, following, multi = bool(request.last_by_subj), bool(request.next_by_subj), bool(request.multi_last)
    timed = request.start_time is not None
    if not (request.seq or last or following or multi or timed):
        return _EMPTY
    conflict = (
        (request.seq > 0 and (last or timed))
        or (last and (timed or following or request.batch > 0 or multi))
        or (following and multi)
        or (request.up_to_seq > 0 and request.up_to_time is not None)
    )
    return _BAD if conflict else b""


def _check_last_by_subject(request: MessageGetRequest) -> bytes:
    """Reject all options but `no_hdr` if the subject is in the request's subject."""
    other = (
        request.last_by_subj
        or request.next_by_subj
        or request.multi_last
        or request.seq
        or request.batch
        or request.start_time is not None
        or request.up_to_seq
        or request.up_to_time is not None
    )
    return _BAD if other else b""
