"""Reports records that cannot be read or that name an object they must not: once each, by log, metric and audit event.

A rejected record is left in place, because a newer program may have written it. It ends by its TTL, and its object by
the hour in the object's key. This module decides nothing.
"""

from __future__ import annotations

from headrace.claims.audit_trail import Audit
from headrace.claims.metrics import Metrics
from headrace.claims.records import RejectedRecord, log_rejected
from headrace.claims.reference import is_claim_id

_SEEN_MAX = 10_000


class Rejections:
    """Reports the records that one program rejects for a namespace."""

    def __init__(self, namespace: str, audit: Audit, metrics: Metrics) -> None:
        self._namespace = namespace
        self._audit = audit
        self._metrics = metrics
        self._seen: set[tuple[str, int]] = set()

    async def report(self, rejected: RejectedRecord) -> None:
        """Report a record, unless it was reported before."""
        if (rejected.subject, rejected.seq) in self._seen:
            return
        if len(self._seen) >= _SEEN_MAX:
            self._seen.clear()
        self._seen.add((rejected.subject, rejected.seq))
        await log_rejected(rejected)
        self._metrics.rejected.labels(self._namespace, rejected.kind).inc()
        token = rejected.subject.rpartition(".")[2]
        claim_id = token if rejected.kind in ("claim", "due") and is_claim_id(token) else "unknown"
        await self._audit.record(
            self._namespace,
            claim_id,
            "failed",
            step="decode",
            subject=rejected.subject[:200],
            seq=rejected.seq,
            error=rejected.reason[:200],
        )
