"""Deletes claims for good: first the record, then the object, then the audit event.

Shared by the collector and the sweeper. Only the process that wins the compare-and-set on the record deletes the
object: a producer that uses the claim again changes the record before it publishes, so its object stays. A process that
dies in between leaves an object that the sweep finds. Several collectors can run at once without harm and without
counting a deletion twice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.claims.audit_trail import Audit
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
        self._registry = registry
        self._audit = audit
        self._metrics = metrics

    async def delete(
        self, to_delete: Sequence[tuple[ClaimEntry, str]], now_ns: int, report: CollectReport
    ) -> tuple[list[ClaimEntry], list[ClaimEntry]]:
        """Delete claims (entry, event).

        Returns those that are gone now, and those that are not, because the store did not delete their objects or
        somebody changed them meanwhile. Claims whose objects are not ours are reported and in neither list: their
        records stay, and a retry would not help.
        """
        to_delete = await self._keep_own(to_delete, report)
        events = {entry.object_key: event for entry, event in to_delete}
        entries = [entry for entry, _ in to_delete]
        tombstones = {
            entry.object_key: tombstone for entry, tombstone in await self._registry.remove(entries)
        }
        # An orphan whose time is over is deleted in any case.
        deletable = [entry for entry in entries if entry.object_key in tombstones or not entry.revision]
        deleted, failed = await self._delete_objects(deletable)
        await self._restore_entries(
            [(entry, tombstones[entry.object_key]) for entry in failed if entry.revision], now_ns
        )
        removed = [entry for entry in deleted if entry.object_key in tombstones]
        await self._audit_deleted(removed, events, now_ns)
        collected = sum(events[entry.object_key] == "collected" for entry in removed)
        self._count_deleted(collected, len(removed) - collected, report)
        report.failed += len(failed)
        if len(tombstones) < len(entries):
            failed += [entry for entry in entries if entry.object_key not in tombstones and entry.revision]
        return deleted, failed

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
        self, removed: Sequence[ClaimEntry], events: Mapping[str, str], now_ns: int
    ) -> None:
        lifetime = self._metrics.lifetime.labels(self._config.namespace)
        for entry in removed:
            lifetime.observe(max(now_ns - entry.created_ns, 0) / 1e9)
            await self._audit.record(
                entry.namespace, entry.claim_id, events[entry.object_key], key=entry.object_key
            )

    async def _restore_entries(self, removed: Sequence[tuple[ClaimEntry, int]], now_ns: int) -> None:
        """Restore the records of objects that still exist; if that fails, the hour in the key ends them."""
        for entry, tombstone in removed:
            ttl_s = metadata_ttl_s(entry, self._config.ttl.grace_period, now_ns)
            try:
                await self._registry.restore(entry, tombstone, ttl_s)
            except (RequestTimeout, RequestError) as error:
                _LOG.warning("claim %s is left to the sweep: %s", entry.claim_id, error)

    def _count_deleted(self, collected: int, expired: int, report: CollectReport) -> None:
        self._metrics.deleted.labels(self._config.namespace).inc(collected)
        self._metrics.expired.labels(self._config.namespace).inc(expired)
        report.collected += collected
        report.expired += expired

    async def _delete_objects(
        self, entries: Sequence[ClaimEntry]
    ) -> tuple[list[ClaimEntry], list[ClaimEntry]]:
        """Delete all at once; if the store refuses, one by one, to learn which ones fail."""
        if not entries:
            return [], []
        try:
            await self._objects.delete(entries)
            return list(entries), []
        except ObjectStoreError:
            return await self._delete_one_by_one(entries)

    async def _delete_one_by_one(
        self, entries: Sequence[ClaimEntry]
    ) -> tuple[list[ClaimEntry], list[ClaimEntry]]:
        deleted: list[ClaimEntry] = []
        failed: list[ClaimEntry] = []
        for entry in entries:
            try:
                await self._objects.delete([entry])
                deleted.append(entry)
            except ObjectStoreError as error:
                failed.append(entry)
                self._metrics.delete_failures.labels(entry.namespace).inc()
                await self._audit.record(
                    entry.namespace, entry.claim_id, "failed", step="delete", error=str(error)[:200]
                )
        return deleted, failed
