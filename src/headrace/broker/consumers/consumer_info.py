"""Builds consumer info for API responses.

Shows only ack floors that are durable: state that is not persisted yet goes into the frame that the response waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace import COMPATIBLE_VERSION
from headrace.jetstream_api import responses

if TYPE_CHECKING:
    from headrace.broker.consumers.consumer_context import ConsumerContext


def make_consumer_info(consumer: ConsumerContext, *, in_list: bool = False) -> dict[str, Any]:
    """Return configuration and state; in a list, without the metadata that only this server adds."""
    stream, jetstream = consumer.stream, consumer.jetstream
    stream.retention.enforce()
    if consumer.ack_state.dirty:
        consumer.persist_state()
        jetstream.group_commit.schedule()
    return responses.make_consumer_info_body(
        stream.name,
        consumer.name,
        consumer.created_ns,
        responses.encode_public_config(consumer.config, "" if in_list else COMPATIBLE_VERSION),
        _make_state(consumer),
        jetstream.clock.now_ns(),
    )


def _make_state(consumer: ConsumerContext) -> responses.ConsumerInfoState:
    ack_state, delivery_mode = consumer.ack_state, consumer.delivery_mode
    timers = consumer.jetstream.timers
    clock_offset_ns = timers.clock_offset_ns

    def date(moment_ns: int) -> int:
        """Convert to wall-clock time."""
        return max(moment_ns - clock_offset_ns, 1) if moment_ns else 0

    groups: list[responses.PriorityGroupState] = []
    pinned_client = delivery_mode.pinned_client
    if pinned_client is not None:
        delivery_mode.check_timeouts(consumer.now_ns(), caught_up=False)
        if consumer.config.priority_groups:
            group = consumer.config.priority_groups[0]
            groups = [
                responses.PriorityGroupState(
                    group, pinned_client.pin_id.decode(), date(pinned_client.pinned_since_ns)
                )
            ]
    return responses.ConsumerInfoState(
        delivered=responses.SequenceInfo(
            ack_state.consumer_seq, ack_state.stream_seq, date(ack_state.last_delivery_ns)
        ),
        ack_floor=responses.SequenceInfo(*ack_state.get_ack_floor(), date(ack_state.last_ack_ns)),
        num_ack_pending=len(ack_state.pending),
        num_redelivered=0 if consumer.config.max_deliver == 1 else len(ack_state.delivery_counts),
        num_waiting=delivery_mode.waiting_count,
        num_pending=consumer.num_pending(),
        push_bound=delivery_mode.is_bound,
        pause_remaining_ns=consumer.pause_remaining_ns(),
        groups=groups,
        num_blocked_subjects=ack_state.key_order.blocked if ack_state.key_order is not None else None,
    )
