"""Handles acknowledgements from clients: ack, nak, term, in progress, next.

The dispatcher receives everything below `$JS.ACK.` with one subscription, so that the route of an acknowledgement is
always in the compiled core's cache, and finds the consumer by its name. The reply to a confirmed acknowledgement (double
ack) is sent when it is durable. See ADR 61.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec

from headrace._native import split_ack_subject
from headrace.broker.consumers.dead_letters import DeadLetterPublisher
from headrace.code_probes import sometimes
from headrace.jetstream_api import advisories as events
from headrace.jetstream_api.field_types import INT64_MAX
from headrace.jetstream_api.times import parse_duration
from headrace.jetstream_api.validation.dead_letter_fields import TERM
from headrace.protocol.json_exceptions import JSON_ERRORS

if TYPE_CHECKING:
    from headrace.broker.consumers.ack_state import AckState
    from headrace.broker.consumers.consumer_context import ConsumerContext

PATTERN = b"$JS.ACK.>"
_ACK_PAYLOADS = (b"+ACK", b"", b"+OK")
_DELETED_REASON = "Unacknowledged message was deleted"


class AckDispatcher:
    """Receives all acknowledgements of the account and finds their consumers by stream and name."""

    __slots__ = ("_consumers",)

    #: Announced to other servers for each consumer instead: some acknowledgements may be for other servers.
    announced = False

    def __init__(self) -> None:
        self._consumers: dict[bytes, ConsumerContext] = {}

    def register(self, key: bytes, consumer: ConsumerContext) -> None:
        """Send acknowledgements for this key (`<stream>.<consumer>`, perhaps with domain and account) to a consumer."""
        self._consumers[key] = consumer

    def unregister(self, key: bytes) -> None:
        """Ignore acknowledgements for this key."""
        self._consumers.pop(key, None)

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        """Handle one acknowledgement; return 0 if it is for no consumer here."""
        parts = split_ack_subject(subject)
        consumer = self._consumers.get(parts[0]) if parts is not None else None
        if parts is None or consumer is None:
            return 0
        _, count, seq, consumer_seq = parts
        if payload in _ACK_PAYLOADS:
            if seq > 0:
                consumer.ack_handler.ack(seq, count, consumer_seq, reply)
        elif seq > 0:
            consumer.ack_handler.handle_nak_term_progress(seq, count, consumer_seq, reply, payload)
        return 1


class AckHandler:
    """Handles the acknowledgements of one consumer."""

    __slots__ = ("_consumer", "_is_ack_all", "_sample_percent", "dead_letters")

    def __init__(self, consumer: ConsumerContext) -> None:
        self._consumer = consumer
        self.dead_letters = DeadLetterPublisher(consumer)
        self.configure()

    def configure(self) -> None:
        config = self._consumer.config
        self._is_ack_all = config.ack_policy == "all"
        self._sample_percent = int(config.sample_freq.removesuffix("%") or 0)
        self.dead_letters.configure()

    def on_reset(self) -> None:
        """Clear the terminations from before a reset of the consumer."""
        self.dead_letters.forget_terminated()

    def close(self) -> None:
        """Stop: the consumer is being deleted."""
        self.dead_letters.configure()

    # Ack

    def ack(self, seq: int, count: int, consumer_seq: int, reply: bytes) -> None:
        """Handle the ack of a message."""
        consumer = self._consumer
        ack_state = consumer.ack_state
        if seq >= ack_state.next_seq and not consumer.config.flow_control:
            return
        if (
            ack_state.delivery_counts  # without redeliveries, only an ack that is not pending can be outdated
            and ack_state.key_order is not None
            and _is_outdated(ack_state, seq, count)
        ):
            return
        if self._sample_percent and seq in ack_state.pending:
            self._sample(seq, count, consumer_seq)
        if self._apply_ack(seq, consumer_seq) and reply:
            consumer.reply_when_durable(reply)

    def _apply_ack(self, seq: int, consumer_seq: int) -> bool:
        """Mark a message as acknowledged; return False for one that was passed over, and so never delivered."""
        consumer = self._consumer
        ack_state = consumer.ack_state
        if self._is_ack_all:
            # Only the stream sequence counts: a redelivery of an earlier message may have raised the consumer sequence
            # beyond this.
            self.ack_all(seq, max(consumer_seq, ack_state.get_ack_floor()[0]))
            return True
        limit, pending = consumer.config.max_ack_pending, len(ack_state.pending)
        if ack_state.ack(seq):
            consumer.on_acked([seq], 0 < limit <= pending)
            return True
        if ack_state.key_order is not None and ack_state.key_order.is_passed(seq):
            return False
        if consumer.removes_acked:  # past max_deliver, or skipped since its delivery: it is done all the same
            sometimes("ack of a message that is not pending")
            consumer.consumer_set.mark_acked([seq], recheck=True)
        if ack_state.dirty:
            consumer.persist_soon()
        return True

    def ack_all(self, seq: int, consumer_seq: int) -> None:
        """Acknowledge everything up to a message.

        A forged ack with sequences that were never delivered must not move the floor beyond them.
        """
        consumer = self._consumer
        ack_state = consumer.ack_state
        seq, consumer_seq = min(seq, ack_state.stream_seq), min(consumer_seq, ack_state.consumer_seq)
        if seq <= ack_state.get_ack_floor()[1]:
            return
        was_full = consumer.at_max_ack_pending()
        consumer.on_acked(ack_state.ack_through(seq, consumer_seq), was_full)

    # Other kinds

    def handle_nak_term_progress(
        self, seq: int, count: int, consumer_seq: int, reply: bytes, payload: bytes
    ) -> None:
        """Handle everything but a plain ack: nak, term, in progress, and ack with a request for more."""
        consumer = self._consumer
        if payload.startswith(b"+NXT"):
            self.ack(seq, count, consumer_seq, b"")
            if reply:
                consumer.request_next(reply, payload[4:])
            return
        if payload.startswith(b"-NAK"):
            self._nak(seq, count, consumer_seq, payload[4:].strip())
        elif payload == b"+WPI":
            self._extend_deadline(seq, count)
        elif payload.startswith(b"+TERM") and not self._terminate(
            seq, count, consumer_seq, payload[5:].strip()
        ):
            return
        if reply:
            consumer.reply_when_durable(reply)

    def _nak(self, seq: int, count: int, consumer_seq: int, argument: bytes) -> None:
        """Redeliver, now or after a delay."""
        consumer = self._consumer
        ack_state = consumer.ack_state
        if ack_state.key_order is not None and _is_outdated(ack_state, seq, count):
            return
        if (
            seq not in ack_state.pending
            or not ack_state.get_ack_floor()[0] < consumer_seq <= ack_state.consumer_seq
        ):
            return
        consumer.send_advisory(events.make_message_naked, consumer_seq, seq, count)
        now_ns = consumer.now_ns()
        delay_ns = _parse_nak_delay(argument) if argument else 0
        if delay_ns > 0:
            ack_state.redelivery_queue.discard(seq)
            sometimes("nak with delay")
            ack_state.set_deadline(seq, now_ns + delay_ns)
            consumer.arm_timer()
        else:
            ack_state.set_deadline(
                seq, now_ns + (consumer.get_ack_wait(ack_state.get_delivery_count(seq)) or 0)
            )
            ack_state.enqueue(seq)
            consumer.schedule_delivery()
        consumer.persist_soon()

    def _extend_deadline(self, seq: int, count: int) -> None:
        """Restart the ack wait of a message in progress."""
        consumer = self._consumer
        if consumer.ack_state.key_order is not None and _is_outdated(consumer.ack_state, seq, count):
            return
        wait_ns = consumer.get_ack_wait(consumer.ack_state.get_delivery_count(seq))
        if seq in consumer.ack_state.pending and wait_ns:
            consumer.last_active_ns = now_ns = consumer.now_ns()
            consumer.ack_state.set_deadline(seq, now_ns + wait_ns)
            consumer.persist_soon()

    def _terminate(self, seq: int, count: int, consumer_seq: int, reason: bytes) -> bool:
        """Never deliver the message again; return False if it was never delivered."""
        consumer = self._consumer
        if seq >= consumer.ack_state.next_seq and not consumer.config.flow_control:
            return False
        if consumer.ack_state.key_order is not None and _is_outdated(consumer.ack_state, seq, count):
            return False
        if self.dead_letters.wants(TERM) and seq in consumer.ack_state.pending:
            if not self.dead_letters.publish(seq, TERM, count, reason):
                return False
        else:
            self._apply_ack(seq, consumer_seq)
        sometimes("message terminated by the client")
        self.advise_terminated(seq, count, consumer_seq, reason.decode("utf-8", "replace"))
        return True

    def on_pending_removed(self, seq: int) -> None:
        """Drop a pending message that left the stream, and send an advisory."""
        ack_state = self._consumer.ack_state
        consumer_seq, count = ack_state.pending.get(seq, 0), ack_state.get_delivery_count(seq)
        ack_state.remove(seq)
        sometimes("pending message removed")
        self.advise_terminated(seq, count, consumer_seq, _DELETED_REASON)

    def advise_terminated(self, seq: int, count: int, consumer_seq: int, reason: str) -> None:
        self._consumer.send_advisory(events.make_message_terminated, consumer_seq, seq, count, reason)

    def _sample(self, seq: int, count: int, consumer_seq: int) -> None:
        """Publish the time that the client took, for the configured percentage of messages."""
        if self._sample_percent < 100 and random.randrange(100) > self._sample_percent:
            return
        consumer = self._consumer
        delivered_ns = consumer.ack_state.get_delivered_ns(seq, consumer.get_ack_wait(count))
        ack_time_ns = consumer.now_ns() - delivered_ns
        consumer.send_advisory(events.make_ack_metric, consumer_seq, seq, ack_time_ns, count)


def _is_outdated(ack_state: AckState, seq: int, count: int) -> bool:
    """Return whether an acknowledgement is for an earlier delivery than the last one, with order per key.

    Another worker has the message now, and the next one of the key must wait for that worker. A message that was passed
    over was not delivered at all, at least not since a reset. For a message that is pending again after a reset, an
    acknowledgement from before it counts: deliveries are counted from 1 again, as on nats-server.
    """
    if seq in ack_state.pending:
        outdated = count < ack_state.get_delivery_count(seq)
    else:
        outdated = ack_state.key_order is not None and ack_state.key_order.is_passed(seq)
    if outdated:
        sometimes("outdated ack ignored")
    return outdated


def _parse_nak_delay(argument: bytes) -> int:
    """Parse the delay of a nak in nanoseconds; 0 if it is not valid."""
    try:
        if argument[:1] == b"{":
            value = msgspec.json.decode(argument, type=dict[str, Any]).get("delay", 0)
            return value if type(value) is int and abs(value) <= INT64_MAX else 0
        return parse_duration(argument.decode()) or 0
    except JSON_ERRORS:
        return 0
