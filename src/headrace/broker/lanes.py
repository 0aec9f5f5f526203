"""Where a run of messages may go without a decision for each of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from headrace.kernel import Route

#: As much may wait for one connection before those who deliver hold back.
CROWDED_BYTES = 2 * 1024 * 1024


class Lanes(NamedTuple):
    """Targets that take turns, and how far a run may go; see `kernel.encode`."""

    targets: list[list[Any]]
    most: int
    base: int
    bytes_max: int
    strict: bool


def plain_subscriptions(route: Route) -> list[Any] | None:
    """The receivers of a route if the kernel can write to them directly: no groups, no sinks, nothing special."""
    if route.groups or route.sinks or not route.plain:
        return None
    return simple(route.plain)


def simple(subs: list[Any]) -> list[Any] | None:
    """The subscriptions, unless one of them counts its deliveries or may not have all."""
    for sub in subs:
        if sub.limit or sub.watched or sub.closed:
            return None
    return subs


def crowded_peer(subs: list[Any]) -> Any:
    """A receiver that has enough to take for now, None if there is none."""
    return crowded(sub.peer for sub in subs)


def crowded(peers: Iterable[Any]) -> Any:
    """One of the peers that has enough to take for now, None if there is none."""
    for peer in peers:
        if peer.blocked or len(peer.out) + peer.parted > CROWDED_BYTES:
            return peer
    return None
