"""Switches order per key of a consumer on and off, and changes it.

What was passed over is delivered also after it was switched off; then the consumer returns to plain delivery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.consumers.key_order import KeyOrder

if TYPE_CHECKING:
    from headrace.broker.consumers.ack_state import AckState
    from headrace.broker.consumers.consumer_context import ConsumerContext

#: With more pending messages, order per key is not ended yet: each of them gets another number.
_PENDING_MAX = 8_192


def apply_key_order(consumer: ConsumerContext) -> None:
    """Keep order per key as configured."""
    ack_state, config = consumer.ack_state, consumer.config
    limit, key_order = config.max_ack_pending_per_subject, ack_state.key_order
    if key_order is not None:
        key_order.set_limit(limit)
        if key_order.subject_filter is not consumer.filter:
            key_order.set_filter(consumer.filter)
    elif limit > 0 or ack_state.passed_keys:
        key_order = KeyOrder(consumer.log, ack_state, limit, config.key_tokens, consumer.schedule_delivery)
        key_order.restore(ack_state.pending, ack_state.passed_keys, consumer.filter)
        ack_state.passed_keys.clear()
        ack_state.key_order = key_order
        consumer.consumer_set.on_key_order_changed(consumer)


def close_key_order(ack_state: AckState) -> None:
    """End order per key with the consumer."""
    if ack_state.key_order is not None:
        ack_state.key_order.close()


def drop_key_order(consumer: ConsumerContext) -> None:
    """Return to plain delivery, if order per key was switched off and nothing passed over is left.

    Until then, any number of messages of a key may be pending.
    """
    key_order, is_off = consumer.ack_state.key_order, consumer.config.max_ack_pending_per_subject <= 0
    if key_order is None or not is_off or len(consumer.ack_state.pending) > _PENDING_MAX:
        return
    if not key_order.blocked:
        key_order.close()
        consumer.ack_state.drop_key_order()
        consumer.consumer_set.on_key_order_changed(consumer)
