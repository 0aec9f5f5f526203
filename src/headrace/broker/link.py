"""A link: one mirror or source at work. It sets up a consumer at the origin, checks that nothing is missing from what
arrives, has it stored, and starts anew when something is.

Owns the conversation and its times; what a copy looks like is the intake's, how requests are worded the origin's.
Invariants: a message is stored once and in order; a flow-control request is answered only when everything before it is
durable here, because that answer lets the origin forget.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.api import responses
from headrace.broker.approach import Answer, approach_to
from headrace.broker.deliveries import delivery_of, records_of
from headrace.broker.inbox import Inbox
from headrace.broker.intake import Intake
from headrace.broker.origin import IDENTITY, Ask, Start
from headrace.broker.road import Road
from headrace.errors import RequestError, StoreError
from headrace.probes import probe
from headrace.protocol import headers
from headrace.protocol.bodies import UNREADABLE

if TYPE_CHECKING:
    from headrace.broker.jetstream import JetStream
    from headrace.broker.progress_codec import Seqs
    from headrace.broker.timers import Handle

SECOND = 1_000_000_000
THROTTLE_NS = 2 * SECOND
BACKOFF_NS = 10 * SECOND
BACKOFF_NS_MAX = 120 * SECOND
SILENCE_NS = 10 * SECOND
_STATUS = b"NATS/1.0 100 "
_STALLED = b"Nats-Consumer-Stalled"
_LAST_CONSUMER = b"Nats-Last-Consumer"
_WRONG_IDENTITY = 10225


def jitter_ns() -> int:
    return random.randrange(100, 200) * 1_000_000


class Link:
    """The copying from one origin."""

    __slots__ = (
        "_acked",
        "_asked_ns",
        "_consumer",
        "_done",
        "_dseq",
        "_failures",
        "_farewells",
        "_inbox",
        "_jetstream",
        "_listening",
        "_probing",
        "_resume",
        "_road",
        "_stem",
        "_timer",
        "_watch",
        "approach",
        "blocked",
        "error",
        "heard_ns",
        "intake",
        "lag",
        "pending",
    )

    def __init__(self, jetstream: JetStream, intake: Intake) -> None:
        self._jetstream = jetstream
        self.intake = intake
        self.approach = approach_to(intake.origin)
        self.error: RequestError | None = None
        self.lag = 0
        self.pending = -1  # what the origin last said was left; -1 before it said anything
        self.heard_ns = 0
        self.blocked = False  # the stream did not take a message
        self._acked = (
            -1
        )  # the origin was told that everything up to this is stored; -1 before it said where it begins
        self._resume = -1  # the same of the link before this one
        self._asked_ns = 0
        self._failures = 0
        self._farewells: list[bytes] = []
        self._inbox: Inbox | None = None
        self._listening = b""
        self._probing = False
        self._consumer = b""
        self._stem = b"$JS.ACK."  # what numbers a message that is delivered for the first time begins with
        self._dseq = 0
        self._done = (0, 0)  # consumer and stream sequence up to which everything is stored
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
        self._quiet()
        self._unlisten()
        self._road.leave()

    def _road_reopened(self) -> None:
        """What was under way is gone: set up anew, whatever the wait was going to be."""
        probe("the way to the origin is open again")
        self._failures = 0
        self._again()

    def retire(self) -> None:
        """The source was removed: its consumer goes too, if it was ours to make."""
        self.stop()
        try:
            self.intake.end()
        except (RequestError, StoreError):
            pass  # the stream takes nothing more, or is going itself
        if self.approach.deletes:
            self._send_delete(self.intake.origin.delete(self.consumer))

    def succeed(self, old: Link) -> None:
        """Go on where another way of reading the same origin stops. Its consumer stays until there is a new one,
        because what it has not acknowledged could be lost with it; that is delivered again, dropped and acknowledged.
        """
        old.stop()
        self.intake.adopt(old.intake)
        self._resume = old._acked
        if old.approach.deletes and old.consumer != self.consumer:
            self._farewells.append(old.intake.origin.delete(old.consumer))
        self._farewells += old._farewells

    @property
    def consumer(self) -> bytes:
        """The name of the consumer at the origin, as far as it is known."""
        return self._consumer or self.approach.name.encode()

    def _send_delete(self, subject: bytes) -> None:
        self._jetstream.hub.publish(subject, b"", b"", b"")

    def shown(self, now_ns: int) -> responses.Origin:
        """For the stream's info."""
        entry = self.intake.origin.entry
        return responses.Origin(
            entry.name,
            entry.external,
            self.lag,
            0 if self.intake.origin.mirror else self.intake.seq,
            now_ns - self.heard_ns if self.heard_ns else -1,
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
        start = self.intake.start()
        if 0 <= self._resume < start.seq:
            start = Start(self._resume + 1)
        self._ask(self.approach.begin(start, self.intake.identity))

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
            self._again()
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
        known, intake = identity.decode() if identity else "", self.intake
        if known and intake.identity and known != intake.identity:
            intake.forget()
        self._failures = 0
        self.error = None
        self._consumer = answer.name.encode()
        self._stem = b"$JS.ACK.%s.%s.1." % (intake.origin.entry.name.encode(), self._consumer)
        self._dseq = 0
        self._resume = -1
        self._acked = answer.delivered.stream_seq
        self._done = (0, self._acked)
        intake.reached(answer.delivered.stream_seq, known)
        while self._farewells:
            self._send_delete(self._farewells.pop())
        self._listen(self.approach.deliver_subject(answer.config))
        self._watch = self._jetstream.timers.after(SILENCE_NS, self._look)

    def _listen(self, subject: bytes) -> None:
        self._unlisten()
        self._listening = subject
        if subject:
            self._jetstream.hub.subscribe_internal(subject, self)

    def _unlisten(self) -> None:
        subject, self._listening = self._listening, b""
        self._probing = False
        if subject:
            self._jetstream.hub.unsubscribe_internal(subject, self)

    # Starting anew

    def _fail(self) -> None:
        """Try again later, and later each time; meanwhile listen for a consumer that others have to make."""
        self._failures += 1
        self._again(min(BACKOFF_NS * self._failures, BACKOFF_NS_MAX))
        if self.approach.probes:
            self._listen(self.approach.probes)
            self._probing = True

    def _again(self, backoff_ns: int = 0) -> None:
        """Set up anew, as soon as that is decent."""
        self._quiet()
        self._unlisten()
        delay_ns = max(self._asked_ns + THROTTLE_NS - self._now(), 0) + backoff_ns
        if delay_ns or not self.intake.origin.mirror:
            delay_ns += jitter_ns()
        self._set_timer(delay_ns)

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
        if self._now() - self.heard_ns > SILENCE_NS:
            probe("the origin is silent")
            self._again()
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

    # What arrives

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """A message or a status on the deliver subject."""
        if self._probing:
            self._probing = False
            self._set_timer(jitter_ns())
        if self._timer is not None:
            return  # about to start anew
        self.heard_ns = self._now()
        if not payload and header.startswith(_STATUS):
            if reply:
                self._flow_request(reply)
            else:
                self._heartbeat(header)
            return
        if reply.startswith(self._stem):
            numbers = reply[len(self._stem) :].split(b".")
            if len(numbers) == 4 and all(map(bytes.isdigit, numbers)):
                seq, dseq, time_ns, pending = map(int, numbers)
                self._take(seq, dseq, time_ns, pending, subject, header, payload)
            return
        delivery = delivery_of(reply)
        if delivery is not None and delivery.consumer == self._consumer and delivery.times <= 1:
            _, _, seq, dseq, time_ns, pending = delivery
            self._take(seq, dseq, time_ns, pending, subject, header, payload)

    def take_run(
        self,
        ack: bytes,
        view: memoryview,
        seqs: Seqs,
        at: int,
        most: int,
        dseq: int,
        pending: int,
        size_max: int,
    ) -> tuple[int, int]:
        """What `offer` does for a run of stored records of an origin in this server; how many were taken and their size.

        The records are those of `view` that are in `seqs` from `at` on; the first has consumer sequence `dseq`. `ack` is the
        acknowledgement subject up to the stream sequence.
        """
        if self._timer is not None or dseq != self._dseq + 1 or ack.split(b".")[3] != self._consumer:
            return 0, 0
        if int(seqs[at]) <= self.intake.received:
            return 0, 0
        self.heard_ns = self._now()
        count = size = 0
        take = self.intake.take
        try:
            for seq, time_ns, subject, header, payload in records_of(view, seqs, at, most):
                take(seq, time_ns, subject, header, payload)
                count += 1
                size += len(header) + len(payload)
                if 0 <= size_max < size + count * _OVERHEAD:
                    break
        except (RequestError, StoreError):
            self._blocked()
        if count:
            self._taken(self._dseq + count, int(seqs[at + count - 1]), pending - count)
        return count, size + count * _OVERHEAD

    def _take(
        self,
        seq: int,
        dseq: int,
        time_ns: int,
        pending: int,
        subject: bytes,
        header: bytes,
        payload: bytes,
    ) -> None:
        """Gap detection: sourcing.md, table 7.5, except that a source starts anew like a mirror when the consumer's count
        goes back. The reference waits for a heartbeat, whose count may by then be the one it knows.
        """
        intake, following = self.intake, self._dseq + 1
        if seq <= intake.received:
            if dseq == following:
                self._counted(following, seq)
            elif dseq < following:
                probe("the origin counts anew")
                self._again()  # somebody reset the consumer: it counts from one again
            return
        if dseq != following and not (intake.origin.mirror and seq == intake.seq + 1):
            probe("a gap in what arrives")
            self._again()
            return
        try:
            intake.take(seq, time_ns, subject, header, payload)
        except (RequestError, StoreError):
            self._blocked()
            return
        self._taken(dseq, seq, pending)

    def _taken(self, dseq: int, seq: int, pending: int) -> None:
        self._counted(dseq, seq)
        self.pending = pending
        self.lag = pending - 1 if pending > 0 else 0

    def _counted(self, dseq: int, seq: int) -> None:
        self._dseq = dseq
        if self.intake.stored >= seq:
            self._done = (dseq, seq)

    def _blocked(self) -> None:
        """The stream cannot take it now; the origin will be asked for it again."""
        probe("a copy cannot be stored")
        self._again()
        self.blocked = True

    def _heartbeat(self, header: bytes) -> None:
        last = headers.get(header, _LAST_CONSUMER) or b""
        if not last.isdigit():
            return
        if int(last) not in (0, self._dseq):
            probe("a gap that a heartbeat tells of")
            self._again()
            return
        stalled = headers.get(header, _STALLED)
        try:
            # With nothing left to come, or nothing for long, what is missing of a batch will not come either.
            self.intake.give_up(idle=not stalled and self.pending == 0)
        except (RequestError, StoreError):
            self._blocked()
            return
        if self.intake.stored > self._done[1]:
            self._done = (self._dseq, self.intake.stored)
        if stalled:  # also before the first delivery: a reset consumer still waits for what it asked before
            self._jetstream.ticker.send_settled(stalled, b"", b"", b"")

    def _flow_request(self, reply: bytes) -> None:
        """Everything that came before it becomes durable, then the answer leaves."""
        block = b"NATS/1.0\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n"
        self._jetstream.ticker.send_settled(reply, b"", block % self._done, b"")
        self._acked = max(self._acked, self._done[1])


#: What a message of a run counts besides header and payload: deliver subject and acknowledgement subject.
_OVERHEAD = 100
