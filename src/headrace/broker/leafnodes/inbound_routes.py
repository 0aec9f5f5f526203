"""Routes of messages that arrive over a leafnode connection.

Invariant: a message never goes back over the connection it came from, and reaches only the queue groups that the other
side has chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from headrace._native import KEY_EXACT, PublishFastPath, Route
from headrace.broker.leafnodes.leafnode_permissions import ConnectionPermissions, is_local_only
from headrace.broker.routing.message_trace import KIND_LEAFNODE
from headrace.broker.routing.remote_interest import LeafnodeFanout, LeafnodeSender
from headrace.broker.routing.router import SubjectRouter
from headrace.broker.routing.traced_delivery import TracedDelivery, TracedMessage, send_trace, start_trace
from headrace.protocol import subjects

ROUTES_MAX = 4096


class InboundRoute(NamedTuple):
    """The route of one subject for messages that arrive over one connection; usable as long as `route.valid`.

    `run_receiver` is the only receiver, if it takes runs of deliveries.
    """

    route: Route
    local_route: Route | None
    internal_subscribers: list[Any]
    fast_paths: list[PublishFastPath]
    run_receiver: Any | None


class InboundSession(LeafnodeSender, Protocol):
    """What the routes of inbound messages need of a leafnode connection."""

    @property
    def router(self) -> SubjectRouter: ...
    @property
    def leafnode_permissions(self) -> ConnectionPermissions: ...
    def on_violation(self, what: str, subject: bytes) -> None:
        """Raise ProtocolError if the other side has to know the permissions."""


class InboundRoutes:
    """The routes of messages that arrive over one connection, by subject and queue groups; at most ROUTES_MAX."""

    __slots__ = ("_routes",)

    def __init__(self) -> None:
        self._routes: dict[bytes | tuple[bytes, ...], InboundRoute] = {}

    def clear(self) -> None:
        self._routes.clear()

    def find(
        self, session: InboundSession, subject: bytes, queues: Sequence[bytes] = ()
    ) -> InboundRoute | None:
        """Return the route of messages that arrive on a subject; None if they are not accepted."""
        key = subject if not queues else (subject, *queues)
        route = self._routes.get(key)
        if route is not None and route.route.valid:
            return route
        if not _accepts(session, subject):
            return None
        if len(self._routes) >= ROUTES_MAX:
            self._routes.clear()
        route = self._routes[key] = resolve_inbound(session.router, session, subject, queues)
        return route

    def find_run_receiver(self, session: InboundSession, subject: bytes) -> Any | None:
        """Return the only receiver of a subject if it takes runs of deliveries."""
        route = self.find(session, subject)
        return route.run_receiver if route is not None else None


def _accepts(session: InboundSession, subject: bytes) -> bool:
    """Return whether messages on a subject are accepted; raise ProtocolError if one is a violation."""
    if not subjects.is_well_formed(subject):
        return False
    if session.leafnode_permissions.may_receive(subject):
        return True
    if not is_local_only(subject):
        session.on_violation("Publish", subject)
    return False


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
    run_receiver = None
    if local is None and not fast_paths and len(internal_subscribers) == 1:
        only = internal_subscribers[0]
        run_receiver = only if hasattr(only, "take_deliveries") else None
    return InboundRoute(route, local, internal_subscribers, fast_paths, run_receiver)


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
