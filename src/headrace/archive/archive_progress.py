"""How far the archive of a running server is: what metrics, the page and `/healthz` show. `GroupWriter` updates it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ArchiveProgress:
    """What is archived: everything that was durable at `complete_ns`, if a base was made since the start."""

    epoch: int = 0
    group: int = 0
    base_group: int = 0
    base_ns: int = 0
    floor: int = 0
    groups: int = 0
    bytes: int = 0
    bases: int = 0
    base_sent_bytes: int = 0  # also for bases that were not completed
    complete_ns: int = 0
    is_covered: bool = False  # a base of this epoch has all stores
    archived: dict[int, int] = field(default_factory=dict)
