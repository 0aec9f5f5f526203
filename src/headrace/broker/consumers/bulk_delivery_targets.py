"""Targets for bulk delivery: receivers that a run of messages can be sent to without a decision for each message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from headrace._native import Route

#: As much may wait for one connection before those who deliver hold back.
CONGESTED_BYTES = 2 * 1024 * 1024


class FanoutTargets(NamedTuple):
    """Targets that take turns, and how far a run may go; see `kernel.encode`."""

    targets: list[list[Any]]
    max_messages: int
    base_size: int
    bytes_max: int
    strict: bool


def direct_targets(route: Route) -> list[Any] | None:
    """The receivers of a route if the kernel can write to them directly: no groups, no sinks, nothing special."""
    if route.queue_groups or route.internal_subscribers or not route.subscribers:
        return None
    return unrestricted_or_none(route.subscribers)


def unrestricted_or_none(subs: list[Any]) -> list[Any] | None:
    """The subscriptions, unless one of them counts its deliveries or may not have all."""
    for sub in subs:
        if sub.max_msgs or sub.needs_check or sub.closed:
            return None
    return subs


def first_congested_target(subs: list[Any]) -> Any:
    """A receiver that has enough to take for now, None if there is none."""
    return first_congested(sub.client for sub in subs)


def first_congested(clients: Iterable[Any]) -> Any:
    """One of the clients that has enough to take for now, None if there is none."""
    for client in clients:
        if client.blocked or len(client.buffer) + client.chunk_bytes > CONGESTED_BYTES:
            return client
    return None
