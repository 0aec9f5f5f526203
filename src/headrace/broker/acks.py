"""Acknowledgements: what a client says about a message it was given, and what follows from it.

The door takes everything below `$JS.ACK.` with one subscription, so that the route of an acknowledgement is always in the
kernel's cache, and finds the consumer by its name. A confirmed acknowledgement is answered when it is durable.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.api import advisories as events
from headrace.api.fields import INT64_MAX
from headrace.api.times import parse_duration
from headrace.kernel import ack_parts
from headrace.probes import probe
from headrace.protocol.bodies import UNREADABLE

if TYPE_CHECKING:
    from headrace.broker.consumer import Consumer

PATTERN = b"$JS.ACK.>"
_DONE = (b"+ACK", b"", b"+OK")
_DELETED = "Unacknowledged message was deleted"


class AckDoor:
    """Every acknowledgement of the account; `consumers` are those who take them, by stream and name."""

    __slots__ = ("consumers",)

    #: Other servers are told of each consumer instead: there may be acknowledgements that are not for us.
    announced = False

    def __init__(self) -> None:
        self.consumers: dict[bytes, Consumer] = {}

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        """One acknowledgement; 0 when it is for nobody here."""
        parts = ack_parts(subject)
        consumer = self.consumers.get(parts[0]) if parts is not None else None
        if parts is None or consumer is None:
            return 0
        _, count, seq, cseq = parts
        if payload in _DONE:
            if seq > 0:
                consumer.acks.done(seq, count, cseq, reply)
        elif seq > 0:
            consumer.acks.other(seq, count, cseq, reply, payload)
        return 1


class Acks:
    """The acknowledgements of one consumer."""

    __slots__ = ("_consumer", "_every", "_sampling")

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.configure()

    def configure(self) -> None:
        config = self._consumer.config
        self._every = config.ack_policy == "all"
        self._sampling = int(config.sample_freq.removesuffix("%") or 0)

    # Done

    def done(self, seq: int, count: int, cseq: int, reply: bytes) -> None:
        """The client is through with a message."""
        consumer = self._consumer
        progress = consumer.progress
        if seq >= progress.next_seq and not consumer.config.flow_control:
            return
        if self._sampling and seq in progress.pending:
            self._sample(seq, count, cseq)
        self._settle(seq, cseq)
        if reply:
            consumer.confirm(reply)

    def _settle(self, seq: int, cseq: int) -> None:
        consumer = self._consumer
        progress = consumer.progress
        if self._every:
            # Only the stream's order counts: a redelivery below may have raised the consumer sequence beyond this one.
            self.through(seq, max(cseq, progress.floor()[0]))
            return
        most, pending = consumer.config.max_ack_pending, len(progress.pending)
        if progress.ack(seq):
            consumer.acked([seq], 0 < most <= pending)
            return
        if consumer.releases:  # given up, or passed over since it was delivered: it is done all the same
            probe("an acknowledgement of what is not pending")
            consumer.stream.readers.release([seq], doubtful=True)
        if progress.changed:
            consumer.touch()

    def through(self, seq: int, cseq: int) -> None:
        """The client is through with everything up to a message."""
        consumer = self._consumer
        if seq <= consumer.progress.floor()[1]:
            return
        was_full = consumer.full()
        consumer.acked(consumer.progress.ack_through(seq, cseq), was_full)

    # Everything else

    def other(self, seq: int, count: int, cseq: int, reply: bytes, payload: bytes) -> None:
        """Not done: a refusal, a sign of life, the end of trying, or done and give me more."""
        consumer = self._consumer
        if payload.startswith(b"+NXT"):
            self.done(seq, count, cseq, b"")
            if reply:
                consumer.pull(reply, payload[4:])
            return
        if payload.startswith(b"-NAK"):
            self._refuse(seq, count, cseq, payload[4:].strip())
        elif payload == b"+WPI":
            self._in_progress(seq)
        elif payload.startswith(b"+TERM") and not self._terminate(seq, count, cseq, payload[5:].strip()):
            return
        if reply:
            consumer.confirm(reply)

    def _refuse(self, seq: int, count: int, cseq: int, argument: bytes) -> None:
        """Deliver it again, now or after a delay."""
        consumer = self._consumer
        progress = consumer.progress
        if seq not in progress.pending or not progress.floor()[0] < cseq <= progress.consumer_seq:
            return
        consumer.advise(events.naked, cseq, seq, count)
        now_ns = consumer.now_ns()
        delay_ns = _delay(argument) if argument else 0
        if delay_ns > 0:
            progress.queued.discard(seq)
            probe("refused for a while")
            progress.postpone(seq, now_ns + delay_ns)
            consumer.rearm()
        else:
            progress.postpone(seq, now_ns + (consumer.ack_wait(progress.count(seq)) or 0))
            progress.enqueue(seq)
            consumer.wake()
        consumer.touch()

    def _in_progress(self, seq: int) -> None:
        """It takes longer: start waiting anew."""
        consumer = self._consumer
        wait_ns = consumer.ack_wait(consumer.progress.count(seq))
        if seq in consumer.progress.pending and wait_ns:
            consumer.active_ns = now_ns = consumer.now_ns()
            consumer.progress.postpone(seq, now_ns + wait_ns)
            consumer.touch()

    def _terminate(self, seq: int, count: int, cseq: int, reason: bytes) -> bool:
        """Never deliver it again; False when it never was."""
        consumer = self._consumer
        if seq >= consumer.progress.next_seq and not consumer.config.flow_control:
            return False
        self._settle(seq, cseq)
        probe("given up by the client")
        self.tell_terminated(seq, count, cseq, reason.decode("utf-8", "replace"))
        return True

    def lost(self, seq: int) -> None:
        """A pending message has left the stream."""
        progress = self._consumer.progress
        cseq, count = progress.pending.get(seq, 0), progress.count(seq)
        progress.forget(seq)
        probe("deleted while it was pending")
        self.tell_terminated(seq, count, cseq, _DELETED)

    def tell_terminated(self, seq: int, count: int, cseq: int, reason: str) -> None:
        self._consumer.advise(events.terminated, cseq, seq, count, reason)

    def _sample(self, seq: int, count: int, cseq: int) -> None:
        """Measure how long the client took, for as many as the configuration asks."""
        if self._sampling < 100 and random.randrange(100) > self._sampling:
            return
        consumer = self._consumer
        delivered_ns = consumer.progress.delivered_at(seq, consumer.ack_wait(count))
        took_ns = consumer.now_ns() - delivered_ns
        consumer.advise(events.acked, cseq, seq, took_ns, count)


def _delay(argument: bytes) -> int:
    """The delay of a refusal in nanoseconds; what cannot be read is none."""
    try:
        if argument[:1] == b"{":
            value = msgspec.json.decode(argument, type=dict[str, Any]).get("delay", 0)
            return value if type(value) is int and abs(value) <= INT64_MAX else 0
        return parse_duration(argument.decode()) or 0
    except UNREADABLE:
        return 0
