"""Recent events for the web page: messages that expired, markers left, batches committed or abandoned.

Counts all events of a stream as long as the stream exists, keeps only the newest ones, and decides nothing. An event may
be recorded before its frame is durable; code that shows it waits for the commit, as for everything else.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

RECENT_MAX = 200


class BrokerEvent(NamedTuple):
    """`number` grows by one with each event, so that a viewer can ask for new ones only."""

    number: int
    time_ns: int
    kind: str  # expired, marker, batch, abandoned
    stream: str
    text: str


class EventHistory:
    """Counts by (kind, stream), and the newest events."""

    __slots__ = ("counts", "number", "recent")

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.recent: deque[BrokerEvent] = deque(maxlen=RECENT_MAX)
        self.number = 0

    def record(self, time_ns: int, kind: str, stream: str, text: str, count: int = 1) -> None:
        """Record an event that happened `count` times."""
        self.counts[kind, stream] += count
        self.number += 1
        self.recent.append(BrokerEvent(self.number, time_ns, kind, stream, text))

    def drop_stream(self, stream: str) -> None:
        """Remove the counts of a deleted stream, so that a new one with its name starts at zero."""
        for key in [key for key in self.counts if key[1] == stream]:
            del self.counts[key]
