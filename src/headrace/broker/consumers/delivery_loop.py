"""The delivery loop: moves messages from a stream's log to a consumer's receivers, as far as demand and limits allow.

One run serves redeliveries first, then new messages in batches that the compiled core encodes in one step; messages that
need a decision each (headers only, pinned client, rate limit, receivers inside the server) go one by one. Invariant:
only durable messages are delivered (`log.committed_seq`), and a run is bounded, so that other consumers get their turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace._native import encode_deliveries
from headrace.broker.consumers.delivery_mode import RunDelivery
from headrace.broker.consumers.key_order import ADMIT_MAX, LATE_MAX
from headrace.broker.consumers.new_messages import NewMessageSearch
from headrace.broker.consumers.stop_reason import StopReason
from headrace.code_probes import sometimes
from headrace.errors import CorruptData
from headrace.protocol import headers
from headrace.storage.sequence_arrays import NO_SEQS, Seqs

if TYPE_CHECKING:
    from headrace.broker.consumers.bulk_delivery_targets import FanoutTargets
    from headrace.broker.consumers.consumer_context import ConsumerContext
    from headrace.broker.consumers.delivery_rate import RateLimiter
    from headrace.broker.consumers.key_order import KeyOrder
    from headrace.broker.consumers.message_keys import Keys
    from headrace.broker.consumers.redelivery import Redelivery

StoredMessage = tuple[int, bytes, bytes, bytes, int]  # time, subject, header, payload, TTL

BYTES_PER_RUN = 1024 * 1024
VIEW_BYTES = 256 * 1024
#: What each message counts against the budget of a run besides its own size.
MESSAGE_OVERHEAD = 64
#: The same for a message that the compiled core does not encode: it costs more time, whatever its size.
SINGLE_OVERHEAD = 4096
#: The same for a message that was passed over, or looked at.
PASSED_OVERHEAD = 64
#: The same for a message that was passed over before and is delivered with others.
LATE_OVERHEAD = 1024
#: The same for a search for the next message of a key, which may look at some rows of the index.
SEARCH_OVERHEAD = 2 * 1024
#: A search for new messages counts a byte for so many rows (as a power of two).
ROWS_PER_BYTE_SHIFT = 1
#: Number of messages that are chosen at least for a run with order per key, if there are so many.
RUN_LIMIT_MIN = 256
#: Maximum number of messages that a receiver inside the server gets at a time; it stores each of them.
INTERNAL_RUN_MAX = 1024


class DeliveryLoop:
    """Delivers for one consumer. `num_pending` is how many messages have not been delivered yet."""

    __slots__ = (
        "_ack_state",
        "_budget",
        "_consumer",
        "_consumer_set",
        "_late_limit",
        "_log",
        "_next_index",
        "_next_keys",
        "_next_seqs",
        "_pending_counter",
        "_rate_limiter",
        "_redelivery",
        "_run_limit",
        "_search",
        "_searched_last",
        "num_pending",
    )

    def __init__(self, consumer: ConsumerContext, redelivery: Redelivery, rate_limiter: RateLimiter) -> None:
        self._consumer = consumer
        self._log = consumer.log
        self._ack_state = consumer.ack_state
        self._pending_counter = consumer.pending_counter
        self._consumer_set = consumer.consumer_set
        self._redelivery = redelivery
        self._rate_limiter = rate_limiter
        self._search = NewMessageSearch(consumer.log, consumer.ack_state)
        self._run_limit = ADMIT_MAX
        self._late_limit = LATE_MAX
        self._searched_last = False
        self._budget = 0  # what is left of a run
        self._next_seqs: Seqs = NO_SEQS
        self._next_index = 0
        self._next_keys: Keys = np.empty(0, np.uint32)
        self.num_pending = 0

    def run(self, now_ns: int) -> StopReason:
        """Deliver until something stops it; return the reason."""
        consumer = self._consumer
        delivery_mode, ack_state = consumer.delivery_mode, self._ack_state
        self._budget = BYTES_PER_RUN
        self._next_seqs, self._next_index = NO_SEQS, 0
        self.num_pending = consumer.pending_counter.count_committed()
        while True:
            if not delivery_mode.has_demand():
                return StopReason.NO_DEMAND
            if self._budget <= 0:
                return StopReason.BUDGET_USED
            if ack_state.redelivery_queue:
                used = self._redeliver(now_ns)
            elif consumer.at_max_ack_pending():
                return StopReason.MAX_ACK_PENDING
            elif ack_state.key_order is None:
                used = self._deliver_new(now_ns)
            elif ack_state.key_order.has_ready():
                used = self._deliver_passed_over(ack_state.key_order, now_ns)
            else:
                used = self._deliver_or_search(ack_state.key_order, now_ns)
            if isinstance(used, StopReason):
                return used
            self._budget -= used

    # New messages

    def _deliver_new(self, now_ns: int) -> int | StopReason:
        """Deliver a run of new messages; return its size."""
        consumer = self._consumer
        if self._next_index >= len(self._next_seqs) and not self._find_next():
            return StopReason.CAUGHT_UP
        if self._ack_state.key_order is not None and not len(self._ack_state.last_per_subject_queue):
            return self._deliver_in_key_order(self._ack_state.key_order, now_ns)
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
        room = min(consumer.ack_pending_room(), INTERNAL_RUN_MAX)
        count, size, added = deliver_run(view, self._next_seqs, self._next_index, room, self.num_pending)
        if not count:
            return self._deliver_one(now_ns)
        self._on_delivered(self._next_seqs[self._next_index : self._next_index + count], now_ns)
        consumer.delivery_mode.on_run_sent(count, size, now_ns)
        return size + added + count * SINGLE_OVERHEAD

    def _read_view(self, seq: int) -> memoryview:
        try:
            return self._log.read_view(seq, VIEW_BYTES)[0]
        except (CorruptData, OSError):  # a run ends before it; then the message is read on its own
            return memoryview(b"")

    def _read_message(self, seq: int) -> StoredMessage | None:
        """Read a message; None if it is corrupt: it is skipped, and the store keeps and reports it."""
        try:
            return self._log.get(seq)
        except CorruptData:
            return None

    def _find_next(self) -> bool:
        """Find the sequences to deliver next; return whether there are any."""
        key_order = self._ack_state.key_order
        most = -1 if key_order is None else ADMIT_MAX
        self._next_seqs, self._next_index = self._search.find_next(self._consumer.filter, most), 0
        self._budget -= self._search.rows >> ROWS_PER_BYTE_SHIFT
        if key_order is not None and len(self._next_seqs) and not len(self._ack_state.last_per_subject_queue):
            self._next_keys = key_order.find_keys(self._next_seqs)
        return len(self._next_seqs) > 0

    def _on_delivered(self, seqs: Seqs, now_ns: int) -> None:
        consumer = self._consumer
        needs_no_ack = consumer.config.ack_policy == "none"
        key_order = self._ack_state.key_order
        if key_order is not None and len(self._ack_state.last_per_subject_queue):
            key_order.add_delivered(seqs)
        self._ack_state.record_deliveries(seqs, now_ns, consumer.get_ack_wait(1), acked=needs_no_ack)
        self._next_index += len(seqs)
        self.num_pending = max(self.num_pending - len(seqs), 0)
        self._pending_counter.on_delivered(len(seqs))
        consumer.last_active_ns = now_ns
        if not needs_no_ack:
            self._consumer_set.track_pending(consumer)
        elif consumer.removes_acked:
            self._consumer_set.mark_acked(seqs.tolist())

    # Order per key

    def _deliver_in_key_order(self, key_order: KeyOrder, now_ns: int) -> int | StopReason:
        """Deliver a run of new messages, without those whose keys are blocked; return its size."""
        consumer = self._consumer
        start, seqs, keys = self._next_index, self._next_seqs, self._next_keys
        fanout = None if self._rate_limiter.active else consumer.delivery_mode.fanout_targets()
        room = min(consumer.ack_pending_room(), self._run_limit)
        limit = 1 if fanout is None else min(fanout.max_messages, room)
        chosen, stop = key_order.admit(seqs, keys, start, max(limit, 1))
        count = size = 0
        if len(chosen) and fanout is not None:
            count, size = self._encode_chosen(fanout, chosen)
            # What does not fit into the view is taken back: choose about as many as fit.
            self._run_limit = ADMIT_MAX if count == len(chosen) else max(count + count // 8, RUN_LIMIT_MIN)
        if count < len(chosen):
            # Without a run, one message is sent alone; the others are looked at again.
            end = int(seqs.searchsorted(chosen[max(count, 1) - 1])) + 1
            key_order.undo(seqs, keys, end, stop)
            stop = end
        if len(chosen) and not count:
            return self._deliver_chosen(key_order, int(chosen[0]), stop, now_ns)
        self._after_choice(chosen[:count], stop, now_ns)
        if count:
            consumer.delivery_mode.on_run_sent(count, size, now_ns)
        return size + count * MESSAGE_OVERHEAD + (stop - start) * PASSED_OVERHEAD + key_order.take_cost()

    def _encode_chosen(self, fanout: FanoutTargets, seqs: Seqs) -> tuple[int, int]:
        """Write messages to their receivers, from one view if these have a limit in bytes; return how many, and the size."""
        consumer_seq, num_pending = self._ack_state.consumer_seq + 1, self.num_pending
        targets, count, size = fanout.targets, 0, 0
        while count < len(seqs):
            turn, view = count % len(targets), self._read_view(int(seqs[count]))
            added, added_size = encode_deliveries(
                targets[turn:] + targets[:turn] if turn else targets, view, seqs, count, len(seqs),
                self._consumer.first_ack_prefix, consumer_seq + count, num_pending - count,
                fanout.base_size, fanout.bytes_max, fanout.strict,
            )  # fmt: skip
            count, size = count + added, size + added_size
            if not added or fanout.bytes_max >= 0 or size > VIEW_BYTES:
                break
        return count, size

    def _deliver_chosen(self, key_order: KeyOrder, seq: int, stop: int, now_ns: int) -> int | StopReason:
        """Deliver one message, which ends at index `stop` of the next ones."""
        try:
            message = self._read_message(seq)
        except OSError:
            key_order.undo(self._next_seqs, self._next_keys, self._next_index, stop)
            raise
        if message is None:
            key_order.release(seq)
            self._after_choice(NO_SEQS, stop, now_ns)
            self._ack_state.mark_skipped(seq)
            return SINGLE_OVERHEAD
        used = self._send(seq, message, 1, now_ns, is_first=True)
        if isinstance(used, StopReason):
            key_order.undo(self._next_seqs, self._next_keys, self._next_index, stop)
            return used
        self._after_choice(self._next_seqs[stop - 1 : stop], stop, now_ns)
        return used

    def _after_choice(self, delivered: Seqs, stop: int, now_ns: int) -> None:
        """Move the position to index `stop` of the next messages, of which these were delivered."""
        seqs = self._next_seqs
        passed = stop - self._next_index - len(delivered)
        if len(delivered):
            self._on_delivered(delivered, now_ns)
        if passed:
            sometimes("message of a blocked key passed over")
            self._ack_state.move_past(int(seqs[stop - 1]))
            self._pending_counter.on_delivered(passed)
        self._next_index = stop

    def _deliver_or_search(self, key_order: KeyOrder, now_ns: int) -> int | StopReason:
        """Deliver new messages and search passed-over ones, alternately; a search may take long."""
        if not key_order.is_searching():
            return self._deliver_new(now_ns)
        self._searched_last = not self._searched_last
        if not self._searched_last:
            used = self._deliver_new(now_ns)
            if used is not StopReason.CAUGHT_UP:
                return used
        return key_order.search()

    def _deliver_passed_over(self, key_order: KeyOrder, now_ns: int) -> int | StopReason:
        """Deliver the first message that was passed over, of a key that is no longer blocked."""
        consumer, ack_state = self._consumer, self._ack_state
        fanout = None if self._rate_limiter.active else consumer.delivery_mode.fanout_targets()
        if fanout is not None and (run_size := self._deliver_passed_over_run(key_order, fanout, now_ns)):
            return run_size
        seq = key_order.find_ready()
        if not seq:
            return SEARCH_OVERHEAD
        message = self._read_message(seq)
        if message is None:
            key_order.on_delivered(seq, pending=False)
            ack_state.mark_skipped(seq)
            return SINGLE_OVERHEAD
        used = self._send(seq, message, 1, now_ns, is_first=True)
        if isinstance(used, StopReason):
            return used
        key_order.on_delivered(seq)
        self._on_late(np.array([seq], dtype=np.uint64), now_ns)
        sometimes("passed-over message delivered")
        return used + SEARCH_OVERHEAD

    def _deliver_passed_over_run(self, key_order: KeyOrder, fanout: FanoutTargets, now_ns: int) -> int:
        """Deliver one passed-over message of each ready key; return size and costs, 0 if the first must go alone."""
        consumer = self._consumer
        most = min(fanout.max_messages, consumer.ack_pending_room(), self._late_limit)
        seqs, keys, searches = key_order.take_ready(most)
        count, size = self._encode_chosen(fanout, seqs)
        # They are sent in ascending order, so take about as many as fit: otherwise old messages would always be first.
        if count < len(seqs):
            self._late_limit = max(count, 1)
        elif most == self._late_limit:
            self._late_limit = min(2 * most, LATE_MAX)
        key_order.return_ready(seqs, keys, count)
        if count:
            sometimes("run of passed-over messages delivered")
            self._on_late(seqs[:count], now_ns)
            consumer.delivery_mode.on_run_sent(count, size, now_ns)
        elif len(seqs):
            return 0
        return size + len(seqs) * LATE_OVERHEAD + searches * SEARCH_OVERHEAD

    def _on_late(self, seqs: Seqs, now_ns: int) -> None:
        """Record the first deliveries of messages that were passed over."""
        consumer = self._consumer
        self._ack_state.record_late_deliveries(seqs, now_ns, consumer.get_ack_wait(1))
        self.num_pending = max(self.num_pending - len(seqs), 0)
        consumer.last_active_ns = now_ns
        self._consumer_set.track_pending(consumer)

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
            return SINGLE_OVERHEAD + self._redelivery.on_max_deliver(seq, count - 1)
        message = self._redelivery.read_message(seq, now_ns)
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
