"""The query of a page: the parameters after `?` in its URL, or in the body of a request on `$SYS.>`."""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT_LIMIT = 1024

Query = Mapping[str, str]


def has_flag(query: Query, name: str) -> bool:
    """Whether a flag is set, as the reference reads it."""
    return query.get(name, "").lower() in ("1", "true", "t")


def parse_offset_limit(query: Query) -> tuple[int, int]:
    """How many entries to pass over and how many to show; ValueError if they are no numbers."""
    return int(query.get("offset", 0)), int(query.get("limit", DEFAULT_LIMIT)) or DEFAULT_LIMIT
