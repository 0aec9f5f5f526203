"""A replicator: runs one mirror or source, and restarts it when messages are missing or nothing arrives.

Owns the exchange that sets up a consumer at the upstream, and its timeouts; deliveries are handled by the receiver,
copies are stored by the copy writer, and requests are built by `Upstream`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.broker.routing.inbox import Inbox
from headrace.broker.sourcing.consumer_ownership import consumer_in_use_error
from headrace.broker.sourcing.copy_writer import CopyWriter
from headrace.broker.sourcing.handover import ConsumerAddress, CopiedRange, Handover
from headrace.broker.sourcing.reachability import ReachabilityWatch
from headrace.broker.sourcing.upstream_consumer import ConsumerResponse, strategy_for
from headrace.broker.sourcing.upstream_receiver import UpstreamReceiver
from headrace.broker.sourcing.upstream_requests import IDENTITY, StartPosition, Upstream, UpstreamRequest
from headrace.code_probes import sometimes
from headrace.errors import RequestError, StoreError
from headrace.jetstream_api import responses
from headrace.jetstream_api.errors import ApiError
from headrace.protocol import headers
from headrace.protocol.json_exceptions import JSON_ERRORS

if TYPE_CHECKING:
    from headrace.broker.commit.jetstream_context import JetStreamContext
    from headrace.broker.timers import TimerHandle

SECOND = 1_000_000_000
SETUP_INTERVAL_NS = 2 * SECOND
BACKOFF_NS = 10 * SECOND
BACKOFF_NS_MAX = 120 * SECOND
HEARTBEAT_TIMEOUT_NS = 10 * SECOND
FLOOR_TIMEOUT_NS = 5 * SECOND
_WRONG_IDENTITY = ApiError.CONSUMER_STREAM_IDENTITY_MISMATCH
#: A work queue accepts the new consumer only when the old one is gone.
_QUEUE_CONFLICTS = (ApiError.CONSUMER_WQ_MULTIPLE_UNFILTERED, ApiError.CONSUMER_WQ_CONSUMER_NOT_UNIQUE)


def jitter_ns() -> int:
    return random.randrange(100, 200) * 1_000_000


class Replicator:
    """Copies from one upstream."""

    __slots__ = (
        "_consumer_name",
        "_copiers",
        "_failures",
        "_heartbeat_timer",
        "_inbox",
        "_last_setup_ns",
        "_reachability",
        "_receiver",
        "_router",
        "_send",
        "_setup_timer",
        "_subscribed_subject",
        "_subscriber",
        "_timers",
        "_waiting_for_consumer",
        "consumer_strategy",
        "error",
        "handover",
        "upstream",
        "waiting_for_space",
        "writer",
    )

    def __init__(
        self, jetstream: JetStreamContext, upstream: Upstream, writer: CopyWriter, handover: Handover
    ) -> None:
        self._router = jetstream.router
        #: Requests wait for the configuration that they follow from, and stay in order with deletions.
        self._send = jetstream.group_commit.send_after_commit
        self._timers = jetstream.timers
        self._copiers: dict[tuple[bytes, str], Replicator] = jetstream.copiers
        self.upstream = upstream
        self.writer = writer
        self.handover = handover
        self.consumer_strategy = strategy_for(upstream)
        self.error: RequestError | None = None
        self.waiting_for_space = False  # the stream did not accept a message
        self._receiver = UpstreamReceiver(
            self, upstream, writer, jetstream.timers, jetstream.group_commit, jetstream.disk_backpressure
        )
        self._last_setup_ns = 0
        self._failures = 0
        self._inbox: Inbox | None = None
        self._subscribed_subject = b""
        self._subscriber: UpstreamReceiver | Replicator = self._receiver
        self._waiting_for_consumer = False
        self._consumer_name = b""
        self._setup_timer: TimerHandle | None = None
        self._heartbeat_timer: TimerHandle | None = None
        self._reachability = ReachabilityWatch(jetstream.router, self._on_reachable)

    # Life

    def start(self) -> None:
        """Start at the end of this turn."""
        self._set_timer(0)
        self._reachability.start(self.upstream.reachability_subject)

    def stop(self) -> None:
        """Stop requests and deliveries."""
        key = self.upstream.consumer_key
        if self._copiers.get(key) is self:
            del self._copiers[key]
        self._cancel_timers()
        self._unsubscribe()
        self._reachability.stop()

    def _on_reachable(self) -> None:
        """Set up again without the pending backoff; earlier requests and deliveries may be lost."""
        sometimes("upstream reachable again")
        self._failures = 0
        self.restart()

    def finish(self) -> None:
        """Store what is held back, as far as the stream accepts it, after the replicator has stopped."""
        try:
            self.writer.finish()
        except (RequestError, StoreError):
            pass  # the stream accepts nothing more, or is being deleted itself

    @property
    def consumer_address(self) -> ConsumerAddress:
        """The consumer at the upstream, as far as its name is known."""
        name = self._consumer_name.decode() or self.consumer_strategy.name
        return self.upstream.make_consumer_address(name)

    @property
    def deletes(self) -> bool:
        """Whether to delete the consumer with this replicator: not if another stream reads through it."""
        return self.consumer_strategy.deletes_consumer and self.upstream.consumer_key not in self._copiers

    @property
    def acked_seq(self) -> int:
        """Up to where messages were acknowledged to the upstream as stored; -1 if that is not known."""
        return self._receiver.acked_seq

    @property
    def copied_filters(self) -> list[str] | None:
        """What its consumer filters; None if that is not known."""
        return self.handover.filters if self.upstream.is_user_managed else self.upstream.get_filters()

    def make_copied_ranges(self, wanted: list[str] | None) -> list[CopiedRange]:
        """Return what this source has copied; `wanted` are the filters of its successor, None if not known."""
        filters = self.copied_filters
        if filters is None and not wanted:
            filters = []  # of a version that did not record them: the same as the successor's
        own = [CopiedRange(filters, self.writer.stored_seq)] if filters is not None else []
        return [*self.handover.copied, *own]

    @property
    def num_pending(self) -> int:
        """How many messages the upstream last reported as pending; -1 before its first delivery."""
        return self._receiver.num_pending

    def make_info(self, now_ns: int) -> responses.SourceStatus:
        """Build the status for the stream's info."""
        entry, receiver = self.upstream.entry, self._receiver
        return responses.SourceStatus(
            entry.name,
            entry.external,
            receiver.lag,
            0 if self.upstream.is_mirror else self.writer.stored_seq,
            now_ns - receiver.last_received_ns if receiver.last_received_ns else -1,
            self.error,
            entry.filter_subject,
            entry.subject_transforms,
        )

    # Setup

    def _setup(self) -> None:
        self._cancel_timers()
        self._unsubscribe()
        self.error = None
        self.waiting_for_space = False
        self.writer.rollback()
        self._last_setup_ns = self._now()
        if self._is_refused():
            return
        old_consumer = self.handover.floor_of
        if old_consumer is not None:
            self._request_floor(old_consumer)
        else:
            self._request_consumer()

    def _request_floor(self, old_consumer: ConsumerAddress) -> None:
        """Ask for the ack floor of the consumer that this replicator replaces: it may have been lost in a crash."""
        self._inbox = Inbox(self._router, self._on_floor)
        self._setup_timer = self._timers.after(FLOOR_TIMEOUT_NS, self._request_consumer)
        self._send(old_consumer.make_subject("INFO"), self._inbox.subject, b"", b"")

    def _on_floor(self, header: bytes, payload: bytes) -> None:
        try:
            response = msgspec.json.decode(payload, type=ConsumerResponse)
        except JSON_ERRORS:
            response = ConsumerResponse()
        if response.config is not None:
            sometimes("ack floor of the old consumer used")
            self.handover.set_floor(response.ack_floor.stream_seq)
        elif response.error is not None and response.error.err_code == ApiError.CONSUMER_NOT_FOUND:
            self.handover.set_floor(-1)
        self._request_consumer()

    def _request_consumer(self) -> None:
        self._cancel_timers()
        start_position, resume_seq = self.writer.get_start_position(), self.handover.resume_seq
        if 0 <= resume_seq < start_position.seq:
            start_position = StartPosition(resume_seq + 1)
        self._request(self.consumer_strategy.first_request(start_position, self.writer.identity))

    def _is_refused(self) -> bool:
        """Whether another stream of this account reads through the consumer; if so, retry later."""
        upstream = self.upstream
        holder = self._copiers.get(upstream.consumer_key)
        if upstream.consumer is None or holder is None or holder is self:
            return False
        self.error = consumer_in_use_error(upstream.durable_name, upstream.stream_name, holder.upstream.owner)
        self._failures += 1
        self.restart(min(BACKOFF_NS * self._failures, BACKOFF_NS_MAX))
        return True

    def _request(self, request: UpstreamRequest) -> None:
        self._inbox = Inbox(self._router, self._on_reply)
        self._setup_timer = self._timers.after(request.timeout_ns, self._on_timeout)
        self._send(request.subject, self._inbox.subject, request.header, request.body)

    def _on_timeout(self) -> None:
        sometimes("upstream request timed out")
        self._cancel_timers()
        self._on_error(0)

    def _on_reply(self, header: bytes, payload: bytes) -> None:
        self._cancel_timers()
        try:
            response = msgspec.json.decode(payload, type=ConsumerResponse)
            response.body = payload
        except JSON_ERRORS:
            self._on_error(0)
            return
        if response.error is not None or response.config is None:
            problem = response.error
            if problem is not None:
                self.error = RequestError(problem.code, problem.err_code, problem.description)
            self._on_error(problem.err_code if problem is not None else 0)
            return
        try:
            request = self.consumer_strategy.on_success(response)
        except RequestError as api_error:
            self.error = api_error
            self._retry_later()
            return
        if request is not None:
            self._request(request)
        else:
            self._on_consumer_ready(response, headers.get(header, IDENTITY) if header else None)

    def _on_error(self, err_code: int) -> None:
        if err_code == _WRONG_IDENTITY:
            if self._try_to_store(self.writer.reset_identity):
                self.restart()
            return
        request = self.consumer_strategy.on_error(err_code)
        if request is None and err_code in _QUEUE_CONFLICTS and self.handover.has_retired:
            # Nothing is lost: a work queue keeps what its consumer has not acknowledged.
            self.handover.delete_retired()
            self.restart()
            return
        if request is None:
            self._retry_later()
            return
        self.error = None
        self._request(request)

    def _on_consumer_ready(self, response: ConsumerResponse, identity: bytes | None) -> None:
        """Subscribe to the deliver subject, now that the consumer exists."""
        assert response.config is not None
        if self._is_refused():
            return
        if self.upstream.consumer is not None:
            self._copiers[self.upstream.consumer_key] = self
        upstream_identity, writer = identity.decode() if identity else "", self.writer
        is_other = bool(upstream_identity and writer.identity and upstream_identity != writer.identity)
        if is_other and not self._try_to_store(writer.reset_identity):
            return
        delivered_seq = response.delivered.stream_seq
        if not self._try_to_store(lambda: writer.skip_to(delivered_seq, upstream_identity)):
            return
        self._failures = 0
        self.error = None
        self._consumer_name = response.name.encode()
        self.handover.on_ready(response.config.filters if self.upstream.is_user_managed else None)
        self._receiver.start(self._consumer_name, delivered_seq)
        self._subscribe(self.consumer_strategy.get_deliver_subject(response.config), self._receiver)
        self._heartbeat_timer = self._timers.after(HEARTBEAT_TIMEOUT_NS, self._check_heartbeat)

    def _subscribe(self, subject: bytes, subscriber: UpstreamReceiver | Replicator) -> None:
        self._subscribed_subject, self._subscriber = subject, subscriber
        if subject:
            self._router.subscribe_internal(subject, subscriber)

    def _unsubscribe(self) -> None:
        subject, self._subscribed_subject = self._subscribed_subject, b""
        self._waiting_for_consumer = self._receiver.active = False
        if subject:
            self._router.unsubscribe_internal(subject, self._subscriber)

    # Restart

    def _retry_later(self) -> None:
        """Retry with increasing delays; meanwhile watch for deliveries of a consumer that others have to create."""
        self._failures += 1
        self.restart(min(BACKOFF_NS * self._failures, BACKOFF_NS_MAX))
        if self.consumer_strategy.probe_subject:
            self._subscribe(self.consumer_strategy.probe_subject, self)
            self._waiting_for_consumer = True

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Set up now: a delivery shows that the missing consumer exists."""
        if self._waiting_for_consumer:
            self._waiting_for_consumer = False
            self._set_timer(jitter_ns())

    def restart(self, backoff_ns: int = 0) -> None:
        """Set up again, but not more often than every SETUP_INTERVAL_NS."""
        self._cancel_timers()
        self._unsubscribe()
        delay_ns = max(self._last_setup_ns + SETUP_INTERVAL_NS - self._now(), 0) + backoff_ns
        if delay_ns or not self.upstream.is_mirror:
            delay_ns += jitter_ns()
        self._set_timer(delay_ns)

    def on_store_error(self) -> None:
        """Restart because the stream cannot store a message; the upstream will deliver it again."""
        sometimes("copied message not stored")
        self.restart()
        self.waiting_for_space = True

    def _try_to_store(self, store: Callable[[], None]) -> bool:
        """Store what is held back, or return False and restart later."""
        try:
            store()
        except (RequestError, StoreError):
            self.on_store_error()
            return False
        return True

    def on_space_available(self) -> None:
        """Continue when the stream has space again."""
        if self.waiting_for_space:
            self.waiting_for_space = False
            self._set_timer(0)

    def _set_timer(self, delay_ns: int) -> None:
        if self._setup_timer is not None:
            self._setup_timer.cancel()
        self._setup_timer = self._timers.after(delay_ns, self._setup)

    def _check_heartbeat(self) -> None:
        """Restart if nothing arrived for too long."""
        self._heartbeat_timer = None
        if self._now() - self._receiver.last_received_ns > HEARTBEAT_TIMEOUT_NS:
            sometimes("upstream heartbeat missed")
            self.restart()
        else:
            self._heartbeat_timer = self._timers.after(HEARTBEAT_TIMEOUT_NS, self._check_heartbeat)

    def _cancel_timers(self) -> None:
        """Cancel the timers and the pending request."""
        for timer in (self._setup_timer, self._heartbeat_timer):
            if timer is not None:
                timer.cancel()
        self._setup_timer = self._heartbeat_timer = None
        if self._inbox is not None:
            self._inbox.close()
            self._inbox = None

    def _now(self) -> int:
        return self._timers.now_ns()
