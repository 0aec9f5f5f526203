"""A consumer: a position in a stream, its receivers, and the rules of delivery between the two.

Owns the life of one consumer - its subscriptions, its timer, its metadata in the journal - and combines the parts that
do the work: `AckState` (position), `DeliveryLoop` (delivery), `PullQueue` or `PushDelivery` (receivers), `AckHandler`
(acknowledgements). Invariant: one timer, set to the earliest time at which any part has something to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.broker.consumers import consumer_storage, status_headers
from headrace.broker.consumers.ack_handling import AckHandler
from headrace.broker.consumers.ack_state import AckState
from headrace.broker.consumers.consumer_subscriptions import ConsumerSubjects
from headrace.broker.consumers.consumer_timer import ConsumerTimer
from headrace.broker.consumers.delivery_loop import DeliveryLoop
from headrace.broker.consumers.delivery_mode import DeliveryMode
from headrace.broker.consumers.num_pending import PendingCounter
from headrace.broker.consumers.pull_queue import PullQueue
from headrace.broker.consumers.push_delivery import PushDelivery
from headrace.broker.consumers.retention_interest import still_needed_mask, tracked_among
from headrace.broker.consumers.stop_reason import StopReason
from headrace.code_probes import sometimes
from headrace.jetstream_api import advisories as events
from headrace.jetstream_api import times
from headrace.jetstream_api.configs import ConsumerConfig

if TYPE_CHECKING:
    from headrace.broker.consumers.consumer_context import ConsumerStream

_UNLIMITED = 1 << 40


class Consumer:
    """One consumer of a stream."""

    __slots__ = (
        "_keys",
        "_subjects",
        "_timer",
        "ack_handler",
        "ack_prefix",
        "ack_state",
        "closed",
        "config",
        "created_ns",
        "delivery_loop",
        "delivery_mode",
        "filter",
        "filters",
        "first_ack_prefix",
        "jetstream",
        "last_active_ns",
        "name",
        "name_bytes",
        "paused_until_ns",
        "pending_counter",
        "persistent",
        "router",
        "stop_reason",
        "stream",
    )

    def __init__(
        self, stream: ConsumerStream, name: str, config: ConsumerConfig, created_ns: int, ack_state: AckState
    ) -> None:
        self.stream = stream
        self.jetstream = stream.jetstream
        self.router = stream.jetstream.router
        self.name = name
        self.name_bytes = name.encode()
        self.created_ns = created_ns
        self.ack_state = ack_state
        self.config = config
        self.closed = False
        self.stop_reason = StopReason.NO_DEMAND
        self.last_active_ns = self.now_ns()
        self.persistent = not (config.direct or config.mem_storage or stream.config.storage == "memory")
        self.ack_prefix = b"$JS.ACK.%s.%s." % (stream.name_bytes, self.name_bytes)
        self.first_ack_prefix = self.ack_prefix + b"1."
        self._keys = consumer_storage.make_keys(stream.log.ident, name)
        domain, account = self.jetstream.domain, self.jetstream.account
        self._subjects = ConsumerSubjects(
            stream.name, name, domain, account, flow_control=config.flow_control
        )
        self.ack_handler = AckHandler(self)
        self.delivery_mode: DeliveryMode = PushDelivery(self) if config.is_push() else PullQueue(self)
        self.pending_counter = PendingCounter(stream.log, ack_state, None)
        self._apply_config()
        self.delivery_loop = DeliveryLoop(self)
        self._timer = ConsumerTimer(self)

    def now_ns(self) -> int:
        """Return a time for measuring intervals; it never goes back."""
        return self.jetstream.timers.now_ns()

    # Configuration

    def _apply_config(self) -> None:
        """Derive filters and pause from the configuration."""
        config = self.config
        self.filters = tuple(pattern.encode() for pattern in config.get_filters())
        self.filter = self.stream.log.get_filter(self.filters) if self.filters else None
        self.pending_counter.set_filter(self.filter)
        self.paused_until_ns = times.parse_time_ns(config.pause_until) if config.pause_until else 0

    def configure(self, config: ConsumerConfig) -> None:
        """Apply a validated new configuration; position and pending messages stay."""
        old, self.config = self.config, config
        old_filter = self.filter
        moved = old.deliver_subject != config.deliver_subject
        self.delivery_mode.reconfigure(old)
        self._apply_config()
        self.ack_handler.configure()
        self.delivery_loop.rate_limiter.configure(config, self.stream.config.max_msg_size)
        if old.ack_wait != config.ack_wait:
            # With a backoff, a redelivered message waits for its step of the backoff, not for `ack_wait`.
            include_individual = not old.backoff and not config.backoff
            self.ack_state.shift_deadlines(
                config.ack_wait - old.ack_wait, include_individual=include_individual
            )
            self.mark_dirty()
        if old.get_filters() != config.get_filters():
            self.stream.consumer_set.stop_waiting(self)
            self.stream.consumer_set.rebuild_filters()
            if self.stream.config.retention == "interest":
                self.stream.consumer_set.recheck_interest(old_filter)
        if moved:
            self._redeliver(list(self.ack_state.pending))
        self.persist_config()
        self.schedule_delivery()

    def persist_config(self) -> None:
        """Store the configuration with the open frame."""
        if self.persistent:
            record = consumer_storage.encode_record(self.created_ns, self.config, self.name)
            self.jetstream.store.metadata.put(self._keys[0], record)
            self.stream.mark_dirty()

    # Life

    def open(self) -> None:
        """Start accepting requests and acknowledgements."""
        config = self.config
        if config.ack_policy in ("explicit", "all"):
            for key in self._subjects.ack_keys:
                self.jetstream.ack_dispatcher.consumers[key] = self
                self.router.announce(b"$JS.ACK.%s.>" % key)
        self.router.subscribe_internal(self._subjects.next_subject, self)
        self.delivery_mode.open()
        self.schedule_delivery()
        self.arm_timer()

    def close(self) -> None:
        """Stop: the consumer or its stream is being deleted."""
        self.closed = True
        for key in self._subjects.ack_keys:
            self.jetstream.ack_dispatcher.consumers.pop(key, None)
            self.router.withdraw(b"$JS.ACK.%s.>" % key)
        self.router.unsubscribe_internal(self._subjects.next_subject, self)
        self.delivery_mode.close()
        self._timer.cancel()
        if self.persistent:
            for key in self._keys:
                self.jetstream.store.metadata.delete(key)

    def recover(self) -> None:
        """After a restart, drop pending messages that left the stream, and remove messages that were acknowledged."""
        log, ack_state = self.stream.log, self.ack_state
        known = [*ack_state.pending, *ack_state.delivery_counts]
        self.on_messages_removed(
            [seq for seq in known if log.find_next(None, seq) != seq], suppress_advisories=True
        )
        if self.config.ack_policy in ("explicit", "all"):
            for seq in ack_state.find_without_deadline():
                sometimes("overdue at a restart")
                ack_state.enqueue(seq)
        # Not needed for work queues: there, an acknowledged message left with its ack, and a skipped one was never
        # delivered.
        if self.stream.config.retention == "interest" and self.ack_state.next_seq > log.first_seq:
            done = log.find_seqs(self.filter, log.first_seq, min(ack_state.next_seq - 1, log.last_seq))
            sometimes("what is done is looked for at a restart")
            self.stream.consumer_set.mark_acked(
                done[~still_needed_mask(self, done)].tolist() if len(done) else []
            )

    def on_message(
        self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        """Handle CONSUMER.MSG.NEXT."""
        self.delivery_mode.on_request(session, subject, reply, header, payload)

    def request_next(self, reply: bytes, body: bytes) -> None:
        """Handle a pull request that came with an acknowledgement."""
        self.delivery_mode.enqueue(reply, body)

    # Delivery

    @property
    def flow_subjects(self) -> tuple[bytes, ...]:
        """Subjects of flow-control replies."""
        return self._subjects.flow_subjects

    @property
    def removes_acked(self) -> bool:
        """Whether messages are removed once every consumer has acknowledged them."""
        return self.stream.config.retention != "limits"

    def schedule_delivery(self) -> None:
        """Deliver at the end of this turn of the event loop."""
        if not self.closed:
            self.jetstream.delivery_scheduler.schedule(self)

    def deliver(self) -> None:
        """Deliver as much as possible now."""
        if self.closed:
            return
        now_ns = self.now_ns()
        if self.is_paused():
            self.stop_reason = StopReason.NO_DEMAND
            self.delivery_mode.check_timeouts(now_ns, caught_up=True)
        else:
            self.stop_reason = self.delivery_loop.run(now_ns)
            self._after_delivery(now_ns)
        self.arm_timer()

    def _after_delivery(self, now_ns: int) -> None:
        stop_reason, consumer_set = self.stop_reason, self.stream.consumer_set
        if stop_reason is StopReason.CAUGHT_UP:
            consumer_set.wait_for_messages(self)
            self.delivery_loop.rate_limiter.on_caught_up(self.ack_state.next_seq)
            if self.stream.log.committed_seq >= self.stream.log.last_seq or not self.num_pending():
                self.delivery_mode.check_timeouts(now_ns, caught_up=True)
        elif stop_reason is StopReason.NO_DEMAND and self.delivery_mode.waiting_count:
            consumer_set.wait_for_messages(self)  # a request waits for more messages
        else:
            consumer_set.stop_waiting(self)
        if stop_reason is StopReason.BUDGET_USED:
            self.schedule_delivery()
        self.delivery_mode.after_delivery()
        if self.ack_state.dirty:
            self.mark_dirty()

    def at_max_ack_pending(self) -> bool:
        """Whether the maximum number of messages is pending."""
        return 0 < self.config.max_ack_pending <= len(self.ack_state.pending)

    def ack_pending_room(self) -> int:
        """Return how many more messages may be pending."""
        limit = self.config.max_ack_pending
        return limit - len(self.ack_state.pending) if limit > 0 else _UNLIMITED

    def get_ack_wait(self, count: int) -> int:
        """Return how long to wait for the ack of the `count`-th delivery; 0 is no limit."""
        config = self.config
        if config.backoff:
            return config.backoff[min(count, len(config.backoff)) - 1]
        return config.ack_wait if config.ack_policy in ("explicit", "all") else 0

    def num_pending(self) -> int:
        """Return how many messages have not been delivered yet."""
        return self.pending_counter.count_all()

    def make_heartbeat(self) -> bytes:
        """Build the idle heartbeat."""
        flow_window = self.delivery_mode.flow_window
        stalled_reply = flow_window.pending_request if flow_window is not None else b""
        ack_state = self.ack_state
        return status_headers.encode_heartbeat(ack_state.consumer_seq, ack_state.stream_seq, stalled_reply)

    # Acknowledgements

    def on_acked(self, seqs: list[int], was_full: bool) -> None:
        """Update state after pending messages were acknowledged."""
        self.ack_state.last_ack_ns = self.last_active_ns = self.now_ns()
        if self.removes_acked and seqs:
            self.stream.consumer_set.mark_acked(seqs)
            if self.persistent:
                self.stream.consumer_set.mark_dirty(self)
        else:
            self.mark_dirty()
        if was_full:
            self.schedule_delivery()

    def reply_when_durable(self, reply: bytes) -> None:
        """Reply to an acknowledgement once it is durable."""
        self.ack_state.last_ack_ns = self.last_active_ns = self.now_ns()
        if self.persistent and self.ack_state.dirty:
            self.stream.consumer_set.mark_dirty(self)
        self.jetstream.group_commit.reply_after_commit(reply, b"", b"", b"")
        self.jetstream.group_commit.schedule()

    def on_max_deliver(self, seq: int, deliveries: int) -> None:
        """Give up a message that was delivered `max_deliver` times."""
        was_full = self.at_max_ack_pending()
        sometimes("delivered as often as allowed")
        self.send_advisory(events.make_max_deliveries, seq, deliveries)
        self.ack_state.stop_redelivery(seq, deliveries)
        self.mark_dirty()
        if was_full:
            self.schedule_delivery()

    def on_pending_removed(self, seq: int) -> None:
        """Drop a message that left the stream before its redelivery."""
        self.ack_handler.on_pending_removed(seq)
        self.mark_dirty()

    def on_messages_removed(self, seqs: np.ndarray | Sequence[int], *, suppress_advisories: bool) -> None:
        """Drop messages that left the stream."""
        ack_state = self.ack_state
        was_full, removed = self.at_max_ack_pending(), tracked_among(self.ack_state, seqs)
        for seq in removed:
            if seq in ack_state.pending and not suppress_advisories:
                self.ack_handler.on_pending_removed(seq)
            else:
                ack_state.remove(seq)
        if removed:
            self.mark_dirty()
            if was_full:
                self.schedule_delivery()

    def on_purge(self) -> None:
        """Advance the position to the stream's new first sequence."""
        first = self.stream.log.first_seq
        if self.ack_state.next_seq < first or self.ack_state.get_ack_floor()[1] < first - 1:
            sometimes("a purge overtakes a consumer")
            self.ack_state.advance_to(first)
            self.mark_dirty()

    def _redeliver(self, seqs: list[int]) -> None:
        now_ns = self.now_ns()
        for seq in seqs:
            if seq in self.ack_state.redelivery_queue:
                continue
            count = self.ack_state.get_delivery_count(seq)
            if 0 < self.config.max_deliver <= count:
                self.on_max_deliver(seq, count)
                continue
            self.ack_state.enqueue(seq)
            if wait_ns := self.get_ack_wait(count):
                self.ack_state.set_deadline(seq, now_ns + wait_ns)

    # Time

    def is_paused(self) -> bool:
        return self.paused_until_ns > self.jetstream.clock_ns()

    def pause_remaining_ns(self) -> int:
        return max(self.paused_until_ns - self.jetstream.clock_ns(), 0)

    def arm_timer(self) -> None:
        """Arm the timer again, because the next deadline may be earlier now."""
        if not self.closed:
            self._timer.arm()

    def redeliver_expired(self, now_ns: int) -> None:
        """Redeliver messages that were not acknowledged in time."""
        due = self.ack_state.ack_deadlines.pop_due(now_ns, self.ack_state.pending)
        if due:
            sometimes("not acknowledged in time")
            self._redeliver(due)
            self.mark_dirty()
            self.schedule_delivery()

    def resume_if_due(self) -> None:
        """End the pause if its time has come."""
        if self.paused_until_ns and not self.is_paused():
            self.paused_until_ns = 0
            self.send_advisory(events.make_consumer_paused, False, self.config.pause_until or times.ZERO_TIME)
            self.schedule_delivery()

    # Persistence

    def mark_dirty(self) -> None:
        """Persist a change of the ack state later; no reply waits for it."""
        if self.persistent:
            self.jetstream.consumer_flusher.mark_dirty(self)
        else:
            self.ack_state.discard_changes()

    def persist_state(self) -> None:
        """Put changes of the ack state into the open frame."""
        ack_state = self.ack_state
        if self.closed or not self.persistent or not ack_state.dirty:
            return
        metadata = self.jetstream.store.metadata
        if ack_state.needs_snapshot:
            metadata.put(self._keys[1], ack_state.encode_snapshot(self.jetstream.timers.clock_offset_ns))
            ack_state.discard_changes()
        else:
            metadata.merge(self._keys[1], ack_state.encode_delta(self.jetstream.timers.clock_offset_ns))

    # Advisories

    def send_advisory(self, make_event: Callable[..., events.EncodedEvent], *values: object) -> None:
        """Publish an advisory about this consumer."""
        self.jetstream.advisories.publish(make_event, self.stream.name, self.name, *values)

    def send_group_advisory(
        self, make_event: Callable[..., events.EncodedEvent], group: str, value: str
    ) -> None:
        """Publish an advisory about a priority group of this consumer."""
        jetstream = self.jetstream
        jetstream.advisories.publish(make_event, jetstream.account, self.stream.name, self.name, group, value)
