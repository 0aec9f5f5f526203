"""Probes: marks on branches that are rarely taken, so that a test campaign can prove that it took them.

Owns the count of each. `sometimes("name")` costs an entry in a dictionary and must not stand where every message passes.
There is no list of names: tests find the calls in the source. Knows nothing above it.
"""

from __future__ import annotations

#: How often each branch was taken in this process.
hits: dict[str, int] = {}


def sometimes(name: str) -> None:
    """This branch was taken."""
    hits[name] = hits.get(name, 0) + 1
