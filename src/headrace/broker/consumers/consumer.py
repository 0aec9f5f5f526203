"""A consumer: a position in a stream, its receivers, and the rules of delivery between the two.

Owns the lifecycle of one consumer (subscriptions, timer, metadata in the journal) and combines `AckState` (position),
`DeliveryLoop`, `PullQueue` or `PushDelivery` (receivers) and `AckHandler`. Invariant: one timer, set to when a part is due.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.broker.consumers import status_headers
from headrace.broker.consumers.ack_handling import AckHandler
from headrace.broker.consumers.ack_state import AckState
from headrace.broker.consumers.consumer_storage import ConsumerStorage
from headrace.broker.consumers.consumer_subscriptions import ConsumerSubjects
from headrace.broker.consumers.consumer_timer import ConsumerTimer
from headrace.broker.consumers.delivery_loop import DeliveryLoop
from headrace.broker.consumers.delivery_mode import DeliveryMode
from headrace.broker.consumers.delivery_rate import RateLimiter
from headrace.broker.consumers.key_order_setup import apply_key_order, close_key_order, drop_key_order
from headrace.broker.consumers.num_pending import PendingCounter
from headrace.broker.consumers.pull_queue import PullQueue
from headrace.broker.consumers.push_delivery import PushDelivery
from headrace.broker.consumers.redelivery import Redelivery
from headrace.broker.consumers.retention_interest import still_needed_mask
from headrace.broker.consumers.stop_reason import StopReason
from headrace.code_probes import sometimes
from headrace.jetstream_api import advisories as events
from headrace.jetstream_api import times
from headrace.jetstream_api.configs import ConsumerConfig

if TYPE_CHECKING:
    from headrace.broker.consumers.consumer_context import ConsumerStream
    from headrace.storage.metadata_store import PreparedDelete

_UNLIMITED = 1 << 40


class Consumer:
    """One consumer of a stream."""

    __slots__ = (
        "_ack_dispatcher",
        "_advisories",
        "_clock",
        "_delivery_scheduler",
        "_flusher",
        "_group_commit",
        "_storage",
        "_subjects",
        "_timer",
        "_timers",
        "ack_handler",
        "ack_prefix",
        "ack_state",
        "closed",
        "config",
        "consumer_set",
        "created_ns",
        "delivery_loop",
        "delivery_mode",
        "filter",
        "filters",
        "first_ack_prefix",
        "jetstream",
        "last_active_ns",
        "log",
        "name",
        "name_bytes",
        "paused_until_ns",
        "pending_counter",
        "persistent",
        "rate_limiter",
        "redelivery",
        "router",
        "stop_reason",
        "stream",
    )

    def __init__(
        self, stream: ConsumerStream, name: str, config: ConsumerConfig, created_ns: int, ack_state: AckState
    ) -> None:
        jetstream = stream.jetstream
        self.stream = stream
        self.log = stream.log
        self.consumer_set = stream.consumer_set
        self.jetstream = jetstream
        self.router = jetstream.router
        self._timers = jetstream.timers
        self._clock = jetstream.clock
        self._group_commit = stream.group_commit
        self._advisories = jetstream.advisories
        self._ack_dispatcher = jetstream.ack_dispatcher
        self._delivery_scheduler = jetstream.delivery_scheduler
        self._flusher = jetstream.consumer_flusher
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
        self._storage = ConsumerStorage(jetstream.store.metadata, self._timers, stream.log.ident, name)
        self._subjects = ConsumerSubjects(
            stream.name, name, jetstream.domain, jetstream.account, flow_control=config.flow_control
        )
        self.ack_handler = AckHandler(self)
        self.delivery_mode: DeliveryMode = PushDelivery(self) if config.is_push() else PullQueue(self)
        self.pending_counter = PendingCounter(stream.log, ack_state, None)
        self._apply_config()
        self.rate_limiter = RateLimiter(config, stream.config.max_msg_size, stream.log.last_seq)
        self.redelivery = Redelivery(self, self.ack_handler)
        self.delivery_loop = DeliveryLoop(self, self.redelivery, self.rate_limiter)
        self._timer = ConsumerTimer(self, self.redelivery, self._timers)

    def now_ns(self) -> int:
        """Return a time for measuring intervals; it never goes back."""
        return self._timers.now_ns()

    # Configuration

    def _apply_config(self) -> None:
        """Derive filters and pause from the configuration."""
        config = self.config
        self.filters = tuple(pattern.encode() for pattern in config.get_filters())
        self.filter = self.log.get_filter(self.filters) if self.filters else None
        self.pending_counter.set_filter(self.filter)
        apply_key_order(self)
        self.paused_until_ns = times.parse_time_ns(config.pause_until) if config.pause_until else 0

    def configure(self, config: ConsumerConfig) -> None:
        """Apply a validated new configuration; position and pending messages stay."""
        old, self.config = self.config, config
        stream, consumer_set = self.stream, self.consumer_set
        old_filter, old_filters = self.filter, self.filters
        moved = old.deliver_subject != config.deliver_subject
        self.delivery_mode.reconfigure(config)
        self._apply_config()
        self.ack_handler.configure()
        self.rate_limiter.configure(config, stream.config.max_msg_size)
        if old.ack_wait != config.ack_wait:
            # With a backoff, a redelivered message waits for its step of the backoff, not for `ack_wait`.
            include_individual = not old.backoff and not config.backoff
            self.ack_state.shift_deadlines(
                config.ack_wait - old.ack_wait, include_individual=include_individual
            )
            self.persist_soon()
        if old.get_filters() != config.get_filters():
            consumer_set.stop_waiting(self)
            consumer_set.on_filters_changed(self, old_filters)
            # It never looked for messages of a new filter before its position.
            self.ack_state.mark_skipped(self.ack_state.compute_passed_seq())
            consumer_set.persist_with_frame(self)
            consumer_set.on_interest_reduced(self, old_filter)
        if moved:
            self.redelivery.redeliver_all()
        self.persist_config()
        self.schedule_delivery()

    def persist_config(self) -> None:
        """Store the configuration with the open frame."""
        if self.persistent:
            self._storage.put_config(self.created_ns, self.config)
            self.stream.mark_dirty()

    # Life

    def open(self) -> None:
        """Start accepting requests and acknowledgements."""
        config = self.config
        if config.ack_policy in ("explicit", "all"):
            for key in self._subjects.ack_keys:
                self._ack_dispatcher.register(key, self)
                self.router.announce(b"$JS.ACK.%s.>" % key)
        self.router.subscribe_internal(self._subjects.next_subject, self)
        self.delivery_mode.open()
        self.schedule_delivery()
        self.arm_timer()

    def close(self) -> None:
        """Stop: the consumer or its stream is being deleted."""
        self.closed = True
        self.ack_handler.close()
        for key in self._subjects.ack_keys:
            self._ack_dispatcher.unregister(key)
            self.router.withdraw(b"$JS.ACK.%s.>" % key)
        self.router.unsubscribe_internal(self._subjects.next_subject, self)
        self.delivery_mode.close()
        self._timer.cancel()
        close_key_order(self.ack_state)

    def delete_stored(self) -> None:
        """Delete configuration and ack state from the store."""
        if self.persistent:
            self._storage.delete()

    def prepare_delete_stored(self) -> list[PreparedDelete]:
        """Return what deletes configuration and ack state from the store."""
        return self._storage.prepare_delete() if self.persistent else []

    def recover(self) -> None:
        """After a restart, drop pending messages that left the stream, and remove messages that were acknowledged."""
        stream, log, ack_state = self.stream, self.log, self.ack_state
        known = [*ack_state.pending, *ack_state.delivery_counts]
        self.redelivery.on_messages_removed(
            [seq for seq in known if log.find_next(None, seq) != seq], suppress_advisories=True
        )
        if self.config.ack_policy in ("explicit", "all"):
            for seq in ack_state.find_without_deadline():
                sometimes("ack wait expired while the server was down")
                ack_state.enqueue(seq)
        # Not needed for work queues: there, an acknowledged message left with its ack, and a skipped one was never
        # delivered.
        if stream.config.retention == "interest" and ack_state.next_seq > log.first_seq:
            done = log.find_seqs(self.filter, log.first_seq, min(ack_state.next_seq - 1, log.last_seq))
            sometimes("acked messages searched at startup")
            self.consumer_set.mark_acked(done[~still_needed_mask(self, done)].tolist() if len(done) else [])

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
        config = self.stream.config
        return config.retention != "limits"

    def schedule_delivery(self) -> None:
        """Deliver at the end of this turn of the event loop."""
        if not self.closed:
            self._delivery_scheduler.schedule(self)

    def deliver(self) -> None:
        """Deliver as much as possible now."""
        if self.closed:
            return
        key_order = self.ack_state.key_order
        if key_order is not None and key_order.continue_changes():
            if self.ack_state.dirty:
                self.persist_soon()
            self.schedule_delivery()
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
        stop_reason, consumer_set, log = self.stop_reason, self.consumer_set, self.log
        if stop_reason is StopReason.CAUGHT_UP:
            consumer_set.wait_for_messages(self)
            self.rate_limiter.on_caught_up(self.ack_state.next_seq)
            if log.committed_seq >= log.last_seq or not self.num_pending():
                self.delivery_mode.check_timeouts(now_ns, caught_up=True)
        elif stop_reason is StopReason.NO_DEMAND and self.delivery_mode.waiting_count:
            consumer_set.wait_for_messages(self)  # a request waits for more messages
        else:
            consumer_set.stop_waiting(self)
        if stop_reason is StopReason.BUDGET_USED:
            self.schedule_delivery()
        if self.ack_state.key_order is not None:
            drop_key_order(self)
        self.delivery_mode.after_delivery()
        if self.ack_state.dirty:
            self.persist_soon()

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
            self.consumer_set.mark_acked(seqs)
            if self.persistent:
                self.consumer_set.persist_with_frame(self)
        else:
            self.persist_soon()
        if was_full:
            self.schedule_delivery()

    def reply_when_durable(self, reply: bytes) -> None:
        """Reply to an acknowledgement once it is durable."""
        self.ack_state.last_ack_ns = self.last_active_ns = self.now_ns()
        if self.persistent and self.ack_state.dirty:
            self.consumer_set.persist_with_frame(self)
        self._group_commit.reply_after_commit(reply, b"", b"", b"")
        self._group_commit.schedule()

    def on_purge(self) -> None:
        """Advance the position to the stream's new first sequence."""
        first = self.log.first_seq
        if self.ack_state.next_seq < first or self.ack_state.get_ack_floor()[1] < first - 1:
            sometimes("purge moves a consumer forward")
            was_full = self.at_max_ack_pending()
            self.ack_state.advance_to(first)
            self.persist_soon()
            if was_full:
                self.schedule_delivery()

    # Time

    def is_paused(self) -> bool:
        return self.paused_until_ns > self._clock.wall_ns()

    def pause_remaining_ns(self) -> int:
        return max(self.paused_until_ns - self._clock.wall_ns(), 0)

    def arm_timer(self) -> None:
        """Arm the timer again, because the next deadline may be earlier now."""
        if not self.closed:
            self._timer.arm()

    def resume_if_due(self) -> None:
        """End the pause if its time has come."""
        if self.paused_until_ns and not self.is_paused():
            self.paused_until_ns = 0
            self.send_advisory(events.make_consumer_paused, False, self.config.pause_until or times.ZERO_TIME)
            self.schedule_delivery()

    # Persistence

    def persist_soon(self) -> None:
        """Persist the ack state within 100 ms; no reply waits for it."""
        key_order = self.ack_state.key_order
        if not self.persistent:
            self.ack_state.discard_changes()
        elif key_order is not None and key_order.has_many_changes():
            self._flusher.persist_now(self)
        else:
            self._flusher.persist_soon(self)

    def persist_state(self) -> None:
        """Put changes of the ack state into the open frame."""
        ack_state = self.ack_state
        if self.closed or not self.persistent or not ack_state.dirty:
            return
        self._storage.put_ack_state(ack_state)

    # Advisories

    def send_advisory(self, make_event: Callable[..., events.EncodedEvent], *values: object) -> None:
        """Publish an advisory about this consumer."""
        self._advisories.publish(make_event, self.stream.name, self.name, *values)

    def send_group_advisory(
        self, make_event: Callable[..., events.EncodedEvent], group: str, value: str
    ) -> None:
        """Publish an advisory about a priority group of this consumer."""
        account = self.jetstream.account
        self._advisories.publish(make_event, account, self.stream.name, self.name, group, value)
