"""What consumers look like from outside. Floors are shown only when they are durable: whatever is not yet written down
goes into the frame that the answer waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace import COMPATIBLE_VERSION
from headrace.api import responses
from headrace.broker.pulls import Pulls
from headrace.broker.push import Push

if TYPE_CHECKING:
    from headrace.broker.consumer import Consumer


def consumer_info(consumer: Consumer, *, listed: bool = False) -> dict[str, Any]:
    """Configuration and state; in a list without what only this server adds to the metadata."""
    consumer.stream.retention.enforce()
    if consumer.progress.changed:
        consumer.save()
        consumer.jetstream.ticker.arm()
    return responses.consumer_info(
        consumer.stream.name,
        consumer.name,
        consumer.created_ns,
        responses.shown(consumer.config, "" if listed else COMPATIBLE_VERSION),
        _state(consumer),
        consumer.jetstream.now_ns(),
    )


def _state(consumer: Consumer) -> responses.ConsumerState:
    progress, outlet = consumer.progress, consumer.outlet
    behind_ns = consumer.jetstream.timers.behind_ns

    def date(moment_ns: int) -> int:
        """As the clock shows it now."""
        return max(moment_ns - behind_ns, 1) if moment_ns else 0

    waiting = 0
    groups: list[responses.GroupState] = []
    if isinstance(outlet, Pulls):
        outlet.look(consumer.now_ns(), at_end=False)
        waiting = len(outlet.waiting)
        if consumer.config.priority_groups:
            group, pin = consumer.config.priority_groups[0], outlet.pin
            groups = [responses.GroupState(group, pin.id.decode(), date(pin.since_ns))]
    return responses.ConsumerState(
        delivered=responses.Position(progress.consumer_seq, progress.stream_seq, date(progress.delivered_ns)),
        ack_floor=responses.Position(*progress.floor(), date(progress.acked_ns)),
        num_ack_pending=len(progress.pending),
        num_redelivered=0 if consumer.config.max_deliver == 1 else len(progress.counts),
        num_waiting=waiting,
        num_pending=consumer.num_pending(),
        push_bound=isinstance(outlet, Push) and outlet.active,
        pause_remaining_ns=consumer.pause_remaining(),
        groups=groups,
    )
