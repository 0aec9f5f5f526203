"""The queue of pull requests: which wait for messages, the order in which they are served, and how each ends.

Owns the queue of one consumer. Without limits and priorities, requests take turns, which the compiled core does for a
whole run (`fanout_targets`); everything else is decided message by message (`next_for`), in nats-server's order of
checks.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from headrace.broker.consumers import status_headers
from headrace.broker.consumers.bulk_delivery_targets import (
    FanoutTargets,
    direct_targets,
    first_congested_target,
)
from headrace.broker.consumers.pinned_client import PinnedClient
from headrace.broker.consumers.pull_request import PullRequest
from headrace.code_probes import sometimes
from headrace.errors import RequestError
from headrace.jetstream_api.decode import decode_next
from headrace.jetstream_api.requests import NextRequest
from headrace.jetstream_api.required_api_level import requires_newer_api
from headrace.jetstream_api.times import format_duration
from headrace.protocol import headers, subjects

if TYPE_CHECKING:
    from headrace.broker.consumers.consumer_context import ConsumerContext
    from headrace.jetstream_api.configs import ConsumerConfig

#: How long a full queue is assumed to stay full while the number of subscriptions does not change.
_FULL_HINT_NS = 10_000_000


class PullQueue:
    """The requests of one consumer, oldest first. Implements `DeliveryMode`."""

    kind = "pull"
    flow_window = None
    internal_delivery = None
    is_bound = False
    __slots__ = ("_ack_state", "_config", "_consumer", "_full_hint", "_router", "pinned_client", "waiting")

    def __init__(self, consumer: ConsumerContext) -> None:
        self._consumer = consumer
        self._config = consumer.config
        self._router = consumer.router
        self._ack_state = consumer.ack_state
        self.waiting: deque[PullRequest] = deque()
        self._full_hint = (-1, 0)  # number of subscriptions; until when no request is assumed to end
        self.pinned_client = PinnedClient(consumer)

    @property
    def waiting_count(self) -> int:
        return len(self.waiting)

    def open(self) -> None:
        """Do nothing: requests come to the consumer's own subject."""

    def reconfigure(self, config: ConsumerConfig) -> None:
        self._config = config
        if config.priority_policy != "pinned_client":
            self.pinned_client.clear()

    # Incoming requests

    def on_request(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Handle CONSUMER.MSG.NEXT."""
        if not reply:
            return
        if header and requires_newer_api(header):
            self._send_status(reply, status_headers.REQUIRED_LEVEL)
        else:
            self.enqueue(reply, payload)

    def enqueue(self, reply: bytes, body: bytes) -> None:
        """Queue a request, or reply with an error status."""
        consumer = self._consumer
        now_ns = consumer.now_ns()
        consumer.last_active_ns = now_ns
        try:
            request = decode_next(body)
        except RequestError as api_error:
            self._send_status(reply, status_headers.encode_bad_request(api_error.description))
            return
        status = self._check_limits(request) or self._check_priority(request, now_ns)
        if status:
            self._send_status(reply, status)
            return
        if request.no_wait and (status := self._check_no_wait(request, now_ns)):
            self._send_status(reply, status)
            return
        if len(self.waiting) >= self._config.max_waiting > 0:
            self._drop_ended(now_ns)
        if len(self.waiting) >= self._config.max_waiting > 0:
            sometimes("max_waiting exceeded")
            if request.idle_heartbeat <= 0:
                self._send_status(reply, status_headers.MAX_WAITING)
            return
        self._insert(PullRequest(reply, request, now_ns))
        consumer.schedule_delivery()

    def _drop_ended(self, now_ns: int) -> None:
        """Remove requests that have ended.

        Not repeated shortly after a check that found none, while the number of subscriptions is the same: a client that
        floods a full queue must not cause a scan for each request.
        """
        subscriptions = self._router.subscriptions
        if subscriptions == self._full_hint[0] and now_ns < self._full_hint[1]:
            return
        before = len(self.waiting)
        self.check_timeouts(now_ns, caught_up=False)
        if len(self.waiting) == before:
            self._full_hint = (
                subscriptions,
                min(now_ns + _FULL_HINT_NS, self.next_timeout() or now_ns + _FULL_HINT_NS),
            )

    def _check_limits(self, request: NextRequest) -> bytes:
        config = self._config
        if 0 < config.max_batch < request.batch:
            return status_headers.encode_limit_exceeded(f"MaxRequestBatch of {config.max_batch}")
        if 0 < config.max_expires < request.expires:
            return status_headers.encode_limit_exceeded(
                f"MaxRequestExpires of {format_duration(config.max_expires)}"
            )
        if 0 < config.max_bytes < request.max_bytes:
            return status_headers.encode_limit_exceeded(f"MaxRequestMaxBytes of {config.max_bytes}")
        return b""

    def _check_priority(self, request: NextRequest, now_ns: int) -> bytes:
        config, policy = self._config, self._config.priority_policy
        if not request.structured:
            return b""
        if (request.min_pending or request.min_ack_pending) and policy != "overflow":
            return status_headers.encode_bad_request("Not a Overflow Priority consumer")
        if request.id and policy != "pinned_client":
            return status_headers.encode_bad_request("Not a Pinned Client Priority consumer")
        if not 0 <= request.priority <= 9:
            return status_headers.encode_bad_request("Priority must be between 0 and 9")
        if policy == "none":
            return b""
        if not request.group:
            return status_headers.encode_bad_request("Priority Group missing")
        if request.group not in config.priority_groups:
            return status_headers.encode_bad_request("Invalid Priority Group")
        if self.pinned_client.pin_id and request.id:
            if request.id.encode() != self.pinned_client.pin_id:
                return status_headers.PIN_MISMATCH
            self.pinned_client.renew(now_ns)
        return b""

    def _check_no_wait(self, request: NextRequest, now_ns: int) -> bytes:
        """Return the status for a no-wait request if there is nothing for it, else b""."""
        available = self._consumer.num_pending() + len(self._ack_state.redelivery_queue)
        if not available:
            return b"" if request.expires else status_headers.NO_MESSAGES
        self.check_timeouts(now_ns, caught_up=False)
        if available < sum(pull.messages_left for pull in self.waiting):
            sometimes("no-wait pull finds requests pending")
            return status_headers.REQUESTS_PENDING
        return b""

    def _insert(self, pull: PullRequest) -> None:
        waiting = self.waiting
        if self._config.priority_policy != "prioritized":
            waiting.append(pull)
            return
        priority, index = pull.request.priority, len(waiting)
        while index and waiting[index - 1].request.priority > priority:
            index -= 1
        waiting.insert(index, pull)

    # Delivery

    def has_demand(self) -> bool:
        waiting = self.waiting
        round_robin = self._config.priority_policy == "none"
        for _ in range(len(waiting) if round_robin else min(len(waiting), 1)):
            peer = first_congested_target(self._find_subscribers(waiting[0]))
            if peer is None:
                return True
            sometimes("pull client congested")
            peer.on_writable(self._consumer.schedule_delivery)
            if round_robin:
                waiting.rotate(-1)
        return False

    def _find_subscribers(self, pull: PullRequest) -> list[Any]:
        return self._router.get_route(pull.reply).subscribers if subjects.is_well_formed(pull.reply) else []

    def fanout_targets(self) -> FanoutTargets | None:
        """Return the receivers, in turn, for a run of messages; None if each message needs a decision."""
        waiting, config = self.waiting, self._config
        if config.priority_policy != "none" or config.headers_only:
            return None
        bytes_max = -1
        if len(waiting) == 1:
            bytes_max = waiting[0].bytes_left if waiting[0].bytes_left > 0 else -1
        elif any(pull.bytes_left > 0 for pull in waiting):
            return None
        targets = []
        for pull in waiting:
            route = self._router.get_route(pull.reply) if subjects.is_well_formed(pull.reply) else None
            target = direct_targets(route) if route is not None else None
            if target is None or first_congested_target(target) is not None:
                return None
            targets.append(target)
        limit = max(min(pull.messages_left for pull in waiting), 1) * len(waiting)
        return FanoutTargets(targets, limit, -1, bytes_max, strict=True)

    def on_run_sent(self, count: int, size: int, now_ns: int) -> None:
        """Account for a run that was sent to `fanout_targets`."""
        waiting = self.waiting
        receivers = len(waiting)
        each, remainder = divmod(count, receivers)
        for index, pull in enumerate(waiting):
            got = each + (index < remainder)
            pull.messages_left -= got
            pull.delivered += got
            if got and pull.heartbeat_ns:
                pull.next_heartbeat_ns = now_ns + pull.heartbeat_ns
        first = waiting[0]
        if receivers == 1 and first.bytes_left > 0:
            first.bytes_left -= size
            if not first.bytes_left:
                first.messages_left = 0
        waiting.rotate(-remainder)
        if any(pull.messages_left <= 0 for pull in waiting):
            self._remove_completed()

    def _remove_completed(self) -> None:
        done = [pull for pull in self.waiting if pull.messages_left <= 0]
        self.waiting = deque(pull for pull in self.waiting if pull.messages_left > 0)
        for pull in done:
            if pull.bytes_left > 0:
                self._send_status(
                    pull.reply, status_headers.encode_end_status(status_headers.COMPLETED, 0, pull.bytes_left)
                )

    def send(
        self, size: int, subject: bytes, reply: bytes, header: bytes, payload: bytes, now_ns: int
    ) -> bool:
        """Send one message to the next request; return False if there is none."""
        pull = self.next_for(size, now_ns)
        if pull is None:
            return False
        if self._config.priority_policy == "pinned_client":
            header = headers.append(header, [(b"Nats-Pin-Id", self.pinned_client.pin_id)])
        self._router.deliver(pull.reply, subject, reply, header, payload)
        if pull.heartbeat_ns:
            pull.next_heartbeat_ns = now_ns + pull.heartbeat_ns
        if pull.messages_left <= 0 < pull.bytes_left:
            self._send_status(
                pull.reply, status_headers.encode_end_status(status_headers.COMPLETED, 0, pull.bytes_left)
            )
        return True

    def next_for(self, size: int, now_ns: int) -> PullRequest | None:
        """Return the request that gets a message of this size; requests that cannot continue end here."""
        waiting, skipped = self.waiting, 0
        while waiting and skipped < len(waiting):
            pull = waiting[0]
            if pull.expires_ns and now_ns >= pull.expires_ns:
                self._end_first(pull.make_end_status(status_headers.TIMEOUT))
            elif not self._may_receive(pull, now_ns):
                skipped += self._skip(pull)
            elif 0 < pull.bytes_left < size:
                if (
                    pull.pin_id
                    and pull.pin_id == self.pinned_client.pin_id
                    and not pull.delivered
                    and not pull.request.id
                ):
                    self.pinned_client.clear()
                sometimes("message exceeds max_bytes of a pull")
                self._end_first(pull.make_end_status(status_headers.TOO_LARGE))
            elif not self._has_interest(pull):
                sometimes("pull without interest dropped")
                waiting.popleft()
            else:
                return self._assign(pull, size)
        return None

    def _may_receive(self, pull: PullRequest, now_ns: int) -> bool:
        policy = self._config.priority_policy
        if policy == "pinned_client":
            if not self.pinned_client.pin_id and not pull.pin_id and pull.structured:
                pull.pin_id = self.pinned_client.assign(pull.request.group, now_ns)
            return bool(self.pinned_client.pin_id) and pull.pin_id == self.pinned_client.pin_id
        if policy == "overflow":
            min_pending, min_ack_pending = pull.request.min_pending, pull.request.min_ack_pending
            if min_pending > 0 or min_ack_pending > 0:
                loop = self._consumer.delivery_loop
                return (0 < min_pending <= loop.num_pending) or (
                    0 < min_ack_pending <= len(self._ack_state.pending)
                )
        return True

    def _skip(self, pull: PullRequest) -> int:
        """Move a request to the end of the queue, or end it if its pin is no longer valid."""
        if pull.pin_id and self._config.priority_policy == "pinned_client":
            self._end_first(pull.make_end_status(status_headers.WRONG_PIN))
            return 0
        self.waiting.rotate(-1)
        return 1

    def _assign(self, pull: PullRequest, size: int) -> PullRequest:
        if pull.bytes_left > 0:
            pull.bytes_left -= size
            if not pull.bytes_left:
                pull.messages_left = 1
        pull.messages_left -= 1
        pull.delivered += 1
        self.waiting.popleft()
        if pull.messages_left > 0:
            self._insert(pull)
        return pull

    def _has_interest(self, pull: PullRequest) -> bool:
        return self._router.has_interest(pull.reply)

    # Timeouts

    def check_timeouts(self, now_ns: int, *, caught_up: bool) -> None:
        """End requests that are over and send heartbeats; `caught_up`: nothing is left to deliver."""
        for pull in list(self.waiting):
            status = b""
            if pull.expires_ns and now_ns >= pull.expires_ns:
                sometimes("pull expired")
                status = pull.make_end_status(status_headers.TIMEOUT)
            elif caught_up and pull.no_wait and (not pull.expires_ns or pull.delivered):
                status = status_headers.NO_MESSAGES
            elif pull.no_wait and pull.delivered and 0 < pull.next_heartbeat_ns <= now_ns:
                status = (
                    status_headers.NO_MESSAGES
                )  # it got what was available, and asked for no more than that
            if status or not self._has_interest(pull):
                self.waiting.remove(pull)
                if status:
                    self._send_status(pull.reply, status)
            elif pull.next_heartbeat_ns and now_ns >= pull.next_heartbeat_ns:
                self._send_status(pull.reply, self._consumer.make_heartbeat())
                pull.next_heartbeat_ns = now_ns + pull.heartbeat_ns
        if self.pinned_client.expire_if_idle(now_ns):
            self._consumer.schedule_delivery()

    def next_timeout(self) -> int:
        """Return the next time at which a request or the pin needs attention; 0 if none."""
        deadlines = [pull.next_heartbeat_ns or pull.expires_ns for pull in self.waiting]
        deadlines += [pull.expires_ns for pull in self.waiting if pull.next_heartbeat_ns]
        deadlines.append(self.pinned_client.expires_ns)
        return min((deadline for deadline in deadlines if deadline), default=0)

    def after_delivery(self) -> None:
        """Do nothing: a request asks for no flow control."""

    def get_idle_since_ns(self) -> int:
        return self._consumer.last_active_ns

    def renew_activity(self, now_ns: int) -> bool:
        """Return whether requests wait, or the ack wait of a message still runs; the consumer was active until then."""
        consumer = self._consumer
        last_ns = self._ack_state.last_deadline()
        if self.waiting or last_ns > now_ns:
            consumer.last_active_ns = max(now_ns, last_ns)
            return True
        return False

    def close(self) -> None:
        """End all requests: the consumer is being deleted."""
        for pull in self.waiting:
            self._send_status(pull.reply, status_headers.DELETED)
        self.waiting.clear()

    def on_shutdown(self) -> None:
        """End all requests with what they still wait for, so that clients ask another server."""
        while self.waiting:
            self._end_first(self.waiting[0].make_end_status(status_headers.SERVER_SHUTDOWN))

    def _end_first(self, status: bytes) -> None:
        self._send_status(self.waiting.popleft().reply, status)

    def _send_status(self, reply: bytes, status: bytes) -> None:
        self._router.publish(reply, b"", status, b"")
