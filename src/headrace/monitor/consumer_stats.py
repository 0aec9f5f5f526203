"""Statistics of a consumer, read without changing it; cheap enough for frequent polling."""

from __future__ import annotations

from typing import NamedTuple

from headrace.broker.consumers.consumer import Consumer

#: What keeps consumers from delivering; see `describe_state`.
STATES = ("paused", "max ack pending", "no subscriber", "no pulls", "redelivering")


class ConsumerStats(NamedTuple):
    kind: str
    delivered: int
    ack_floor: int
    pending: int
    ack_pending: int
    redelivered: int
    waiting: int
    paused: bool
    blocked_keys: int
    dead_letters: int
    failed_dead_letters: int
    state: str


def get_consumer_stats(consumer: Consumer) -> ConsumerStats:
    """Return the current figures of a consumer."""
    pending = consumer.num_pending()
    ack_state, delivery_mode = consumer.ack_state, consumer.delivery_mode
    dead_letters = consumer.ack_handler.dead_letters
    return ConsumerStats(
        kind=delivery_mode.kind,
        delivered=ack_state.stream_seq,
        ack_floor=ack_state.get_ack_floor()[1],
        pending=pending,
        ack_pending=len(ack_state.pending),
        redelivered=0 if consumer.config.max_deliver == 1 else len(ack_state.delivery_counts),
        waiting=delivery_mode.waiting_count,
        paused=bool(consumer.pause_remaining_ns()),
        blocked_keys=ack_state.key_order.blocked if ack_state.key_order is not None else 0,
        dead_letters=dead_letters.published,
        failed_dead_letters=dead_letters.failed,
        state=describe_state(consumer, pending),
    )


def describe_state(consumer: Consumer, pending: int) -> str:
    """Return what keeps a consumer from delivering, as `headrace consumer report` names it; "" if nothing does."""
    if consumer.paused_until_ns and consumer.is_paused():
        return "paused"
    ack_state, config = consumer.ack_state, consumer.config
    if ack_state.pending and consumer.at_max_ack_pending():
        return "max ack pending"
    if pending:
        delivery_mode = consumer.delivery_mode
        if config.deliver_subject:
            if not delivery_mode.is_bound:
                return "no subscriber"
        elif not delivery_mode.waiting_count:
            return "no pulls"
    return "redelivering" if ack_state.delivery_counts and config.max_deliver != 1 else ""
