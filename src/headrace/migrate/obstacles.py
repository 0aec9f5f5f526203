"""Which streams cannot be moved, by their configuration alone, and what to do instead.

Owns the rules that `migrate check` and `migrate move` share. A move closes a stream for publishers; these streams would
be written to all the same, or cannot be closed. Must not know connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Obstacle(NamedTuple):
    """Why a stream cannot be moved, and the remedy."""

    text: str
    remedy: str


def find_obstacles(config: Mapping[str, Any]) -> Iterator[Obstacle]:
    """Yield what keeps a stream from being moved."""
    if upstreams := list_upstreams(config):
        yield Obstacle(
            f"it copies from {', '.join(upstreams)}",
            "create it on the new server with the same mirror or sources, or remove them here",
        )
    if config.get("sealed"):
        yield Obstacle(
            "it is sealed, so no move can close it",
            "use 'headrace stream backup' and 'headrace stream restore'",
        )
    if config.get("allow_msg_schedules"):
        yield Obstacle(
            "its schedules would continue to fire on the old server",
            "create a stream on the new server with --allow-schedules, and publish the schedules there",
        )


def list_upstreams(config: Mapping[str, Any], *, local: bool = False) -> list[str]:
    """Return the names of the streams that a stream copies from; `local` leaves out those of other servers."""
    upstreams = [config["mirror"]] if config.get("mirror") else config.get("sources") or []
    return [str(each["name"]) for each in upstreams if not (local and each.get("external"))]
