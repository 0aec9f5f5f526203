"""The pump: moves messages from a stream's log to a consumer's receivers, as far as demand and limits allow.

One turn of the pump serves redeliveries first, then new messages in runs that the kernel encodes in one step; what needs
a decision for each message (headers only, pins, pacing, receivers inside the server) goes one by one. Invariant: only
what is durable is delivered (`log.committed_seq`), and a turn is bounded, so that others get theirs.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import numpy as np

from headrace.broker.pace import Pace
from headrace.broker.progress_codec import EMPTY, Seqs
from headrace.broker.push import Push
from headrace.errors import Corrupt
from headrace.kernel import encode
from headrace.protocol import headers

if TYPE_CHECKING:
    from headrace.broker.consumer import Consumer

Message = tuple[int, bytes, bytes, bytes, int]  # time, subject, header, payload, TTL

TURN_BYTES = 1024 * 1024
VIEW_BYTES = 256 * 1024
LOOK_MIN, LOOK_MAX = 1024, 1 << 20
#: What a message counts against a turn besides its own size.
OVERHEAD = 64


class Verdict(enum.Enum):
    """Why a turn ended."""

    SHUT = enum.auto()  # nobody takes more
    FULL = enum.auto()  # too many wait for their acknowledgement
    DRY = enum.auto()  # everything there is was delivered
    LATER = enum.auto()  # pacing: at `Pace.at_ns`
    MORE = enum.auto()  # the turn was used up


class Pump:
    """The deliveries of one consumer. `left` is how many messages are still to be delivered for the first time."""

    __slots__ = ("_ahead", "_at", "_consumer", "_look", "left", "pace")

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._look = LOOK_MIN
        self._ahead: Seqs = EMPTY
        self._at = 0
        self.left = 0
        self.pace = Pace(consumer)

    def turn(self, now_ns: int) -> Verdict:
        """Deliver until something stops it."""
        consumer = self._consumer
        outlet, progress = consumer.outlet, consumer.progress
        budget = TURN_BYTES
        self._ahead, self._at = EMPTY, 0
        self.left = consumer.backlog.durable()
        while True:
            if not outlet.open():
                return Verdict.SHUT
            if budget <= 0:
                return Verdict.MORE
            if progress.queued:
                used = self._again(now_ns)
            elif consumer.full():
                return Verdict.FULL
            else:
                used = self._onward(now_ns)
            if isinstance(used, Verdict):
                return used
            budget -= used

    # New messages

    def _onward(self, now_ns: int) -> int | Verdict:
        """A run of new messages."""
        consumer = self._consumer
        if self._at >= len(self._ahead) and not self._look_ahead():
            return Verdict.DRY
        outlet = consumer.outlet
        if isinstance(outlet, Push) and outlet.taker is not None and not self.pace.active:
            return self._hand_over(outlet, now_ns)
        lanes = None if self.pace.active else consumer.outlet.lanes()
        if lanes is None:
            return self._one_new(now_ns)
        progress = consumer.progress
        view = self._view(int(self._ahead[self._at]))
        most = min(lanes.most, consumer.room())
        cseq = progress.consumer_seq + 1
        count, size = encode(
            lanes.targets, view, self._ahead, self._at, most, consumer.ack_first, cseq, self.left, lanes.base,
            lanes.bytes_max, lanes.strict,
        )  # fmt: skip
        if not count:
            return self._one_new(now_ns)
        seqs = self._ahead[self._at : self._at + count]
        self._delivered(seqs, now_ns)
        consumer.outlet.sent_run(count, size, now_ns)
        return size + count * OVERHEAD

    def _hand_over(self, outlet: Push, now_ns: int) -> int | Verdict:
        """A run to a receiver inside the server, as records."""
        consumer = self._consumer
        view = self._view(int(self._ahead[self._at]))
        count, size = outlet.hand_over(view, self._ahead, self._at, consumer.room(), self.left)
        if not count:
            return self._one_new(now_ns)
        self._delivered(self._ahead[self._at : self._at + count], now_ns)
        outlet.sent_run(count, size, now_ns)
        return size + count * OVERHEAD

    def _view(self, seq: int) -> memoryview:
        try:
            return self._consumer.stream.log.view(seq, VIEW_BYTES)[0]
        except Corrupt:
            return memoryview(b"")

    def _read(self, seq: int) -> Message | None:
        """A message; what cannot be read any more is passed over, the store keeps it and tells of it."""
        try:
            return self._consumer.stream.log.get(seq)
        except Corrupt:
            return None

    def _look_ahead(self) -> bool:
        """Find the sequences to deliver next; whether there are any."""
        consumer = self._consumer
        log, progress = consumer.stream.log, consumer.progress
        if len(progress.initial):
            self._ahead, self._at = self._live(progress.initial), 0
            progress.initial = self._ahead
            if len(self._ahead):
                return True
            progress.next_seq = max(progress.next_seq, progress.resume + 1)
        committed = log.committed_seq
        first = log.next(consumer.filter, progress.next_seq)
        if not first or first > committed:
            return False
        self._ahead = log.seqs(consumer.filter, first, min(committed, first + self._look - 1))
        self._at = 0
        self._look = LOOK_MIN if 4 * len(self._ahead) > self._look else min(4 * self._look, LOOK_MAX)
        return True

    def _live(self, seqs: Seqs) -> Seqs:
        log = self._consumer.stream.log
        if log.messages == log.last_seq - log.first_seq + 1 and int(seqs[0]) >= log.first_seq:
            return seqs
        return np.array([seq for seq in seqs.tolist() if log.next(None, seq) == seq], dtype=np.uint64)

    def _delivered(self, seqs: Seqs, now_ns: int) -> None:
        consumer = self._consumer
        unacknowledged = consumer.config.ack_policy == "none"
        consumer.progress.deliver_run(seqs, now_ns, consumer.ack_wait(1), acked=unacknowledged)
        self._at += len(seqs)
        self.left = max(self.left - len(seqs), 0)
        consumer.backlog.delivered(len(seqs))
        consumer.active_ns = now_ns
        if not unacknowledged:
            consumer.stream.readers.holds(consumer)
        elif consumer.releases:
            consumer.stream.readers.release(seqs.tolist())

    def _one_new(self, now_ns: int) -> int | Verdict:
        seq = int(self._ahead[self._at])
        message = self._read(seq)
        if message is None:
            self._at += 1
            self._consumer.progress.pass_over(seq)
            return 0
        used = self._send(seq, message, 1, now_ns, fresh=True)
        if not isinstance(used, Verdict):
            self._delivered(self._ahead[self._at : self._at + 1], now_ns)
        return used

    # Redeliveries

    def _again(self, now_ns: int) -> int | Verdict:
        """Deliver one message once more, or find that it cannot be."""
        consumer = self._consumer
        progress = consumer.progress
        seq = progress.dequeue()
        if not seq or seq not in progress.pending:
            return 0
        count = progress.count(seq) + 1
        if 0 < consumer.config.max_deliver < count:
            consumer.exhausted(seq, count - 1)
            return 0
        message = self._read(seq)
        if message is None:
            consumer.lost(seq)
            return 0
        used = self._send(seq, message, count, now_ns, fresh=False)
        if isinstance(used, Verdict):
            progress.requeue(seq)
            return used
        progress.set_count(seq, count)
        progress.deliver_again(seq, now_ns, consumer.ack_wait(count))
        consumer.active_ns = now_ns
        return used

    # One message

    def _send(self, seq: int, message: Message, count: int, now_ns: int, *, fresh: bool) -> int | Verdict:
        """Hand a message to the receivers; how large it was, or why not."""
        consumer = self._consumer
        time_ns, subject, header, payload, _ = message
        cseq = consumer.progress.consumer_seq + 1
        left = max(self.left - fresh, 0)
        reply = b"%s%d.%d.%d.%d.%d" % (consumer.ack_stem, count, seq, cseq, time_ns, left)
        if consumer.config.headers_only:
            header = headers.append(header, [(b"Nats-Msg-Size", b"%d" % len(payload))])
            payload = b""
        size = len(subject) + len(reply) + len(header) + len(payload)
        if self.pace.active and not self.pace.may_send(time_ns, size, now_ns, replays=fresh):
            return Verdict.LATER
        if not consumer.outlet.send(size, subject, reply, header, payload, now_ns):
            return Verdict.SHUT
        if self.pace.active:
            self.pace.sent(time_ns, size, now_ns)
        return size + OVERHEAD
