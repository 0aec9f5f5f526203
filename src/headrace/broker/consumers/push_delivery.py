"""Push delivery: interest in the deliver subject, idle heartbeats, flow control.

Owns the outgoing side of a consumer with a deliver subject. Without a deliver group only a subscription to exactly that
subject makes the consumer active; with one, only members of that group do, and only they receive.
"""

from __future__ import annotations

import random
import secrets
from typing import TYPE_CHECKING, Any

from headrace._native import Route
from headrace.broker.consumers import status_headers
from headrace.broker.consumers.bulk_delivery_targets import (
    FanoutTargets,
    direct_targets,
    first_congested,
    first_congested_target,
    unrestricted_or_none,
)
from headrace.broker.consumers.flow_control import FlowWindow
from headrace.broker.routing.remote_interest import LeafnodeFanout
from headrace.broker.routing.subscription_trie import ImportTarget, select_group
from headrace.code_probes import sometimes
from headrace.protocol import headers

if TYPE_CHECKING:
    from headrace.broker.consumers.consumer_context import ConsumerContext
    from headrace.broker.consumers.delivery_mode import RunDelivery
    from headrace.jetstream_api.configs import ConsumerConfig
    from headrace.storage.sequence_arrays import Seqs

_ALPHABET = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DIGITS_MAX = 20
_LAST_CONSUMER = b"Nats-Last-Consumer"
_LAST_STREAM = b"Nats-Last-Stream"
_UNLIMITED = 1 << 40
#: How much a receiver inside the server may add to the messages of one run; see `UpstreamReceiver.added_bytes`.
_ADDED_BYTES_PER_RUN = 512 * 1024


class PushDelivery:
    """The receivers of one push consumer. Implements `DeliveryMode`."""

    kind = "push"
    pinned_client = None
    waiting_count = 0
    __slots__ = (
        "_ack_state",
        "_config",
        "_consumer",
        "_group",
        "_group_route",
        "_internal_target",
        "_last_heartbeat_ns",
        "_leaf_targets",
        "_reply_acked_nothing",
        "_router",
        "_subject",
        "_targets",
        "active",
        "flow_window",
        "inactive_since_ns",
    )

    def __init__(self, consumer: ConsumerContext) -> None:
        self._consumer = consumer
        self._router = consumer.router
        self._ack_state = consumer.ack_state
        self.active = False
        self.inactive_since_ns = 0  # since when there is no interest
        self._last_heartbeat_ns = 0
        self._reply_acked_nothing = False  # the last flow-control reply acknowledged nothing
        self._targets: list[list[Any]] | None = None
        self._leaf_targets: list[LeafnodeFanout] = []  # other servers
        self._internal_target: Any = (
            None  # the only receiver, if it is inside this server and takes runs of records
        )
        self._group_route: Route | None = None
        self.flow_window = FlowWindow(consumer.jetstream.flow_bytes) if consumer.config.flow_control else None
        self._configure(consumer.config)

    def _configure(self, config: ConsumerConfig) -> None:
        self._config = config
        self._subject = config.deliver_subject.encode()
        self._group = config.deliver_group.encode()

    def reconfigure(self, config: ConsumerConfig) -> None:
        old, self._config = self._config, config
        if (old.deliver_subject, old.deliver_group) != (config.deliver_subject, config.deliver_group):
            self._unwatch_interest()
            self._configure(config)
            self._watch_interest()

    def open(self) -> None:
        """Watch interest in the deliver subject and receive flow-control replies."""
        self._watch_interest()
        for subject in self._consumer.flow_subjects:
            self._router.subscribe_internal(subject, self)

    def close(self) -> None:
        self._unwatch_interest()
        for subject in self._consumer.flow_subjects:
            self._router.unsubscribe_internal(subject, self)

    def on_shutdown(self) -> None:
        """Do nothing: no request waits."""

    # Requests, which a push consumer refuses

    def on_request(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        if reply:
            self.enqueue(reply, payload)

    def enqueue(self, reply: bytes, body: bytes) -> None:
        self._router.publish(reply, b"", status_headers.PUSH_BASED, b"")

    # Interest

    @property
    def is_bound(self) -> bool:
        return self.active

    def get_idle_since_ns(self) -> int:
        return 0 if self.active else self.inactive_since_ns

    def renew_activity(self, now_ns: int) -> bool:
        """Return False: without interest a push consumer is not in use."""
        return False

    def _watch_interest(self) -> None:
        """Watch interest in the deliver subject."""
        self._router.watch_subject(self._subject, self._on_interest_change)
        self.inactive_since_ns = self._last_heartbeat_ns = self._consumer.now_ns()
        self._refresh_targets()

    def _unwatch_interest(self) -> None:
        self._router.unwatch_subject(self._subject, self._on_interest_change)

    def _on_interest_change(self, subject: bytes) -> None:
        was_active = self.active
        self._refresh_targets()
        if self.active and not was_active:
            self._consumer.schedule_delivery()
        elif was_active and not self.active:
            self.inactive_since_ns = self._consumer.now_ns()
            self._consumer.arm_timer()

    def _refresh_targets(self) -> None:
        route = self._router.get_route(self._subject)
        self._leaf_targets = [
            subscriber for subscriber in route.internal_subscribers if isinstance(subscriber, LeafnodeFanout)
        ]
        if self._group:
            self._refresh_group_targets(route)
            return
        exact = any(sub.pattern == self._subject for sub in route.subscribers)
        self.active = exact or any(_is_interested(subscriber) for subscriber in route.internal_subscribers)
        only_subscriber = (
            route.internal_subscribers[0]
            if len(route.internal_subscribers) == 1 and not (route.subscribers or route.queue_groups)
            else None
        )
        takes_runs = hasattr(only_subscriber, "take_run") and not self._config.headers_only
        self._internal_target = only_subscriber if takes_runs else None
        target = direct_targets(route)
        self._targets = None if target is None else [target]

    def _refresh_group_targets(self, route: Route) -> None:
        """Find the members of the deliver group: here, else in importing accounts; and on other servers."""
        group_route = select_group(route, self._group)
        self.active = group_route is not None
        self._group_route = group_route
        self._targets = None
        if group_route is not None and not group_route.internal_subscribers:
            members = group_route.queue_groups[0]
            if unrestricted_or_none(members) is not None:
                self._targets = [[sub] for sub in members]

    # Delivery

    def has_demand(self) -> bool:
        if not self.active or (self.flow_window is not None and not self.flow_window.has_room):
            return False
        for receivers in self._targets or ():
            peer = first_congested_target(receivers)
            if peer is not None:
                sometimes("push client congested")
                peer.on_writable(self._consumer.schedule_delivery)
                return False
        target = self._internal_target
        if target is not None and not target.is_ready(self._consumer.schedule_delivery):
            return False
        for leaf_target in self._leaf_targets:
            peer = first_congested(leaf_target.senders)
            if peer is not None:
                peer.on_writable(self._consumer.schedule_delivery)
                return False
        return True

    def fanout_targets(self) -> FanoutTargets | None:
        """Return the receivers for a run of messages; None if each message needs a decision."""
        config = self._config
        if self._targets is None or config.headers_only:
            return None
        if self._group and len(self._targets) > 1:
            first = random.randrange(len(self._targets))
            self._targets = self._targets[first:] + self._targets[:first]
        bytes_max = -1 if self.flow_window is None else self.flow_window.get_bytes_available()
        return FanoutTargets(self._targets, _UNLIMITED, len(self._subject), bytes_max, strict=False)

    @property
    def internal_delivery(self) -> RunDelivery | None:
        return None if self._internal_target is None else self._deliver_internal

    def _deliver_internal(
        self, view: memoryview, seqs: Seqs, at: int, limit: int, num_pending: int
    ) -> tuple[int, int, int]:
        """Deliver a run of records to the internal target; see `RunDelivery`."""
        consumer, target = self._consumer, self._internal_target
        added: int = target.added_bytes
        limit = min(limit, 1 + _ADDED_BYTES_PER_RUN // max(added, 1))
        bytes_max = -1 if self.flow_window is None else self.flow_window.get_bytes_available()
        consumer_seq = self._ack_state.consumer_seq + 1
        count, size = target.take_run(
            consumer.first_ack_prefix, view, seqs, at, limit, consumer_seq, num_pending, bytes_max
        )
        return count, size, count * added

    def on_run_sent(self, count: int, size: int, now_ns: int) -> None:
        """Account for a run that was sent."""
        self._last_heartbeat_ns = now_ns
        self._reply_acked_nothing = False
        if self.flow_window is not None and self.flow_window.on_sent(size):
            self._request_flow_control()

    def send(
        self, size: int, subject: bytes, reply: bytes, header: bytes, payload: bytes, now_ns: int
    ) -> bool:
        """Send one message; return False if it has no receiver."""
        router = self._router
        route = self._group_route if self._group_route is not None else router.get_route(self._subject)
        if not router.table.deliver(route, subject, reply, header, payload):
            return False
        self.on_run_sent(1, size - len(subject) + len(self._subject), now_ns)
        return True

    # Flow control

    def _request_flow_control(self) -> None:
        """Send a flow-control request."""
        assert self.flow_window is not None
        consumer = self._consumer
        token = bytes(_ALPHABET[b % 62] for b in secrets.token_bytes(4))
        subject = b"$JS.FC.%s.%s." % (consumer.stream.name_bytes, consumer.name_bytes) + token
        self.flow_window.on_request_sent(subject)
        self._router.publish(self._subject, subject, status_headers.FLOW_REQUEST, b"")

    def after_delivery(self) -> None:
        """Send a request at once if max_ack_pending is reached and acks come by flow control."""
        config, flow_window = self._config, self.flow_window
        if (
            config.ack_policy != "flow_control"
            or flow_window is None
            or flow_window.pending_request
            or self._reply_acked_nothing
        ):
            return
        if 0 < config.max_ack_pending <= len(self._ack_state.pending):
            self._request_flow_control()

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Handle the reply to a flow-control request."""
        if self.flow_window is None or not self.flow_window.on_reply(subject):
            return
        consumer = self._consumer
        floor = self._ack_state.get_ack_floor()
        if self._config.ack_policy == "flow_control" and header:
            stream_seq = _parse_number(headers.get(header, _LAST_STREAM))
            consumer_seq = _parse_number(headers.get(header, _LAST_CONSUMER))
            if stream_seq and consumer_seq > self._ack_state.get_ack_floor()[0]:
                consumer.ack_handler.ack_all(stream_seq, consumer_seq)
        # Another request now would only get the same reply; the next heartbeat sends one.
        self._reply_acked_nothing = self._ack_state.get_ack_floor() == floor
        consumer.schedule_delivery()

    # Timeouts

    def check_timeouts(self, now_ns: int, *, caught_up: bool) -> None:
        """Send a heartbeat if it is due."""
        consumer, next_ns = self._consumer, self.next_timeout()
        if not next_ns or now_ns < next_ns:
            return
        self._last_heartbeat_ns = now_ns
        self._router.publish(self._subject, b"", consumer.make_heartbeat(), b"")
        flow_window = self.flow_window
        if flow_window is None or flow_window.pending_request or self._config.ack_policy != "flow_control":
            return
        if self._ack_state.pending:
            # Messages of an idle stream are acknowledged through heartbeats (ack policy `flow_control`).
            self._request_flow_control()

    def next_timeout(self) -> int:
        """Return when the next heartbeat is due; 0 if never."""
        interval_ns = self._config.idle_heartbeat
        return self._last_heartbeat_ns + interval_ns if interval_ns and self.active else 0


def _is_interested(subscriber: Any) -> bool:
    """Whether an internal subscriber of the deliver subject makes the consumer active."""
    if isinstance(subscriber, ImportTarget):
        return subscriber.has_interest(None)
    return bool(getattr(subscriber, "exact", True))


def _parse_number(value: bytes | None) -> int:
    return int(value) if value is not None and value.isdigit() and len(value) <= _DIGITS_MAX else 0
