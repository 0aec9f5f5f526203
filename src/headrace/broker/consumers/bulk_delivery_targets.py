"""Targets for bulk delivery: receivers that a run of messages can be sent to without a decision for each message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from headrace._native import Route


class FanoutTargets(NamedTuple):
    """Targets that take turns, and limits of the run; see `_native.encode_deliveries`."""

    targets: list[list[Any]]
    max_messages: int
    base_size: int
    bytes_max: int
    strict: bool


def direct_targets(route: Route) -> list[Any] | None:
    """Return the receivers of a route if they are all unrestricted clients, which the compiled core can write to."""
    if route.queue_groups or route.internal_subscribers or not route.subscribers:
        return None
    return unrestricted_or_none(route.subscribers)


def unrestricted_or_none(subs: list[Any]) -> list[Any] | None:
    """Return the subscriptions, or None if one has a maximum, needs permission checks, or is closed."""
    for sub in subs:
        if sub.max_msgs or sub.needs_check or sub.closed:
            return None
    return subs


def first_congested_target(subs: list[Any]) -> Any:
    """Return the client of the first congested receiver; None if there is none."""
    return first_congested(sub.client for sub in subs)


def first_congested(clients: Iterable[Any]) -> Any:
    """Return the first congested client; None if there is none."""
    for client in clients:
        if client.blocked or len(client.buffer) + client.chunk_bytes > client.output_limit:
            return client
    return None
