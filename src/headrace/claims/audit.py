"""The life of every claim as events in a stream: created, retrieved, released, deleted, expired, failed, collected.

`$CLAIMS.audit.{namespace}.{id}.{event}`. Events tell, they decide nothing: they are sent without waiting, and a claim
never fails because its event did. The server's time on the message is the event's time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from headrace.claims.clock import SECOND_NS
from headrace.claims.records import decode_facts_of_event
from headrace.claims.registry import ensure_stream, scan_subjects
from headrace.claims.wire import Stored, Wire, encoded

STREAM = "CLAIMS_AUDIT"
EVENTS = ("created", "retrieved", "released", "deleted", "expired", "failed", "collected")


@dataclass(frozen=True, slots=True)
class Event:
    namespace: str
    claim_id: str
    event: str
    seq: int
    time_ns: int
    facts: dict[str, Any]


class Audit:
    """Writes and reads the trail; `enabled=False` writes nothing."""

    def __init__(self, wire: Wire, *, enabled: bool = True, keep_days: int = 30) -> None:
        self._wire = wire
        self._enabled = enabled
        self._keep_days = keep_days

    async def ensure(self) -> None:
        config = {
            "name": STREAM,
            "subjects": ["$CLAIMS.audit.>"],
            "max_age": self._keep_days * 86400 * SECOND_NS,
            "allow_direct": True,
            "storage": "file",
            "description": "Claim check: what happened to claims",
        }
        if self._enabled:
            await ensure_stream(self._wire, config)

    async def tell(self, namespace: str, claim_id: str, event: str, **facts: Any) -> None:
        if self._enabled:
            await self._wire.send(f"$CLAIMS.audit.{namespace}.{claim_id}.{event}", encoded(facts))

    async def events(self, namespace: str = "*", claim_id: str = "*") -> AsyncIterator[Event]:
        """What is known, oldest first."""
        async for page in scan_subjects(self._wire, STREAM, f"$CLAIMS.audit.{namespace}.{claim_id}.*"):
            for item in page:
                yield _event(item)


def _event(item: Stored) -> Event:
    _, _, namespace, claim_id, event = item.subject.split(".")
    return Event(namespace, claim_id, event, item.seq, item.time_ns, decode_facts_of_event(item.data))
