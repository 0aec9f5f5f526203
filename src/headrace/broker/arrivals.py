"""What an origin delivers to a link: nothing may be missing, everything is stored once and in order.

Owns the count of what came and what of it is stored. Invariant: a flow-control request is answered only when everything
before it is durable here, because that answer lets the origin forget. How the consumer is made is the link's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.deliveries import delivery_of, records_of
from headrace.broker.intake import Intake
from headrace.errors import RequestError, StoreError
from headrace.probes import probe
from headrace.protocol import headers

if TYPE_CHECKING:
    from headrace.broker.jetstream import JetStream
    from headrace.broker.link import Link
    from headrace.broker.progress_codec import Seqs

_STATUS = b"NATS/1.0 100 "
_STALLED = b"Nats-Consumer-Stalled"
_LAST_CONSUMER = b"Nats-Last-Consumer"
#: What a message of a run counts besides header and payload: deliver subject and acknowledgement subject.
_OVERHEAD = 100


class Arrivals:
    """The deliveries of one consumer after another."""

    __slots__ = (
        "_consumer",
        "_done",
        "_dseq",
        "_intake",
        "_jetstream",
        "_link",
        "_stem",
        "acked",
        "heard_ns",
        "lag",
        "open",
        "pending",
    )

    def __init__(self, jetstream: JetStream, link: Link, intake: Intake) -> None:
        self._jetstream = jetstream
        self._link = link
        self._intake = intake
        self.open = False  # closed while the link starts anew
        self.lag = 0
        self.pending = -1  # what the origin last said was left; -1 before it said anything
        self.heard_ns = 0
        #: The origin was told that everything up to this is stored; -1 before it said where it begins.
        self.acked = -1
        self._consumer = b""
        self._stem = b"$JS.ACK."  # what numbers a message that is delivered for the first time begins with
        self._dseq = 0
        self._done = (0, 0)  # consumer and stream sequence up to which everything is stored

    def begin(self, consumer: bytes, reached: int) -> None:
        """From now on take what this consumer delivers; it has delivered everything up to `reached`."""
        self._consumer = consumer
        self._stem = b"$JS.ACK.%s.%s.1." % (self._intake.origin.entry.name.encode(), consumer)
        self._dseq = 0
        self.acked = reached
        self._done = (0, reached)
        self.open = True

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """A message or a status on the deliver subject."""
        if not self.open:
            return
        self.heard_ns = self._jetstream.timers.now_ns()
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
        if not self.open or dseq != self._dseq + 1 or ack.split(b".")[3] != self._consumer:
            return 0, 0
        if int(seqs[at]) <= self._intake.received:
            return 0, 0
        self.heard_ns = self._jetstream.timers.now_ns()
        count = size = 0
        take = self._intake.take
        try:
            for seq, time_ns, subject, header, payload in records_of(view, seqs, at, most):
                take(seq, time_ns, subject, header, payload)
                count += 1
                size += len(header) + len(payload)
                if 0 <= size_max < size + count * _OVERHEAD:
                    break
        except (RequestError, StoreError):
            self._link.block()
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
        intake, following = self._intake, self._dseq + 1
        if seq <= intake.received:
            if dseq == following:
                self._counted(following, seq)
            elif dseq < following:
                probe("the origin counts anew")
                self._link.start_anew()  # somebody reset the consumer: it counts from one again
            return
        if dseq != following and not (intake.origin.mirror and seq == intake.seq + 1):
            probe("a gap in what arrives")
            self._link.start_anew()
            return
        try:
            intake.take(seq, time_ns, subject, header, payload)
        except (RequestError, StoreError):
            self._link.block()
            return
        self._taken(dseq, seq, pending)

    def _taken(self, dseq: int, seq: int, pending: int) -> None:
        self._counted(dseq, seq)
        self.pending = pending
        self.lag = pending - 1 if pending > 0 else 0

    def _counted(self, dseq: int, seq: int) -> None:
        self._dseq = dseq
        if self._intake.stored >= seq:
            self._done = (dseq, seq)

    def _heartbeat(self, header: bytes) -> None:
        last = headers.get(header, _LAST_CONSUMER) or b""
        if not last.isdigit():
            return
        if int(last) not in (0, self._dseq):
            probe("a gap that a heartbeat tells of")
            self._link.start_anew()
            return
        stalled = headers.get(header, _STALLED)
        try:
            # With nothing left to come, or nothing for long, what is missing of a batch will not come either.
            self._intake.give_up(idle=not stalled and self.pending == 0)
        except (RequestError, StoreError):
            self._link.block()
            return
        if self._intake.stored > self._done[1]:
            self._done = (self._dseq, self._intake.stored)
        if stalled:  # also before the first delivery: a reset consumer still waits for what it asked before
            self._jetstream.ticker.send_settled(stalled, b"", b"", b"")

    def _flow_request(self, reply: bytes) -> None:
        """Everything that came before it becomes durable, then the answer leaves."""
        block = b"NATS/1.0\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n"
        self._jetstream.ticker.send_settled(reply, b"", block % self._done, b"")
        self.acked = max(self.acked, self._done[1])
