"""Backups: sends a stream to a subject in chunks, each acknowledged, in nats-server's format.

Owns the exchange with the receiver; the contents come from `BackupReader`, a few messages at a time, so that a backup
does not block others. The receiver's acks control how much is in flight. A receiver that stops answering, or
disconnects, ends the backup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace._native.reserved_subjects import is_reserved_reply, is_server_subject
from headrace.broker.handlers.api_dispatch import ApiEndpoint, ApiRequest
from headrace.broker.handlers.backup_reader import BackupReader
from headrace.broker.streams.stream_info import make_stream_state
from headrace.errors import CorruptData
from headrace.jetstream_api import advisories as events
from headrace.jetstream_api import responses
from headrace.jetstream_api.advisories import ClientInfo
from headrace.jetstream_api.decode import decode, is_empty
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.requests import SnapshotRequest
from headrace.protocol import headers, subjects
from headrace.protocol.nuid import nuid

if TYPE_CHECKING:
    from headrace.broker.handlers.api_context import ApiContext
    from headrace.broker.stream import Stream
    from headrace.broker.timers import TimerHandle

_CHUNK_DEFAULT, _CHUNK_MIN, _CHUNK_MAX = 128 * 1024, 1024, 1024 * 1024
_WINDOW_DEFAULT, _WINDOW_MAX = 8 * 1024 * 1024, 32 * 1024 * 1024
_ACK_TIMEOUT_NS = 5_000_000_000
_INTEREST_GRACE_NS = 2_000_000_000
_CHECK_INTERVAL_NS = 100_000_000
#: Runs of records per turn.
_RUNS_PER_SLICE = 8
#: The maximum number of concurrent backups in an account.
CONCURRENT_MAX = 64


def start_backup(jetstream: ApiContext, request: ApiRequest) -> bytes:
    """Handle STREAM.SNAPSHOT: the response comes first, then chunks."""
    if is_empty(request.body):
        raise ApiError.BAD_REQUEST()
    stream = jetstream.registry.get_stream(request.names[0])
    wanted = decode(SnapshotRequest, request.body, strict=jetstream.reject_unknown_fields)
    deliver = wanted.deliver_subject.encode()
    if (
        not subjects.is_valid_publish(deliver)
        or is_reserved_reply(deliver + b".x")
        or is_server_subject(deliver)
    ):
        raise ApiError.SNAPSHOT_DELIVER_SUBJECT_INVALID()
    if len(jetstream.backups) >= CONCURRENT_MAX:
        raise ApiError.STREAM_SNAPSHOT(err="too many snapshots in progress")
    backup = BackupSender(stream, wanted, jetstream.advisories.client_info(request.session))
    jetstream.backups.add(backup)
    jetstream.call_soon(backup.start)
    return responses.encode_snapshot_started(responses.encode_public_config(stream.config), backup.state)


ENDPOINTS: dict[tuple[str, ...], ApiEndpoint] = {
    ("STREAM", "SNAPSHOT"): ApiEndpoint("stream_snapshot_response", start_backup, 1),
}


class BackupSender:
    """One backup in progress."""

    def __init__(self, stream: Stream, wanted: SnapshotRequest, client: ClientInfo) -> None:
        jetstream = stream.jetstream
        self._stream = stream
        self._backups = jetstream.backups
        self._router = jetstream.router
        self._timers = jetstream.timers
        self._group_commit = jetstream.group_commit
        self._advisories = jetstream.advisories
        self._call_soon = jetstream.call_soon
        self._clock_ns = jetstream.clock.wall_ns
        self._client = client
        self._deliver_subject = wanted.deliver_subject.encode()
        self._chunk_bytes = min(max(wanted.chunk_size or _CHUNK_DEFAULT, _CHUNK_MIN), _CHUNK_MAX)
        window = min(max(wanted.window_size or _WINDOW_DEFAULT, _CHUNK_MIN), _WINDOW_MAX)
        self._slots = self._slots_max = max(window // self._chunk_bytes, 1)
        self.state = make_stream_state(stream)
        consumers = [] if wanted.no_consumers else list(stream.consumers.values())
        self._reader = BackupReader(stream.log, self.state, consumers, jetstream.clock.wall_ns)
        self._buffer = bytearray()
        self._sent = 0
        self._start_ns = jetstream.clock.wall_ns()
        self._last_ack_ns = self._started_ns = self._timers.now_ns()
        self._ack_subject = f"$JS.SNAPSHOT.ACK.{stream.name}.{nuid()}".encode()
        self._check_timer: TimerHandle | None = None
        self._scheduled = self._started = False

    # Life

    def start(self) -> None:
        """Subscribe to acks and start sending, after the response was sent."""
        if self not in self._backups:
            return
        self._advisories.publish(events.make_snapshot_created, self._stream.name, self.state, self._client)
        self._started = True
        self._router.subscribe_internal(self._ack_subject + b".>", self)
        self._check_timer = self._timers.after(_CHECK_INTERVAL_NS, self._check_receiver)
        self._schedule()

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Handle the ack of a chunk."""
        self._last_ack_ns = self._timers.now_ns()
        self._slots = min(self._slots + 1, self._slots_max)
        self._schedule()

    def _check_receiver(self) -> None:
        """End the backup if the receiver is gone or does not acknowledge."""
        self._check_timer = None
        now_ns = self._timers.now_ns()
        if not self._slots and now_ns - self._last_ack_ns >= _ACK_TIMEOUT_NS:
            self._end(headers.build_status(408, "No Flow Response"), "no flow response")
        elif (
            not self._router.has_interest(self._deliver_subject)
            and now_ns - self._started_ns >= _INTEREST_GRACE_NS
        ):
            self._end(headers.build_status(408, "No Interest"), "no interest")
        else:
            self._check_timer = self._timers.after(_CHECK_INTERVAL_NS, self._check_receiver)
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self._send_slice)

    def close(self) -> None:
        """Stop sending."""
        self._backups.discard(self)
        if self._started:
            self._router.unsubscribe_internal(self._ack_subject + b".>", self)
        if self._check_timer is not None:
            self._check_timer.cancel()

    def _end(self, header: bytes, problem: str = "") -> None:
        if self not in self._backups:
            return
        self.close()
        self._group_commit.publish_when_all_durable(self._deliver_subject, b"", header, b"")
        fields = (self._stream.name, self._start_ns, self._clock_ns(), self._client, problem)
        self._advisories.publish(events.make_snapshot_completed, *fields)

    # Sending

    def _send_slice(self) -> None:
        """Read some messages, and send full chunks."""
        self._scheduled = False
        if (
            self not in self._backups
            or not self._slots
            or not self._router.has_interest(self._deliver_subject)
        ):
            return
        if self._stream.closed:
            self._end(headers.build_status(500, "stream closed"), "stream closed")
            return
        try:
            self._fill_buffer()
        except CorruptData as damage:
            self._end(headers.build_status(500, "corrupt message"), str(damage))
            return
        while len(self._buffer) >= self._chunk_bytes and self._slots:
            self._send(bytes(self._buffer[: self._chunk_bytes]))
            del self._buffer[: self._chunk_bytes]
        if self._reader.finished and len(self._buffer) < self._chunk_bytes:
            self._finish()
        elif self._slots:
            self._schedule()

    def _fill_buffer(self) -> None:
        for _ in range(_RUNS_PER_SLICE):
            if self._reader.finished or len(self._buffer) >= self._chunk_bytes:
                return
            self._buffer += self._reader.read()

    def _send(self, chunk: bytes) -> None:
        self._sent += 1
        self._slots -= 1
        self._last_ack_ns = self._timers.now_ns()
        reply = b"%s.%d.%d" % (self._ack_subject, len(chunk), self._sent)
        self._group_commit.publish_when_all_durable(self._deliver_subject, reply, b"", chunk)

    def _finish(self) -> None:
        """Send the rest, which needs no ack, and the end, which has a status only if a chunk was sent before."""
        if self._buffer:
            self._group_commit.publish_when_all_durable(self._deliver_subject, b"", b"", bytes(self._buffer))
        self._end(headers.build_status(204) if self._sent else b"")
