"""The query of a page: the parameters after `?` in its URL, or in the body of a request on `$SYS.>`."""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT_LIMIT = 1024

Query = Mapping[str, str]


def has_flag(query: Query, name: str) -> bool:
    """Whether a flag is set, by nats-server's rules."""
    return query.get(name, "").lower() in ("1", "true", "t")


def parse_offset_limit(query: Query) -> tuple[int, int]:
    """Return how many entries to skip and how many to show; raise ValueError if they are not numbers."""
    return int(query.get("offset", 0)), int(query.get("limit", DEFAULT_LIMIT)) or DEFAULT_LIMIT
