"""What the parts of a consumer may use of it, of its stream and of its account.

Owns no behaviour. `Consumer`, `Stream` and `AccountJetStream` implement these protocols; parts name them instead, so that
none of them depends on the modules that put all of them together. See ADR 18.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from headrace._native import AccountClock
from headrace.broker.commit.group_commit import GroupCommit
from headrace.broker.commit.jetstream_context import JetStreamContext
from headrace.broker.consumers.ack_state import AckState
from headrace.broker.consumers.consumer_flush import ConsumerFlusher
from headrace.broker.consumers.delivery_mode import DeliveryMode
from headrace.broker.consumers.delivery_rate import RateLimiter
from headrace.broker.consumers.delivery_scheduler import DeliveryScheduler
from headrace.broker.consumers.num_pending import PendingCounter
from headrace.broker.consumers.stop_reason import StopReason
from headrace.broker.routing.router import SubjectRouter
from headrace.broker.streams.stream_context import RemovalContext
from headrace.jetstream_api import advisories as events
from headrace.jetstream_api.configs import ConsumerConfig, StreamConfig
from headrace.storage import StreamLog
from headrace.storage.log.filters import Filter


class AckDispatcherContext(Protocol):
    """Finds the consumer that an acknowledgement is for."""

    def register(self, key: bytes, consumer: Any) -> None:
        """Send acknowledgements for this key to a consumer."""

    def unregister(self, key: bytes) -> None:
        """Ignore acknowledgements for this key."""


class ConsumerJetStream(JetStreamContext, Protocol):
    """One account's JetStream, seen from consumers."""

    consumer_flusher: ConsumerFlusher
    delivery_scheduler: DeliveryScheduler
    flow_bytes: int

    @property
    def streams(self) -> Mapping[str, Any]:
        """Return the streams by name."""

    @property
    def ack_dispatcher(self) -> AckDispatcherContext:
        """Return what finds the consumer of an acknowledgement."""


class ConsumerSetContext(Protocol):
    """The consumers of a stream together, seen from one of them."""

    def delete(self, consumer: Any) -> None:
        """Delete a consumer."""

    def mark_acked(self, seqs: list[int], *, recheck: bool = False) -> None:
        """Note messages that a consumer no longer needs."""

    def persist_with_frame(self, consumer: Any) -> None:
        """Persist a consumer's ack state with the open frame."""

    def track_pending(self, consumer: Any) -> None:
        """Note that a consumer has pending messages."""

    def on_key_order_changed(self, consumer: Any) -> None:
        """Note whether a consumer keeps order per key."""

    def wait_for_messages(self, consumer: Any) -> None:
        """Deliver again when matching messages are committed."""

    def stop_waiting(self, consumer: Any) -> None:
        """Undo `wait_for_messages`."""

    def on_filters_changed(self, consumer: Any, old_filters: Sequence[bytes]) -> None:
        """Apply changed filters."""

    def on_interest_reduced(self, consumer: Any, subject_filter: Filter | None) -> None:
        """Remove what a consumer was the last to need, after it was reset or changed."""

    def remove_acked(self) -> bool:
        """Remove messages that no consumer needs."""


class ConsumerStream(Protocol):
    """One stream, seen from its consumers."""

    config: StreamConfig
    log: StreamLog
    name: str
    name_bytes: bytes
    created_ns: int
    clock: AccountClock
    group_commit: GroupCommit
    closed: bool

    @property
    def jetstream(self) -> ConsumerJetStream:
        """Return the account's JetStream."""

    @property
    def consumers(self) -> dict[str, Any]:
        """Return the consumers by name."""

    @property
    def consumer_set(self) -> ConsumerSetContext:
        """Return the consumers together."""

    @property
    def retention(self) -> RemovalContext:
        """Return what removes messages."""

    def mark_dirty(self) -> None:
        """Take part in the next commit."""


class AckContext(Protocol):
    """Applies acknowledgements."""

    def ack(self, seq: int, count: int, consumer_seq: int, reply: bytes) -> None:
        """Apply a plain acknowledgement."""

    def ack_all(self, seq: int, consumer_seq: int) -> None:
        """Acknowledge everything up to a sequence."""

    def handle_nak_term_progress(
        self, seq: int, count: int, consumer_seq: int, reply: bytes, payload: bytes
    ) -> None:
        """Apply any other acknowledgement."""

    def on_reset(self) -> None:
        """Clear the terminations from before a reset of the consumer."""


class LoopContext(Protocol):
    """Delivers messages, seen from receivers."""

    num_pending: int


class ConsumerContext(Protocol):
    """One consumer, seen from its parts."""

    config: ConsumerConfig
    ack_state: AckState
    log: StreamLog
    rate_limiter: RateLimiter
    router: SubjectRouter
    delivery_mode: DeliveryMode
    pending_counter: PendingCounter
    filter: Filter | None
    name: str
    name_bytes: bytes
    ack_prefix: bytes
    first_ack_prefix: bytes
    created_ns: int
    last_active_ns: int
    paused_until_ns: int
    persistent: bool
    stop_reason: StopReason

    @property
    def stream(self) -> ConsumerStream:
        """Return the stream."""

    @property
    def consumer_set(self) -> ConsumerSetContext:
        """Return the consumers of the stream together."""

    @property
    def jetstream(self) -> ConsumerJetStream:
        """Return the account's JetStream."""

    @property
    def ack_handler(self) -> AckContext:
        """Return what applies acknowledgements."""

    @property
    def delivery_loop(self) -> LoopContext:
        """Return what delivers messages."""

    @property
    def flow_subjects(self) -> tuple[bytes, ...]:
        """Return the subjects of flow-control replies."""

    @property
    def removes_acked(self) -> bool:
        """Return whether messages are removed once every consumer has acknowledged them."""

    def now_ns(self) -> int:
        """Return a time for measuring intervals."""

    def schedule_delivery(self) -> None:
        """Deliver at the end of this turn of the event loop."""

    def arm_timer(self) -> None:
        """Set the timer to the earliest moment at which a part has something to do."""

    def persist_soon(self) -> None:
        """Persist the ack state within 100 ms; no reply waits for it."""

    def persist_state(self) -> None:
        """Put the ack state into the open frame."""

    def make_heartbeat(self) -> bytes:
        """Build the idle heartbeat."""

    def num_pending(self) -> int:
        """Return how many messages have not been delivered yet."""

    def at_max_ack_pending(self) -> bool:
        """Return whether the maximum number of messages is pending."""

    def ack_pending_room(self) -> int:
        """Return how many more messages may be pending."""

    def get_ack_wait(self, count: int) -> int:
        """Return how long to wait for the ack of the `count`-th delivery."""

    def request_next(self, reply: bytes, body: bytes) -> None:
        """Handle a pull request that came with an acknowledgement."""

    def reply_when_durable(self, reply: bytes) -> None:
        """Confirm an acknowledgement after the next commit."""

    def resume_if_due(self) -> None:
        """End a pause that is over."""

    def pause_remaining_ns(self) -> int:
        """Return how long a pause still lasts."""

    def on_acked(self, seqs: list[int], was_full: bool) -> None:
        """Update state after pending messages were acknowledged."""

    def send_advisory(self, make_event: Callable[..., events.EncodedEvent], *values: object) -> None:
        """Publish an advisory about this consumer."""

    def send_group_advisory(
        self, make_event: Callable[..., events.EncodedEvent], group: str, value: str
    ) -> None:
        """Publish an advisory about a priority group of this consumer."""
