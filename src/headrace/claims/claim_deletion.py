"""Deletes claims for good, for the collector and the sweeper: removes them, then counts and audits what is gone.

`ClaimRemover` sees to it that several collectors can run at once without harm and without counting a deletion twice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from headrace.claims.audit_trail import Audit
from headrace.claims.claim_removal import ClaimRemover
from headrace.claims.config import ClaimConfig
from headrace.claims.jetstream_client import RequestTimeout
from headrace.claims.metrics import Metrics
from headrace.claims.object_deletion import ClaimObjects
from headrace.claims.records import ClaimEntry, RejectedRecord, claim_subject
from headrace.claims.registry import Registry, metadata_ttl_s
from headrace.claims.stores import ObjectStore, ObjectStoreError
from headrace.errors import RequestError

_LOG = logging.getLogger("headrace.claims")


@dataclass(slots=True)
class CollectReport:
    """What a pass did or, in a dry run, would do."""

    collected: int = 0
    expired: int = 0
    orphans: int = 0
    waiting: int = 0
    failed: int = 0
    released: int = 0
    uploads: int = 0
    rejected: int = 0
    live: int = 0
    live_bytes: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def removed(self) -> int:
        return self.collected + self.expired

    def add(self, other: CollectReport) -> None:
        for name in (
            "collected",
            "expired",
            "orphans",
            "waiting",
            "failed",
            "released",
            "uploads",
            "rejected",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.live, self.live_bytes = other.live or self.live, other.live_bytes or self.live_bytes
        self.lines += other.lines


class ClaimDeleter:
    """Deletes claims of one namespace."""

    def __init__(
        self, config: ClaimConfig, store: ObjectStore, registry: Registry, audit: Audit, metrics: Metrics
    ) -> None:
        self._config = config
        self._objects = ClaimObjects(config, store)
        self._remover = ClaimRemover(config, store, registry, metrics)
        self._registry = registry
        self._audit = audit
        self._metrics = metrics

    async def delete(
        self,
        to_delete: Sequence[tuple[ClaimEntry, str]],
        now_ns: int,
        report: CollectReport,
        unread: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[list[ClaimEntry], list[ClaimEntry]]:
        """Delete claims (entry, event); `unread` are object keys of those that a consumer still needed.

        Returns those that are gone now, and those that are not, because the store did not delete their objects or
        another process changed them meanwhile. Claims whose objects are not ours are reported and in neither list: their
        records stay, and a retry would not help.
        """
        to_delete = await self._keep_own(to_delete, report)
        events = {entry.object_key: event for entry, event in to_delete}
        failures = _FailedDeletions(self._config, self._registry, self._audit, now_ns)
        removal = await self._remover.remove(
            [entry for entry, _ in to_delete], failures, isolate_failures=True
        )
        await self._audit_deleted(removal.removed, events, now_ns, unread)
        collected = sum(events[entry.object_key] == "collected" for entry in removal.removed)
        self._count_deleted(collected, len(removal.removed) - collected, report)
        report.failed += len(removal.failed)
        return removal.deleted, [*removal.failed, *removal.changed]

    async def _keep_own(
        self, to_delete: Sequence[tuple[ClaimEntry, str]], report: CollectReport
    ) -> list[tuple[ClaimEntry, str]]:
        """Filter out, and report, objects outside the configured bucket or namespace."""
        owned = [(entry, event) for entry, event in to_delete if self._objects.is_own(entry)]
        for entry, _ in to_delete if len(owned) < len(to_delete) else ():
            if not self._objects.is_own(entry):
                report.rejected += 1
                reason = f"{entry.bucket}/{entry.object_key} is not in {self._config.bucket}/{self._config.namespace}/"
                subject = claim_subject(entry.namespace, entry.claim_id)
                await self._registry.on_rejected(RejectedRecord("claim", subject, entry.revision, reason))
        return owned

    async def _audit_deleted(
        self,
        removed: Sequence[ClaimEntry],
        events: Mapping[str, str],
        now_ns: int,
        unread: Mapping[str, str],
    ) -> None:
        lifetime = self._metrics.lifetime.labels(self._config.namespace)
        for entry in removed:
            lifetime.observe(max(now_ns - entry.created_ns, 0) / 1e9)
            details = {"key": entry.object_key}
            if entry.object_key in unread:
                details["unread_by"] = unread[entry.object_key]
                self._report_unread(entry, unread[entry.object_key])
            await self._audit.record(entry.namespace, entry.claim_id, events[entry.object_key], **details)

    def _report_unread(self, entry: ClaimEntry, consumer: str) -> None:
        """Report a claim that ended by its age although a consumer needed it: its message is lost to that consumer."""
        self._metrics.expired_unread.labels(entry.namespace).inc()
        _LOG.warning(
            "claim %s on %s ended by its age before %s had read it", entry.claim_id, entry.subject, consumer
        )

    def _count_deleted(self, collected: int, expired: int, report: CollectReport) -> None:
        self._metrics.deleted.labels(self._config.namespace).inc(collected)
        self._metrics.expired.labels(self._config.namespace).inc(expired)
        report.collected += collected
        report.expired += expired


@dataclass(frozen=True, slots=True)
class _FailedDeletions:
    """Audits failed deletions of one pass; if a record cannot be restored, the hour in the key ends the claim."""

    config: ClaimConfig
    registry: Registry
    audit: Audit
    now_ns: int

    async def on_delete_failed(self, entry: ClaimEntry, error: ObjectStoreError) -> None:
        _LOG.warning("claim %s could not be deleted, will retry: %s", entry.claim_id, error)
        await self.audit.record(
            entry.namespace, entry.claim_id, "failed", step="delete", error=str(error)[:200]
        )

    async def restore_record(self, entry: ClaimEntry, tombstone: int) -> None:
        ttl_s = metadata_ttl_s(entry, self.config.ttl.grace_period, self.now_ns)
        try:
            await self.registry.restore(entry, tombstone, ttl_s)
        except (RequestTimeout, RequestError) as error:
            _LOG.warning("claim %s will be removed by the next sweep: %s", entry.claim_id, error)
