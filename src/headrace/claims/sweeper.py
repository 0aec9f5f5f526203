"""Sweep: finds orphans, claims whose timers were missed, reads whose release was lost, and abandoned uploads.

Objects are found by listing the prefixes of hours that have passed, never the whole bucket; nothing younger than the
grace period, by the store's own clock, is touched. Records are read once from the registry, which also gives the
gauges.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from headrace.claims.ack_floors import Floors
from headrace.claims.claim_deletion import ClaimDeleter, CollectReport
from headrace.claims.clock import SECOND_NS, format_rfc3339
from headrace.claims.config import ClaimConfig
from headrace.claims.gc_policy import GcDecision, decide
from headrace.claims.jetstream_client import RequestTimeout
from headrace.claims.metrics import Metrics
from headrace.claims.records import ClaimEntry
from headrace.claims.reference import parse_claim_id, parse_hour_end_ns, parse_key
from headrace.claims.registry import Registry, metadata_ttl_s
from headrace.claims.stores import ObjectInfo, ObjectStore
from headrace.errors import RequestError

_LOG = logging.getLogger("headrace.claims")


class Sweeper:
    """Sweeps one namespace."""

    def __init__(
        self,
        config: ClaimConfig,
        store: ObjectStore,
        registry: Registry,
        deleter: ClaimDeleter,
        metrics: Metrics,
    ) -> None:
        self._config = config
        self._store = store
        self._registry = registry
        self._deleter = deleter
        self._metrics = metrics

    async def sweep(self, now_ns: int, *, dry_run: bool = False) -> CollectReport:
        report = CollectReport()
        await self._sweep_registry(now_ns, report, dry_run)
        await self._sweep_objects(now_ns, report, dry_run)
        await self._sweep_uploads(now_ns, report, dry_run)
        namespace = self._config.namespace
        self._metrics.live.labels(namespace).set(report.live)
        self._metrics.live_bytes.labels(namespace).set(report.live_bytes)
        self._metrics.orphaned.labels(namespace).set(report.orphans)
        return report

    async def _sweep_registry(self, now_ns: int, report: CollectReport, dry_run: bool) -> None:
        async for page in self._registry.scan(self._config.namespace):
            # Read again for each page, so that a need that has arisen meanwhile is respected.
            floors = Floors(self._registry.jetstream, self._registry.on_rejected)
            to_delete: list[tuple[ClaimEntry, str]] = []
            unread: dict[str, str] = {}
            await floors.preload(stream for entry in page for stream in entry.places)
            # All of a page at once: each may need a request.
            found = await asyncio.gather(*(self._look_at(entry, now_ns, floors) for entry in page))
            for entry, (decision, is_forgotten) in zip(page, found, strict=True):
                if decision.unread_by:
                    unread[entry.object_key] = decision.unread_by
                if decision.event:
                    to_delete.append((entry, decision.event))
                    report.lines.append(
                        f"{decision.event} {entry.claim_id} {entry.object_key}: {decision.reason}"
                    )
                    continue
                report.live += 1
                report.live_bytes += entry.stored_size
                if is_forgotten:
                    report.lines.append(f"release {entry.claim_id}: read or removed, but not released")
                    report.released += dry_run or await self.try_release(entry, now_ns)
            await self._delete(to_delete, now_ns, report, dry_run, unread)

    async def _look_at(self, entry: ClaimEntry, now_ns: int, floors: Floors) -> tuple[GcDecision, bool]:
        """Decide about a claim, and whether its release was lost; a claim whose streams do not answer stays."""
        try:
            decision = await decide(entry, self._config, now_ns, floors)
            return decision, not decision.event and await self.needs_release(entry, now_ns, floors)
        except (RequestTimeout, RequestError) as error:
            _LOG.warning(
                "cannot determine whether claim %s is still needed, will retry: %s", entry.claim_id, error
            )
            return GcDecision(""), False

    async def needs_release(self, entry: ClaimEntry, now_ns: int, floors: Floors) -> bool:
        """Return whether all consumers have read a claim that was not released: a reader died between ack and release."""
        ttl = self._config.ttl
        is_young = now_ns < entry.created_ns + ttl.grace_period * SECOND_NS
        if entry.state != "live" or entry.shared or is_young or not ttl.delete_after_read:
            return False
        # Earliest time at which the server stored the message: the producer's clock may be ahead.
        stored_ns = entry.created_ns - self._config.clock_skew * SECOND_NS
        for stream, (seq, subject) in entry.places.items():
            if not await floors.is_fully_read(stream, subject, seq, stored_ns):
                return False
        return bool(entry.places)

    async def try_release(self, entry: ClaimEntry, now_ns: int) -> bool:
        """Release a claim; return False if the server refuses or does not answer: the next sweep tries again."""
        try:
            await self.release(entry, now_ns)
        except (RequestTimeout, RequestError) as error:
            _LOG.warning("claim %s could not be released, will retry: %s", entry.claim_id, error)
            return False
        return True

    async def release(self, entry: ClaimEntry, now_ns: int) -> None:
        released = replace(entry, state="released", released_ns=now_ns)
        ttl = self._config.ttl
        if await self._registry.compare_and_set(released, metadata_ttl_s(entry, ttl.grace_period, now_ns)):
            await self._registry.set_timer(released, ttl.retention_after_read)

    async def _sweep_objects(self, now_ns: int, report: CollectReport, dry_run: bool) -> None:
        async for page in self._iter_due_objects(now_ns):
            ids = dict.fromkeys(parse_claim_id(info.key) for info in page)
            known = await self._registry.find_all(self._config.namespace, list(ids))
            to_delete = [(_make_entry_for(info, known, self._config), "expired") for info in page]
            if dry_run:  # objects with a record were already counted by the registry sweep
                to_delete = [(entry, event) for entry, event in to_delete if not entry.revision]
            report.orphans += len(to_delete)
            report.lines += [f"expired {entry.claim_id} {entry.object_key}: orphan" for entry, _ in to_delete]
            await self._delete(to_delete, now_ns, report, dry_run)

    async def _iter_due_objects(self, now_ns: int) -> AsyncIterator[list[ObjectInfo]]:
        """Yield pages of objects whose hour and grace period have passed.

        Each topic is listed up to the first one not due.
        """
        grace_ns = self._config.end_grace_s * SECOND_NS
        for topic in await self._store.prefixes(f"{self._config.namespace}/"):
            async for page in self._store.list(topic):
                due = [info for info in page if _is_due(info, now_ns - grace_ns)]
                if due:
                    yield due
                if page and not _is_hour_over(page[-1].key, now_ns - grace_ns):
                    break

    async def _sweep_uploads(self, now_ns: int, report: CollectReport, dry_run: bool) -> None:
        """Abort uploads that have taken longer than a claim may live: they will not be completed."""
        limit_ns = now_ns - self._config.ttl.max_age * SECOND_NS
        for upload in await self._store.uploads():
            if upload.initiated_ns > limit_ns or not upload.belongs_to(self._config.namespace):
                continue
            report.uploads += 1
            report.lines.append(
                f"abort upload of {upload.key}, started {format_rfc3339(upload.initiated_ns)}"
            )
            if not dry_run:
                await self._store.abort(upload)

    async def _delete(
        self,
        to_delete: Sequence[tuple[ClaimEntry, str]],
        now_ns: int,
        report: CollectReport,
        dry_run: bool,
        unread: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        if dry_run:
            report.expired += sum(event == "expired" for _, event in to_delete)
            report.collected += sum(event == "collected" for _, event in to_delete)
        elif to_delete:
            deleted, _ = await self._deleter.delete(to_delete, now_ns, report, unread)
            await self._registry.cancel_timers(entry for entry in deleted if entry.revision)


def _is_hour_over(key: str, limit_ns: int) -> bool:
    parts = key.split("/")
    end_ns = parse_hour_end_ns(parts[2]) if len(parts) > 2 else None
    return end_ns is None or end_ns <= limit_ns


def _is_due(info: ObjectInfo, limit_ns: int) -> bool:
    """Return whether an object is expired by its key and old enough by the store's clock; foreign keys are left alone."""
    key = parse_key(info.key)
    end_ns = parse_hour_end_ns(key.hour) if key is not None else None
    return end_ns is not None and end_ns <= limit_ns and info.modified_ns <= limit_ns


def _make_entry_for(info: ObjectInfo, known: dict[str, ClaimEntry], config: ClaimConfig) -> ClaimEntry:
    """Return the record of an object; for an orphan, an entry made from its key."""
    namespace, topic, _, _ = info.key.split("/")
    claim_id = parse_claim_id(info.key)
    entry = known.get(claim_id)
    if entry is not None and entry.object_key == info.key:
        return entry
    return ClaimEntry(
        claim_id, namespace, topic, config.bucket, info.key, info.size, info.size, info.modified_ns, 0
    )
