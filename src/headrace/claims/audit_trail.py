"""Audit trail: the events of every claim in a stream (created, retrieved, released, deleted, expired, failed,
collected).

Subjects are `$CLAIMS.audit.{namespace}.{id}.{event}`. Events inform and decide nothing: they are sent without waiting,
and a claim never fails because its event did. The time of an event is the server's timestamp of the message.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from headrace.claims.clock import SECOND_NS
from headrace.claims.jetstream_client import JetStreamClient, encode_json
from headrace.claims.records import decode_audit_event
from headrace.claims.registry import ensure_stream, scan_subjects
from headrace.claims.stream_messages import StreamMessage

STREAM = "CLAIMS_AUDIT"
EVENTS = ("created", "retrieved", "released", "deleted", "expired", "failed", "collected")


@dataclass(frozen=True, slots=True)
class ClaimEvent:
    namespace: str
    claim_id: str
    event: str
    seq: int
    time_ns: int
    details: dict[str, Any]


class Audit:
    """Writes and reads the audit trail; `enabled=False` writes nothing."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        *,
        enabled: bool = True,
        retention_days: int = 30,
        stream_settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._jetstream = jetstream
        self._enabled = enabled
        self._retention_days = retention_days
        self._stream_settings = stream_settings

    async def ensure(self) -> None:
        config = {
            "name": STREAM,
            "subjects": ["$CLAIMS.audit.>"],
            "max_age": self._retention_days * 86400 * SECOND_NS,
            "allow_direct": True,
            "storage": "file",
            "description": "Claim check: what happened to claims",
            **self._stream_settings,
        }
        if self._enabled:
            await ensure_stream(self._jetstream, config)

    async def record(self, namespace: str, claim_id: str, event: str, **details: Any) -> None:
        if self._enabled:
            await self._jetstream.publish_nowait(
                f"$CLAIMS.audit.{namespace}.{claim_id}.{event}", encode_json(details)
            )

    async def events(self, namespace: str = "*", claim_id: str = "*") -> AsyncIterator[ClaimEvent]:
        """Yield the known events, oldest first."""
        async for page in scan_subjects(self._jetstream, STREAM, f"$CLAIMS.audit.{namespace}.{claim_id}.*"):
            for item in page:
                yield _parse_event(item)


def _parse_event(item: StreamMessage) -> ClaimEvent:
    _, _, namespace, claim_id, event = item.subject.split(".")
    return ClaimEvent(namespace, claim_id, event, item.seq, item.time_ns, decode_audit_event(item.data))
