"""Push delivery: who listens on the deliver subject, heartbeats while there is nothing to say, flow control.

Owns the outgoing side of a consumer with a deliver subject. Without a deliver group only a subscription to exactly that
subject makes it active; with one, only members of that group do, and only they receive.
"""

from __future__ import annotations

import random
import secrets
from typing import TYPE_CHECKING, Any

from headrace.broker import statuses
from headrace.broker.flow import Window
from headrace.broker.lanes import Lanes, crowded, crowded_peer, plain_subscriptions, simple
from headrace.broker.leaf_routes import Fan
from headrace.kernel import EXACT, Route
from headrace.probes import probe
from headrace.protocol import headers

if TYPE_CHECKING:
    from headrace.broker.consumer import Consumer
    from headrace.broker.progress_codec import Seqs

_ALPHABET = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_LAST_CONSUMER = b"Nats-Last-Consumer"
_LAST_STREAM = b"Nats-Last-Stream"
_MANY = 1 << 40


class Push:
    """The receivers of one push consumer."""

    __slots__ = (
        "_beat_ns",
        "_consumer",
        "_fans",
        "_group",
        "_members",
        "_subject",
        "_targets",
        "_unheeded",
        "active",
        "silent_ns",
        "taker",
        "window",
    )

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.active = False
        self.silent_ns = 0  # since when nobody listens
        self._beat_ns = 0
        self._unheeded = False  # the last answer acknowledged nothing
        self._targets: list[list[Any]] | None = None
        self._fans: list[Fan] = []  # ways to other servers
        self.taker: Any = None  # the one receiver, inside this server, that takes whole runs of records
        self._members: Route | None = None
        self.window = Window(consumer.jetstream.flow_bytes) if consumer.config.flow_control else None
        self.configure()

    def configure(self) -> None:
        config = self._consumer.config
        self._subject = config.deliver_subject.encode()
        self._group = config.deliver_group.encode()

    # Interest

    def listen(self) -> None:
        """Learn when somebody comes or goes."""
        self._consumer.hub.watch(self._subject, self._interest_changed)
        self.silent_ns = self._beat_ns = self._consumer.now_ns()
        self._refresh()

    def unlisten(self) -> None:
        self._consumer.hub.unwatch(self._subject, self._interest_changed)

    def _interest_changed(self, subject: bytes) -> None:
        was_active = self.active
        self._refresh()
        if self.active and not was_active:
            self._consumer.wake()
        elif was_active and not self.active:
            self.silent_ns = self._consumer.now_ns()
            self._consumer.rearm()

    def _refresh(self) -> None:
        route = self._consumer.hub.route(self._subject)
        self._fans = [sink for sink in route.sinks if isinstance(sink, Fan)]
        if self._group:
            members = [sub for group in route.groups if group[0].queue == self._group for sub in group]
            across = [part for fan in self._fans if (part := fan.for_group(self._group)) is not None]
            self.active = bool(members or across)
            groups = [members] if members else []
            self._members = Route(self._subject, EXACT, [], groups, across) if self.active else None
            self._targets = [[sub] for sub in members] if simple(members) is not None and not across else None
            return
        exact = any(sub.pattern == self._subject for sub in route.plain)
        self.active = exact or any(getattr(sink, "exact", True) for sink in route.sinks)
        only = route.sinks[0] if len(route.sinks) == 1 and not (route.plain or route.groups) else None
        whole = hasattr(only, "take_run") and not self._consumer.config.headers_only
        self.taker = only if whole else None
        target = plain_subscriptions(route)
        self._targets = None if target is None else [target]

    # Sending

    def open(self) -> bool:
        if not self.active or (self.window is not None and not self.window.open):
            return False
        for target in self._targets or ():
            peer = crowded_peer(target)
            if peer is not None:
                probe("the one who listens does not read")
                peer.when_drained(self._consumer.wake)
                return False
        for fan in self._fans:
            peer = crowded(fan.carriers)
            if peer is not None:
                peer.when_drained(self._consumer.wake)
                return False
        return True

    def lanes(self) -> Lanes | None:
        """Receivers for a run of messages; None when each message has to be decided."""
        config = self._consumer.config
        if self._targets is None or config.headers_only:
            return None
        if self._group and len(self._targets) > 1:
            first = random.randrange(len(self._targets))
            self._targets = self._targets[first:] + self._targets[:first]
        bytes_max = -1 if self.window is None else self.window.room()
        return Lanes(self._targets, _MANY, len(self._subject), bytes_max, strict=False)

    def hand_over(self, view: memoryview, seqs: Seqs, at: int, most: int, left: int) -> tuple[int, int]:
        """Give the taker a run of records; how many it took and their size."""
        consumer = self._consumer
        bytes_max = -1 if self.window is None else self.window.room()
        dseq = consumer.progress.consumer_seq + 1
        run: tuple[int, int] = self.taker.take_run(
            consumer.ack_first, view, seqs, at, most, dseq, left, bytes_max
        )
        return run

    def sent_run(self, count: int, size: int, now_ns: int) -> None:
        """A run went out along `lanes`."""
        self._beat_ns = now_ns
        self._unheeded = False
        if self.window is not None and self.window.sent(size):
            self._ask()

    def send(
        self, size: int, subject: bytes, reply: bytes, header: bytes, payload: bytes, now_ns: int
    ) -> bool:
        """Send one message; False when nobody takes it."""
        hub = self._consumer.hub
        route = self._members if self._members is not None else hub.route(self._subject)
        if not hub.table.send(route, subject, reply, header, payload):
            return False
        self.sent_run(1, size - len(subject) + len(self._subject), now_ns)
        return True

    # Flow control

    def _ask(self) -> None:
        """Request a sign of life."""
        assert self.window is not None
        consumer = self._consumer
        token = bytes(_ALPHABET[b % 62] for b in secrets.token_bytes(4))
        subject = b"$JS.FC.%s.%s." % (consumer.stream.name_bytes, consumer.name_bytes) + token
        self.window.ask(subject)
        consumer.hub.publish(self._subject, subject, statuses.FLOW_REQUEST, b"")

    def ask_if_full(self) -> None:
        """With acknowledgement by flow control a full consumer asks at once."""
        config, window = self._consumer.config, self.window
        if config.ack_policy != "flow_control" or window is None or window.asked or self._unheeded:
            return
        if 0 < config.max_ack_pending <= len(self._consumer.progress.pending):
            self._ask()

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """An answer to a flow-control request."""
        if self.window is None or not self.window.answered(subject):
            return
        consumer = self._consumer
        floor = consumer.progress.floor()
        if consumer.config.ack_policy == "flow_control" and header:
            stream_seq = _number(headers.get(header, _LAST_STREAM))
            consumer_seq = _number(headers.get(header, _LAST_CONSUMER))
            if stream_seq and consumer_seq > consumer.progress.floor()[0]:
                # An answer that names what was never delivered must not move the floor beyond it.
                stream_seq = min(stream_seq, consumer.progress.stream_seq)
                consumer_seq = min(consumer_seq, consumer.progress.consumer_seq)
                consumer.acks.through(stream_seq, consumer_seq)
        # To ask again at once would only bring the same answer; the next heartbeat asks.
        self._unheeded = consumer.progress.floor() == floor
        consumer.wake()

    # The passing of time

    def look(self, now_ns: int, *, at_end: bool) -> None:
        """Send a heartbeat if it is time."""
        consumer, next_ns = self._consumer, self.next_look()
        if not next_ns or now_ns < next_ns:
            return
        self._beat_ns = now_ns
        consumer.hub.publish(self._subject, b"", consumer.heartbeat(), b"")
        window = self.window
        if window is None or window.asked or consumer.config.ack_policy != "flow_control":
            return
        if consumer.progress.pending:
            # An idle stream is acknowledged by heartbeat: seed 2, "AckFlowControl".
            self._ask()

    def next_look(self) -> int:
        """When the next heartbeat is due; 0 for never."""
        every = self._consumer.config.idle_heartbeat
        return self._beat_ns + every if every and self.active else 0

    def close(self) -> None:
        """The consumer is going."""


def _number(value: bytes | None) -> int:
    return int(value) if value is not None and value.isdigit() else 0
