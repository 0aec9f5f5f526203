"""Statistics of a consumer, read without changing it; cheap enough for frequent polling."""

from __future__ import annotations

from typing import NamedTuple

from headrace.broker.consumers.consumer import Consumer


class ConsumerStats(NamedTuple):
    kind: str
    delivered: int
    ack_floor: int
    pending: int
    ack_pending: int
    redelivered: int
    waiting: int
    paused: bool


def get_consumer_stats(consumer: Consumer) -> ConsumerStats:
    """Return the current figures of a consumer."""
    ack_state, delivery_mode = consumer.ack_state, consumer.delivery_mode
    return ConsumerStats(
        kind=delivery_mode.kind,
        delivered=ack_state.stream_seq,
        ack_floor=ack_state.get_ack_floor()[1],
        pending=consumer.num_pending(),
        ack_pending=len(ack_state.pending),
        redelivered=0 if consumer.config.max_deliver == 1 else len(ack_state.delivery_counts),
        waiting=delivery_mode.waiting_count,
        paused=bool(consumer.pause_remaining_ns()),
    )
