"""A link: one mirror or source at work. It sets up a consumer at the origin, and starts anew when something is missing
from what arrives, or nothing does.

Owns the conversation and its times; what is done with what arrives is for `arrivals`, what a copy looks like is the
intake's, how requests are worded the origin's.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.api import responses
from headrace.broker.approach import Answer, approach_to
from headrace.broker.arrivals import Arrivals
from headrace.broker.inbox import Inbox
from headrace.broker.intake import Intake
from headrace.broker.origin import IDENTITY, Ask, Start
from headrace.broker.ownership import in_use
from headrace.broker.road import Road
from headrace.errors import RequestError, StoreError
from headrace.probes import probe
from headrace.protocol import headers
from headrace.protocol.bodies import UNREADABLE

if TYPE_CHECKING:
    from headrace.broker.jetstream import JetStream
    from headrace.broker.timers import Handle

SECOND = 1_000_000_000
THROTTLE_NS = 2 * SECOND
BACKOFF_NS = 10 * SECOND
BACKOFF_NS_MAX = 120 * SECOND
SILENCE_NS = 10 * SECOND
_WRONG_IDENTITY = 10225


def jitter_ns() -> int:
    return random.randrange(100, 200) * 1_000_000


class Link:
    """The copying from one origin."""

    __slots__ = (
        "_arrivals",
        "_asked_ns",
        "_consumer",
        "_failures",
        "_farewells",
        "_inbox",
        "_jetstream",
        "_listening",
        "_probing",
        "_resume",
        "_road",
        "_sink",
        "_timer",
        "_watch",
        "approach",
        "blocked",
        "error",
        "intake",
    )

    def __init__(self, jetstream: JetStream, intake: Intake) -> None:
        self._jetstream = jetstream
        self.intake = intake
        self.approach = approach_to(intake.origin)
        self.error: RequestError | None = None
        self.blocked = False  # the stream did not take a message
        self._arrivals = Arrivals(jetstream, self, intake)
        self._resume = -1  # up to where the link before this one told its origin that all is stored
        self._asked_ns = 0
        self._failures = 0
        self._farewells: list[bytes] = []
        self._inbox: Inbox | None = None
        self._listening = b""
        self._sink: Arrivals | Link = self._arrivals
        self._probing = False
        self._consumer = b""
        self._timer: Handle | None = None
        self._watch: Handle | None = None
        self._road = Road(jetstream.hub, self._road_reopened)

    # Life

    def start(self) -> None:
        """Begin at the end of this turn."""
        self._set_timer(0)
        self._road.watch(self.intake.origin.road)

    def stop(self) -> None:
        """Ask and take nothing more."""
        if self._jetstream.copiers.get(self._claim) is self:
            del self._jetstream.copiers[self._claim]
        self._quiet()
        self._unlisten()
        self._road.leave()

    def _road_reopened(self) -> None:
        """What was under way is gone: set up anew, whatever the wait was going to be."""
        probe("the way to the origin is open again")
        self._failures = 0
        self.start_anew()

    def retire(self) -> None:
        """The source was removed: its consumer goes too, if it was ours to make."""
        self.stop()
        try:
            self.intake.end()
        except (RequestError, StoreError):
            pass  # the stream takes nothing more, or is going itself
        if self._deletes:
            self._send_delete(self.intake.origin.delete(self.consumer))

    def succeed(self, old: Link) -> None:
        """Go on where another way of reading the same origin stops. Its consumer stays until there is a new one,
        because what it has not acknowledged could be lost with it; that is delivered again, dropped and acknowledged.
        """
        old.stop()
        self.intake.adopt(old.intake)
        self._resume = old._arrivals.acked
        if old._deletes and old.consumer != self.consumer:
            self._farewells.append(old.intake.origin.delete(old.consumer))
        self._farewells += old._farewells

    @property
    def consumer(self) -> bytes:
        """The name of the consumer at the origin, as far as it is known."""
        return self._consumer or self.approach.name.encode()

    @property
    def _deletes(self) -> bool:
        """Whether the consumer goes with this link: not if another stream reads with it."""
        return self.approach.deletes and self._claim not in self._jetstream.copiers

    @property
    def pending(self) -> int:
        """What the origin last said was left; -1 before it said anything."""
        return self._arrivals.pending

    def _send_delete(self, subject: bytes) -> None:
        self._jetstream.hub.publish(subject, b"", b"", b"")

    def shown(self, now_ns: int) -> responses.Origin:
        """For the stream's info."""
        entry, arrivals = self.intake.origin.entry, self._arrivals
        return responses.Origin(
            entry.name,
            entry.external,
            arrivals.lag,
            0 if self.intake.origin.mirror else self.intake.seq,
            now_ns - arrivals.heard_ns if arrivals.heard_ns else -1,
            self.error,
            entry.filter_subject,
            entry.subject_transforms,
        )

    # Setting up

    def _setup(self) -> None:
        self._quiet()
        self._unlisten()
        self.error = None
        self.blocked = False
        self.intake.rewind()
        self._asked_ns = self._now()
        if self._is_refused():
            return
        start = self.intake.start()
        if 0 <= self._resume < start.seq:
            start = Start(self._resume + 1)
        self._ask(self.approach.begin(start, self.intake.identity))

    @property
    def _claim(self) -> tuple[bytes, str]:
        """The consumer that the configuration names: two links that read with one take messages from each other."""
        consumer = self.intake.origin.entry.consumer
        return self.intake.origin.road, consumer.name if consumer is not None else ""

    def _is_refused(self) -> bool:
        """Whether another stream of this account reads with the consumer; then wait, and leave the consumer alone."""
        origin, holder = self.intake.origin, self._jetstream.copiers.get(self._claim)
        if origin.entry.consumer is None or holder is None or holder is self:
            return False
        self.error = in_use(origin.entry.consumer.name, origin.entry.name, holder.intake.origin.owner)
        self._failures += 1
        self.start_anew(min(BACKOFF_NS * self._failures, BACKOFF_NS_MAX))
        return True

    def _ask(self, ask: Ask) -> None:
        hub = self._jetstream.hub
        self._inbox = Inbox(hub, self._answered)
        self._timer = self._jetstream.timers.after(ask.wait_ns, self._unanswered)
        hub.publish(ask.subject, self._inbox.subject, ask.header, ask.body)

    def _unanswered(self) -> None:
        probe("the origin does not answer")
        self._quiet()
        self._refused(0)

    def _answered(self, header: bytes, payload: bytes) -> None:
        self._quiet()
        try:
            answer = msgspec.json.decode(payload, type=Answer)
            answer.body = payload
        except UNREADABLE:
            self._refused(0)
            return
        if answer.error is not None or answer.config is None:
            problem = answer.error
            if problem is not None:
                self.error = RequestError(problem.code, problem.err_code, problem.description)
            self._refused(problem.err_code if problem is not None else 0)
            return
        try:
            ask = self.approach.accepted(answer)
        except RequestError as refusal:
            self.error = refusal
            self._fail()
            return
        if ask is not None:
            self._ask(ask)
        else:
            self._ready(answer, headers.get(header, IDENTITY) if header else None)

    def _refused(self, err_code: int) -> None:
        if err_code == _WRONG_IDENTITY:
            self.intake.forget()
            self.start_anew()
            return
        ask = self.approach.refused(err_code)
        if ask is None:
            self._fail()
            return
        self.error = None
        self._ask(ask)

    def _ready(self, answer: Answer, identity: bytes | None) -> None:
        """The consumer is there: listen to what it delivers."""
        assert answer.config is not None
        if self._is_refused():
            return
        if self.intake.origin.entry.consumer is not None:
            self._jetstream.copiers[self._claim] = self
        known, intake = identity.decode() if identity else "", self.intake
        if known and intake.identity and known != intake.identity:
            intake.forget()
        self._failures = 0
        self.error = None
        self._consumer = answer.name.encode()
        self._resume = -1
        intake.reached(answer.delivered.stream_seq, known)
        while self._farewells:
            self._send_delete(self._farewells.pop())
        self._arrivals.begin(self._consumer, answer.delivered.stream_seq)
        self._listen(self.approach.deliver_subject(answer.config), self._arrivals)
        self._watch = self._jetstream.timers.after(SILENCE_NS, self._look)

    def _listen(self, subject: bytes, sink: Arrivals | Link) -> None:
        self._listening, self._sink = subject, sink
        if subject:
            self._jetstream.hub.subscribe_internal(subject, sink)

    def _unlisten(self) -> None:
        subject, self._listening = self._listening, b""
        self._probing = self._arrivals.open = False
        if subject:
            self._jetstream.hub.unsubscribe_internal(subject, self._sink)

    # Starting anew

    def _fail(self) -> None:
        """Try again later, and later each time; meanwhile listen for a consumer that others have to make."""
        self._failures += 1
        self.start_anew(min(BACKOFF_NS * self._failures, BACKOFF_NS_MAX))
        if self.approach.probes:
            self._listen(self.approach.probes, self)
            self._probing = True

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Something is delivered by a consumer that was not there: it is now."""
        if self._probing:
            self._probing = False
            self._set_timer(jitter_ns())

    def start_anew(self, backoff_ns: int = 0) -> None:
        """Set up anew, as soon as that is decent."""
        self._quiet()
        self._unlisten()
        delay_ns = max(self._asked_ns + THROTTLE_NS - self._now(), 0) + backoff_ns
        if delay_ns or not self.intake.origin.mirror:
            delay_ns += jitter_ns()
        self._set_timer(delay_ns)

    def block(self) -> None:
        """The stream cannot take what arrives; the origin will be asked for it again."""
        probe("a copy cannot be stored")
        self.start_anew()
        self.blocked = True

    def relieved(self) -> None:
        """The stream has room again."""
        if self.blocked:
            self.blocked = False
            self._set_timer(0)

    def _set_timer(self, delay_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._jetstream.timers.after(delay_ns, self._setup)

    def _look(self) -> None:
        """Every so often: is anybody there?"""
        self._watch = None
        if self._now() - self._arrivals.heard_ns > SILENCE_NS:
            probe("the origin is silent")
            self.start_anew()
        else:
            self._watch = self._jetstream.timers.after(SILENCE_NS, self._look)

    def _quiet(self) -> None:
        """Drop the timers and the answer that was expected."""
        for timer in (self._timer, self._watch):
            if timer is not None:
                timer.cancel()
        self._timer = self._watch = None
        if self._inbox is not None:
            self._inbox.close()
            self._inbox = None

    def _now(self) -> int:
        return self._jetstream.timers.now_ns()
