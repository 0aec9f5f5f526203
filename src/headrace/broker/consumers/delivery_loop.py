"""The delivery loop: moves messages from a stream's log to a consumer's receivers, as far as demand and limits allow.

One run serves redeliveries first, then new messages in batches that the compiled core encodes in one step; messages that
need a decision each (headers only, pinned client, rate limit, receivers inside the server) go one by one. Invariant:
only durable messages are delivered (`log.committed_seq`), and a run is bounded, so that other consumers get their turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace._native import encode_deliveries
from headrace.broker.consumers.delivery_mode import RunDelivery
from headrace.broker.consumers.stop_reason import StopReason
from headrace.errors import CorruptData
from headrace.protocol import headers
from headrace.storage.sequence_arrays import NO_SEQS, Seqs

if TYPE_CHECKING:
    from headrace.broker.consumers.ack_state import AckState
    from headrace.broker.consumers.consumer_context import ConsumerContext
    from headrace.broker.consumers.delivery_rate import RateLimiter
    from headrace.broker.consumers.redelivery import Redelivery

StoredMessage = tuple[int, bytes, bytes, bytes, int]  # time, subject, header, payload, TTL

BYTES_PER_RUN = 1024 * 1024
VIEW_BYTES = 256 * 1024
LOOKAHEAD_MIN, LOOKAHEAD_MAX = 1024, 1 << 20
#: What each message counts against the budget of a run besides its own size.
MESSAGE_OVERHEAD = 64
#: The same for a message that the compiled core does not encode: it costs more time, whatever its size.
SINGLE_OVERHEAD = 4096
#: Maximum number of messages that a receiver inside the server gets at a time; it stores each of them.
INTERNAL_RUN_MAX = 1024


class DeliveryLoop:
    """Delivers for one consumer. `num_pending` is how many messages have not been delivered yet."""

    __slots__ = (
        "_ack_state",
        "_consumer",
        "_consumer_set",
        "_log",
        "_lookahead",
        "_next_index",
        "_next_seqs",
        "_rate_limiter",
        "_redelivery",
        "num_pending",
    )

    def __init__(self, consumer: ConsumerContext, redelivery: Redelivery, rate_limiter: RateLimiter) -> None:
        self._consumer = consumer
        self._log = consumer.log
        self._ack_state = consumer.ack_state
        self._consumer_set = consumer.consumer_set
        self._redelivery = redelivery
        self._rate_limiter = rate_limiter
        self._lookahead = LOOKAHEAD_MIN
        self._next_seqs: Seqs = NO_SEQS
        self._next_index = 0
        self.num_pending = 0

    def run(self, now_ns: int) -> StopReason:
        """Deliver until something stops it; return the reason."""
        consumer = self._consumer
        delivery_mode, ack_state = consumer.delivery_mode, self._ack_state
        budget = BYTES_PER_RUN
        self._next_seqs, self._next_index = NO_SEQS, 0
        self.num_pending = consumer.pending_counter.count_committed()
        while True:
            if not delivery_mode.has_demand():
                return StopReason.NO_DEMAND
            if budget <= 0:
                return StopReason.BUDGET_USED
            if ack_state.redelivery_queue:
                used = self._redeliver(now_ns)
            elif consumer.at_max_ack_pending():
                return StopReason.MAX_ACK_PENDING
            else:
                used = self._deliver_new(now_ns)
            if isinstance(used, StopReason):
                return used
            budget -= used

    # New messages

    def _deliver_new(self, now_ns: int) -> int | StopReason:
        """Deliver a run of new messages; return its size."""
        consumer = self._consumer
        if self._next_index >= len(self._next_seqs) and not self._find_next():
            return StopReason.CAUGHT_UP
        delivery_mode = consumer.delivery_mode
        deliver_run = delivery_mode.internal_delivery
        if deliver_run is not None and not self._rate_limiter.active:
            return self._deliver_to_internal(deliver_run, now_ns)
        fanout = None if self._rate_limiter.active else delivery_mode.fanout_targets()
        if fanout is None:
            return self._deliver_one(now_ns)
        view = self._read_view(int(self._next_seqs[self._next_index]))
        limit = min(fanout.max_messages, consumer.ack_pending_room())
        consumer_seq = self._ack_state.consumer_seq + 1
        count, size = encode_deliveries(
            fanout.targets, view, self._next_seqs, self._next_index, limit,
            consumer.first_ack_prefix, consumer_seq, self.num_pending, fanout.base_size, fanout.bytes_max, fanout.strict,
        )  # fmt: skip
        if not count:
            return self._deliver_one(now_ns)
        seqs = self._next_seqs[self._next_index : self._next_index + count]
        self._on_delivered(seqs, now_ns)
        delivery_mode.on_run_sent(count, size, now_ns)
        return size + count * MESSAGE_OVERHEAD

    def _deliver_to_internal(self, deliver_run: RunDelivery, now_ns: int) -> int | StopReason:
        """Deliver a run of records to a receiver inside the server."""
        consumer = self._consumer
        view = self._read_view(int(self._next_seqs[self._next_index]))
        count, size, added = deliver_run(
            view,
            self._next_seqs,
            self._next_index,
            min(consumer.ack_pending_room(), INTERNAL_RUN_MAX),
            self.num_pending,
        )
        if not count:
            return self._deliver_one(now_ns)
        self._on_delivered(self._next_seqs[self._next_index : self._next_index + count], now_ns)
        consumer.delivery_mode.on_run_sent(count, size, now_ns)
        return size + added + count * SINGLE_OVERHEAD

    def _read_view(self, seq: int) -> memoryview:
        try:
            return self._log.read_view(seq, VIEW_BYTES)[0]
        except CorruptData:
            return memoryview(b"")

    def _read_message(self, seq: int) -> StoredMessage | None:
        """Read a message; None if it is corrupt: it is skipped, and the store keeps and reports it."""
        try:
            return self._log.get(seq)
        except CorruptData:
            return None

    def _find_next(self) -> bool:
        """Find the sequences to deliver next; return whether there are any."""
        consumer = self._consumer
        log, ack_state = self._log, self._ack_state
        if len(ack_state.last_per_subject_queue):
            self._next_seqs, self._next_index = self._take_live(ack_state), 0
            if len(self._next_seqs):
                return True
            ack_state.next_seq = max(ack_state.next_seq, ack_state.resume_seq + 1)
        committed = log.committed_seq
        first = log.find_next(consumer.filter, ack_state.next_seq)
        if not first or first > committed:
            return False
        self._next_seqs = log.find_seqs(consumer.filter, first, min(committed, first + self._lookahead - 1))
        self._next_index = 0
        self._lookahead = (
            LOOKAHEAD_MIN
            if 4 * len(self._next_seqs) > self._lookahead
            else min(4 * self._lookahead, LOOKAHEAD_MAX)
        )
        return True

    def _take_live(self, ack_state: AckState) -> Seqs:
        """Return the next of the last messages per subject that still exist, and drop those that do not from the queue."""
        queue = ack_state.last_per_subject_queue
        live = NO_SEQS
        while len(queue) and not len(live):
            part = queue[:LOOKAHEAD_MIN]
            live = self._log.filter_live(part)
            dropped = len(part) - len(live)
            if dropped and len(live):
                if not queue.flags.writeable:
                    queue = queue.copy()
                queue[dropped : len(part)] = live
            queue = queue[dropped:]
        ack_state.last_per_subject_queue = queue
        return live

    def _on_delivered(self, seqs: Seqs, now_ns: int) -> None:
        consumer = self._consumer
        needs_no_ack = consumer.config.ack_policy == "none"
        self._ack_state.record_deliveries(seqs, now_ns, consumer.get_ack_wait(1), acked=needs_no_ack)
        self._next_index += len(seqs)
        self.num_pending = max(self.num_pending - len(seqs), 0)
        consumer.pending_counter.on_delivered(len(seqs))
        consumer.last_active_ns = now_ns
        if not needs_no_ack:
            self._consumer_set.track_pending(consumer)
        elif consumer.removes_acked:
            self._consumer_set.mark_acked(seqs.tolist())

    def _deliver_one(self, now_ns: int) -> int | StopReason:
        seq = int(self._next_seqs[self._next_index])
        message = self._read_message(seq)
        if message is None:
            self._next_index += 1
            self._ack_state.skip(seq)
            return SINGLE_OVERHEAD
        used = self._send(seq, message, 1, now_ns, is_first=True)
        if not isinstance(used, StopReason):
            self._on_delivered(self._next_seqs[self._next_index : self._next_index + 1], now_ns)
        return used

    # Redeliveries

    def _redeliver(self, now_ns: int) -> int | StopReason:
        """Deliver one message again, or drop it from the queue if that is not possible."""
        consumer, ack_state = self._consumer, self._ack_state
        seq = ack_state.dequeue()
        if not seq or seq not in ack_state.pending:
            return MESSAGE_OVERHEAD
        count = ack_state.get_delivery_count(seq) + 1
        if 0 < consumer.config.max_deliver < count:
            self._redelivery.on_max_deliver(seq, count - 1)
            return SINGLE_OVERHEAD
        message = self._read_message(seq)
        if message is None:
            ack_state.mark_skipped(seq)
            self._redelivery.on_pending_removed(seq)
            return SINGLE_OVERHEAD
        used = self._send(seq, message, count, now_ns, is_first=False)
        if isinstance(used, StopReason):
            ack_state.requeue(seq)
            return used
        ack_state.set_delivery_count(seq, count)
        ack_state.record_redelivery(seq, now_ns, consumer.get_ack_wait(count))
        consumer.last_active_ns = now_ns
        return used

    # One message

    def _send(
        self, seq: int, message: StoredMessage, count: int, now_ns: int, *, is_first: bool
    ) -> int | StopReason:
        """Send a message to the receivers; return its size, or why it was not sent."""
        consumer = self._consumer
        time_ns, subject, header, payload, _ = message
        consumer_seq = self._ack_state.consumer_seq + 1
        num_pending = max(self.num_pending - is_first, 0)
        reply = b"%s%d.%d.%d.%d.%d" % (consumer.ack_prefix, count, seq, consumer_seq, time_ns, num_pending)
        if consumer.config.headers_only:
            header = headers.append(header, [(b"Nats-Msg-Size", b"%d" % len(payload))])
            payload = b""
        size = len(subject) + len(reply) + len(header) + len(payload)
        if self._rate_limiter.active and not self._rate_limiter.may_send(
            time_ns, size, now_ns, is_replay=is_first
        ):
            return StopReason.RATE_LIMITED
        if not consumer.delivery_mode.send(size, subject, reply, header, payload, now_ns):
            return StopReason.NO_DEMAND
        if self._rate_limiter.active:
            self._rate_limiter.on_sent(time_ns, size, now_ns)
        return size + SINGLE_OVERHEAD
