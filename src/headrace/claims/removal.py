"""Removing claims for good: the facts first, then the object, then the news of it.

Shared by the collector and the sweeper. Only whoever wins the compare-and-set on the facts deletes the object: a producer
that uses the claim again has changed them before it publishes, so it keeps what it refers to. Whoever dies in between
leaves an object that the sweep finds. Several collectors at once neither harm nor count twice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.claims.audit import Audit
from headrace.claims.config import ClaimConfig
from headrace.claims.metrics import Metrics
from headrace.claims.objects import ClaimObjects
from headrace.claims.records import Entry, Rejected, claim_subject
from headrace.claims.registry import Registry, keep_s
from headrace.claims.stores import ObjectStore, StoreError
from headrace.claims.wire import NoAnswer
from headrace.errors import RequestError

_LOG = logging.getLogger("headrace.claims")


@dataclass(slots=True)
class Report:
    """What a pass did, or in a dry run would do."""

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

    def add(self, other: Report) -> None:
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


class Remover:
    """Removes the claims of one namespace."""

    def __init__(
        self, config: ClaimConfig, store: ObjectStore, registry: Registry, audit: Audit, metrics: Metrics
    ) -> None:
        self._config = config
        self._objects = ClaimObjects(config, store)
        self._registry = registry
        self._audit = audit
        self._metrics = metrics

    async def remove(
        self, doomed: Sequence[tuple[Entry, str]], now_ns: int, report: Report
    ) -> tuple[list[Entry], list[Entry]]:
        """Remove claims (entry, event); those that are gone now and those that are not, because the store would not
        delete their objects or somebody changed them meanwhile. Claims whose objects are not ours to delete are
        reported and in neither list: their facts stay, and trying again would not help.
        """
        doomed = await self._owned(doomed, report)
        events = {entry.object_key: event for entry, event in doomed}
        entries = [entry for entry, _ in doomed]
        taken = {entry.object_key: tombstone for entry, tombstone in await self._registry.remove(entries)}
        # An object whose time is over and that nobody knows goes in any case.
        mine = [entry for entry in entries if entry.object_key in taken or not entry.revision]
        gone, failed = await self._delete_objects(mine)
        await self._put_back([(entry, taken[entry.object_key]) for entry in failed if entry.revision], now_ns)
        removed = [entry for entry in gone if entry.object_key in taken]
        await self._tell(removed, events, now_ns)
        collected = sum(events[entry.object_key] == "collected" for entry in removed)
        self._count(collected, len(removed) - collected, report)
        report.failed += len(failed)
        if len(taken) < len(entries):
            failed += [entry for entry in entries if entry.object_key not in taken and entry.revision]
        return gone, failed

    async def _owned(self, doomed: Sequence[tuple[Entry, str]], report: Report) -> list[tuple[Entry, str]]:
        """Leave out, and report, what is not in the configured bucket or not of this namespace."""
        owned = [(entry, event) for entry, event in doomed if self._objects.is_own(entry)]
        for entry, _ in doomed if len(owned) < len(doomed) else ():
            if not self._objects.is_own(entry):
                report.rejected += 1
                reason = f"{entry.bucket}/{entry.object_key} is not in {self._config.bucket}/{self._config.namespace}/"
                subject = claim_subject(entry.namespace, entry.claim_id)
                await self._registry.on_rejected(Rejected("claim", subject, entry.revision, reason))
        return owned

    async def _tell(self, removed: Sequence[Entry], events: Mapping[str, str], now_ns: int) -> None:
        lifetime = self._metrics.lifetime.labels(self._config.namespace)
        for entry in removed:
            lifetime.observe(max(now_ns - entry.created_ns, 0) / 1e9)
            await self._audit.tell(
                entry.namespace, entry.claim_id, events[entry.object_key], key=entry.object_key
            )

    async def _put_back(self, removed: Sequence[tuple[Entry, int]], now_ns: int) -> None:
        """Facts of what is still there; if that fails the key's hour ends it."""
        for entry, tombstone in removed:
            kept_s = keep_s(entry, self._config.ttl.grace_period, now_ns)
            try:
                await self._registry.put_back(entry, tombstone, kept_s)
            except (NoAnswer, RequestError) as error:
                _LOG.warning("claim %s is left to the sweep: %s", entry.claim_id, error)

    def _count(self, collected: int, expired: int, report: Report) -> None:
        self._metrics.deleted.labels(self._config.namespace).inc(collected)
        self._metrics.expired.labels(self._config.namespace).inc(expired)
        report.collected += collected
        report.expired += expired

    async def _delete_objects(self, entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
        """All at once; if the store refuses, one by one, to learn which."""
        if not entries:
            return [], []
        try:
            await self._objects.delete(entries)
            return list(entries), []
        except StoreError:
            return await self._delete_singly(entries)

    async def _delete_singly(self, entries: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
        gone: list[Entry] = []
        failed: list[Entry] = []
        for entry in entries:
            try:
                await self._objects.delete([entry])
                gone.append(entry)
            except StoreError as error:
                failed.append(entry)
                self._metrics.delete_failures.labels(entry.namespace).inc()
                await self._audit.tell(
                    entry.namespace, entry.claim_id, "failed", step="delete", error=str(error)[:200]
                )
        return gone, failed
