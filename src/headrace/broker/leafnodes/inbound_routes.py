"""Routes of messages that arrive over a leafnode connection.

Invariant: a message never goes back over the connection it came from, and reaches only the queue groups that the other
side has chosen.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from headrace._native import KEY_EXACT, PublishFastPath, Route
from headrace.broker.routing.message_trace import KIND_LEAFNODE
from headrace.broker.routing.remote_interest import LeafnodeFanout, LeafnodeSender
from headrace.broker.routing.router import SubjectRouter
from headrace.broker.routing.traced_delivery import TracedDelivery, TracedMessage, send_trace, start_trace


class InboundRoute(NamedTuple):
    """The route of one subject for messages that arrive over one connection; usable as long as `route.valid`."""

    route: Route
    local_route: Route | None
    internal_subscribers: list[Any]
    fast_paths: list[PublishFastPath]


def resolve_inbound(
    router: SubjectRouter, source: LeafnodeSender, subject: bytes, queues: Collection[bytes]
) -> InboundRoute:
    """Build the route of messages from `source` on a well-formed subject, for these queue groups."""
    route = router.get_route(subject)
    queue_groups = [group for group in route.queue_groups if group[0].queue in queues]
    internal_subscribers: list[Any] = []
    fast_paths = [
        subscriber for subscriber in route.internal_subscribers if isinstance(subscriber, PublishFastPath)
    ]
    for subscriber in route.internal_subscribers:
        forwarded = (
            subscriber.exclude(source, queues) if isinstance(subscriber, LeafnodeFanout) else subscriber
        )
        if forwarded is not None and not isinstance(subscriber, PublishFastPath):
            internal_subscribers.append(forwarded)
    local = (
        Route(subject, KEY_EXACT, route.subscribers, queue_groups, [])
        if route.subscribers or queue_groups
        else None
    )
    return InboundRoute(route, local, internal_subscribers, fast_paths)


def deliver_traced(
    router: SubjectRouter, session: Any, route: InboundRoute, message: TracedMessage, stored_subject: bytes
) -> bytes:
    """Deliver a message that may have to be traced; return its header if it still has to be delivered."""
    tracing = router.tracing
    trace, header, drop = start_trace(tracing, session, KIND_LEAFNODE, message)
    if trace is None or tracing is None:
        return b"" if drop else header
    delivery = TracedDelivery(trace, session)
    if route.local_route is not None:
        delivery.deliver(session.table, route.local_route, tracing.account, message)
    for subscriber in route.internal_subscribers:
        delivery.deliver_internal(subscriber, message)
    for fast_path in route.fast_paths:
        delivery.deliver_internal(fast_path, message._replace(subject=stored_subject))
    send_trace(router, trace)
    return b""
