"""Pull requests: who waits for messages, in which order they are served, and how each request ends.

Owns the queue of one consumer. Without limits and priorities requests take turns, which the kernel does for a whole run
(`lanes`); everything else is decided message by message (`take`), in the reference's order of checks.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from headrace.api.decode import decode_next
from headrace.api.requests import NextRequest
from headrace.api.times import duration_text
from headrace.broker import statuses
from headrace.broker.lanes import Lanes, crowded_peer, plain_subscriptions
from headrace.broker.levels import level_too_high
from headrace.broker.pins import Pin
from headrace.errors import RequestError
from headrace.probes import probe
from headrace.protocol import headers, subjects

if TYPE_CHECKING:
    from headrace.broker.consumer import Consumer

#: How long it is believed that a full consumer stays full while nobody comes or goes.
_FULL_NS = 10_000_000


class Pull:
    """One request that waits."""

    __slots__ = (
        "batch",
        "bytes_left",
        "delivered",
        "expires_ns",
        "grouped",
        "heartbeat_at_ns",
        "heartbeat_ns",
        "no_wait",
        "pin_id",
        "reply",
        "request",
    )

    def __init__(self, reply: bytes, request: NextRequest, now_ns: int) -> None:
        self.reply = reply
        self.request = request
        self.batch = request.batch
        self.delivered = 0
        self.bytes_left = request.max_bytes
        self.expires_ns = now_ns + request.expires if request.expires else 0
        self.heartbeat_ns = max(request.idle_heartbeat, 0)
        self.heartbeat_at_ns = now_ns + self.heartbeat_ns if self.heartbeat_ns else 0
        self.no_wait = request.no_wait
        self.grouped = request.structured
        self.pin_id = request.id.encode()

    def left(self, status: bytes) -> bytes:
        return statuses.ended(status, self.batch, self.bytes_left)


class Pulls:
    """The requests of one consumer, oldest first."""

    __slots__ = ("_consumer", "_full", "pin", "waiting")

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.waiting: deque[Pull] = deque()
        self._full = (-1, 0)  # with so many subscriptions, until then, nothing waiting is over
        self.pin = Pin(consumer)

    # Requests coming in

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """CONSUMER.MSG.NEXT."""
        if not reply:
            return
        if header and level_too_high(header):
            self._say(reply, statuses.REQUIRED_LEVEL)
        else:
            self.request(reply, payload)

    def request(self, reply: bytes, body: bytes) -> None:
        """Take a request, or answer why not."""
        consumer = self._consumer
        now_ns = consumer.now_ns()
        consumer.active_ns = now_ns
        try:
            wanted = decode_next(body)
        except RequestError as refusal:
            self._say(reply, statuses.bad_request(refusal.description))
            return
        refused = self._over_limit(wanted) or self._bad_priority(wanted, now_ns)
        if refused:
            self._say(reply, refused)
            return
        if wanted.no_wait and (refused := self._nothing_for(wanted, now_ns)):
            self._say(reply, refused)
            return
        if len(self.waiting) >= consumer.config.max_waiting > 0:
            self._make_room(now_ns)
        if len(self.waiting) >= consumer.config.max_waiting > 0:
            probe("too many requests wait")
            if wanted.idle_heartbeat <= 0:
                self._say(reply, statuses.MAX_WAITING)
            return
        self._enqueue(Pull(reply, wanted, now_ns))
        consumer.wake()

    def _make_room(self, now_ns: int) -> None:
        """Look for requests that are over. Right after all of them were found waiting, with nobody come or gone since, that
        is not done again: who floods a full consumer must not have it go through them for each request.
        """
        there = self._consumer.hub.subscriptions
        if there == self._full[0] and now_ns < self._full[1]:
            return
        before = len(self.waiting)
        self.look(now_ns, at_end=False)
        if len(self.waiting) == before:
            self._full = (there, min(now_ns + _FULL_NS, self.next_look() or now_ns + _FULL_NS))

    def _over_limit(self, wanted: NextRequest) -> bytes:
        config = self._consumer.config
        if 0 < config.max_batch < wanted.batch:
            return statuses.exceeded(f"MaxRequestBatch of {config.max_batch}")
        if 0 < config.max_expires < wanted.expires:
            return statuses.exceeded(f"MaxRequestExpires of {duration_text(config.max_expires)}")
        if 0 < config.max_bytes < wanted.max_bytes:
            return statuses.exceeded(f"MaxRequestMaxBytes of {config.max_bytes}")
        return b""

    def _bad_priority(self, wanted: NextRequest, now_ns: int) -> bytes:
        config, policy = self._consumer.config, self._consumer.config.priority_policy
        if not wanted.structured:
            return b""
        if (wanted.min_pending or wanted.min_ack_pending) and policy != "overflow":
            return statuses.bad_request("Not a Overflow Priority consumer")
        if wanted.id and policy != "pinned_client":
            return statuses.bad_request("Not a Pinned Client Priority consumer")
        if not 0 <= wanted.priority <= 9:
            return statuses.bad_request("Priority must be between 0 and 9")
        if policy == "none":
            return b""
        if not wanted.group:
            return statuses.bad_request("Priority Group missing")
        if wanted.group not in config.priority_groups:
            return statuses.bad_request("Invalid Priority Group")
        if self.pin.id and wanted.id:
            if wanted.id.encode() != self.pin.id:
                return statuses.PIN_MISMATCH
            self.pin.renew(now_ns)
        return b""

    def _nothing_for(self, wanted: NextRequest, now_ns: int) -> bytes:
        """What a request that does not want to wait is told when there is nothing for it."""
        available = self._consumer.num_pending() + len(self._consumer.progress.queued)
        if not available:
            return b"" if wanted.expires else statuses.NO_MESSAGES
        self.look(now_ns, at_end=False)
        if available < sum(pull.batch for pull in self.waiting):
            probe("others wait already")
            return statuses.REQUESTS_PENDING
        return b""

    def _enqueue(self, pull: Pull) -> None:
        waiting = self.waiting
        if self._consumer.config.priority_policy != "prioritized":
            waiting.append(pull)
            return
        priority, place = pull.request.priority, len(waiting)
        while place and waiting[place - 1].request.priority > priority:
            place -= 1
        waiting.insert(place, pull)

    # Serving them

    def open(self) -> bool:
        waiting = self.waiting
        fair = self._consumer.config.priority_policy == "none"
        for _ in range(len(waiting) if fair else min(len(waiting), 1)):
            peer = crowded_peer(self._receivers(waiting[0]))
            if peer is None:
                return True
            probe("the one who asked does not read")
            peer.when_drained(self._consumer.wake)
            if fair:
                waiting.rotate(-1)
        return False

    def _receivers(self, pull: Pull) -> list[Any]:
        return self._consumer.hub.route(pull.reply).plain if subjects.whole(pull.reply) else []

    def lanes(self) -> Lanes | None:
        """Receivers in turn for a run of messages; None when each message has to be decided."""
        waiting, config = self.waiting, self._consumer.config
        if config.priority_policy != "none" or config.headers_only:
            return None
        bytes_max = -1
        if len(waiting) == 1:
            bytes_max = waiting[0].bytes_left if waiting[0].bytes_left > 0 else -1
        elif any(pull.bytes_left > 0 for pull in waiting):
            return None
        targets = []
        for pull in waiting:
            route = self._consumer.hub.route(pull.reply) if subjects.whole(pull.reply) else None
            target = plain_subscriptions(route) if route is not None else None
            if target is None or crowded_peer(target) is not None:
                return None
            targets.append(target)
        most = max(min(pull.batch for pull in waiting), 1) * len(waiting)
        return Lanes(targets, most, -1, bytes_max, strict=True)

    def sent_run(self, count: int, size: int, now_ns: int) -> None:
        """A run went out along `lanes`."""
        waiting = self.waiting
        ways = len(waiting)
        each, over = divmod(count, ways)
        for place, pull in enumerate(waiting):
            got = each + (place < over)
            pull.batch -= got
            pull.delivered += got
            if got and pull.heartbeat_ns:
                pull.heartbeat_at_ns = now_ns + pull.heartbeat_ns
        first = waiting[0]
        if ways == 1 and first.bytes_left > 0:
            first.bytes_left -= size
            if not first.bytes_left:
                first.batch = 0
        waiting.rotate(-over)
        if any(pull.batch <= 0 for pull in waiting):
            self._drop_done()

    def _drop_done(self) -> None:
        done = [pull for pull in self.waiting if pull.batch <= 0]
        self.waiting = deque(pull for pull in self.waiting if pull.batch > 0)
        for pull in done:
            if pull.bytes_left > 0:
                self._say(pull.reply, statuses.ended(statuses.COMPLETED, 0, pull.bytes_left))

    def send(
        self, size: int, subject: bytes, reply: bytes, header: bytes, payload: bytes, now_ns: int
    ) -> bool:
        """Send one message to whoever is next for it; False when nobody is."""
        pull = self.take(size, now_ns)
        if pull is None:
            return False
        if self._consumer.config.priority_policy == "pinned_client":
            header = headers.append(header, [(b"Nats-Pin-Id", self.pin.id)])
        hub = self._consumer.hub
        hub.deliver(pull.reply, subject, reply, header, payload)
        if pull.heartbeat_ns:
            pull.heartbeat_at_ns = now_ns + pull.heartbeat_ns
        if pull.batch <= 0 < pull.bytes_left:
            self._say(pull.reply, statuses.ended(statuses.COMPLETED, 0, pull.bytes_left))
        return True

    def take(self, size: int, now_ns: int) -> Pull | None:
        """The request that gets a message of this size; requests that cannot go on end here."""
        waiting, passed = self.waiting, 0
        while waiting and passed < len(waiting):
            pull = waiting[0]
            if pull.expires_ns and now_ns >= pull.expires_ns:
                self._end(pull.left(statuses.TIMEOUT))
            elif not self._may_have(pull, now_ns):
                passed += self._pass_over(pull)
            elif 0 < pull.bytes_left < size:
                if pull.pin_id and pull.pin_id == self.pin.id and not pull.delivered and not pull.request.id:
                    self.pin.release()
                probe("a message larger than was asked for")
                self._end(pull.left(statuses.TOO_LARGE))
            elif not self._heard(pull):
                probe("nobody is there for a message")
                waiting.popleft()
            else:
                return self._serve(pull, size)
        return None

    def _may_have(self, pull: Pull, now_ns: int) -> bool:
        policy = self._consumer.config.priority_policy
        if policy == "pinned_client":
            if not self.pin.id and not pull.pin_id and pull.grouped:
                pull.pin_id = self.pin.assign(pull.request.group, now_ns)
            return bool(self.pin.id) and pull.pin_id == self.pin.id
        if policy == "overflow":
            least, least_acks = pull.request.min_pending, pull.request.min_ack_pending
            if least > 0 or least_acks > 0:
                consumer = self._consumer
                return (0 < least <= consumer.pump.left) or (0 < least_acks <= len(consumer.progress.pending))
        return True

    def _pass_over(self, pull: Pull) -> int:
        """Not its turn: it waits on, unless it holds a pin that is no longer valid."""
        if pull.pin_id and self._consumer.config.priority_policy == "pinned_client":
            self._end(pull.left(statuses.WRONG_PIN))
            return 0
        self.waiting.rotate(-1)
        return 1

    def _serve(self, pull: Pull, size: int) -> Pull:
        if pull.bytes_left > 0:
            pull.bytes_left -= size
            if not pull.bytes_left:
                pull.batch = 1
        pull.batch -= 1
        pull.delivered += 1
        self.waiting.popleft()
        if pull.batch > 0:
            self._enqueue(pull)
        return pull

    def _heard(self, pull: Pull) -> bool:
        return self._consumer.hub.interest(pull.reply)

    # The passing of time

    def look(self, now_ns: int, *, at_end: bool) -> None:
        """End what is over and send heartbeats; `at_end` when nothing is left to deliver."""
        for pull in list(self.waiting):
            status = b""
            if pull.expires_ns and now_ns >= pull.expires_ns:
                probe("a request expires")
                status = pull.left(statuses.TIMEOUT)
            elif at_end and pull.no_wait and (not pull.expires_ns or pull.delivered):
                status = statuses.NO_MESSAGES
            elif pull.no_wait and pull.delivered and 0 < pull.heartbeat_at_ns <= now_ns:
                status = statuses.NO_MESSAGES  # it got what may be pending, and asked for no more than that
            if status or not self._heard(pull):
                self.waiting.remove(pull)
                if status:
                    self._say(pull.reply, status)
            elif pull.heartbeat_at_ns and now_ns >= pull.heartbeat_at_ns:
                self._say(pull.reply, self._consumer.heartbeat())
                pull.heartbeat_at_ns = now_ns + pull.heartbeat_ns
        if self.pin.expire(now_ns):
            self._consumer.wake()

    def next_look(self) -> int:
        """The next moment at which a request or the pin has something to do; 0 for none."""
        moments = [pull.heartbeat_at_ns or pull.expires_ns for pull in self.waiting]
        moments += [pull.expires_ns for pull in self.waiting if pull.heartbeat_at_ns]
        moments.append(self.pin.expires_ns)
        return min((moment for moment in moments if moment), default=0)

    def close(self) -> None:
        """The consumer is going: so do the requests."""
        for pull in self.waiting:
            self._say(pull.reply, statuses.DELETED)
        self.waiting.clear()

    def _end(self, status: bytes) -> None:
        self._say(self.waiting.popleft().reply, status)

    def _say(self, reply: bytes, status: bytes) -> None:
        self._consumer.hub.publish(reply, b"", status, b"")
