"""Removes a claim whose reference was not published, unless another attempt uses it meanwhile."""

from __future__ import annotations

import logging
from contextlib import suppress

from headrace.claims.audit_trail import Audit
from headrace.claims.claim_removal import ClaimRemover
from headrace.claims.config import ClaimConfig
from headrace.claims.jetstream_client import RequestTimeout
from headrace.claims.metrics import Metrics
from headrace.claims.records import ClaimEntry
from headrace.claims.registry import Registry, metadata_ttl_s
from headrace.claims.stores import ObjectStore, ObjectStoreError
from headrace.clock import Clock
from headrace.errors import RequestError

_LOG = logging.getLogger("headrace.claims")


class ClaimRollback:
    """Removes unpublished claims of one namespace."""

    def __init__(
        self,
        config: ClaimConfig,
        store: ObjectStore,
        registry: Registry,
        audit: Audit,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._config = config
        self._remover = ClaimRemover(config, store, registry, metrics)
        self._registry = registry
        self._audit = audit
        self._clock = clock

    async def run(self, entry: ClaimEntry) -> None:
        """Remove an object that nothing refers to, unless another attempt has found it meanwhile."""
        try:
            entry = entry if entry.revision else await self._find_registered(entry)
        except (RequestTimeout, RequestError):
            return  # its timer or the hour in its key ends it
        if entry.revision:
            removal = await self._remover.remove([entry], self)
        else:
            removal = await self._remover.delete_orphan(entry, self)
        if not removal.deleted:
            return
        if entry.revision:
            await self._registry.cancel_timers([entry])
        await self._audit.record(entry.namespace, entry.claim_id, "deleted", reason="not published")

    async def on_delete_failed(self, entry: ClaimEntry, error: ObjectStoreError) -> None:
        _LOG.warning(
            "claim %s was not published, and its object could not be deleted; a collector will delete it: %s",
            entry.claim_id,
            error,
        )
        await self._audit.record(entry.namespace, entry.claim_id, "failed", step="undo", error=str(error))

    async def restore_record(self, entry: ClaimEntry, tombstone: int) -> None:
        """Restore a record whose object the store did not delete: its timer runs, and the collector tries again."""
        ttl_s = metadata_ttl_s(entry, self._config.ttl.grace_period, self._clock.now_ns())
        with suppress(RequestTimeout, RequestError):
            await self._registry.restore(entry, tombstone, ttl_s)

    async def _find_registered(self, entry: ClaimEntry) -> ClaimEntry:
        """Return the record of a claim whose registration failed: it may exist in part, and others may find it."""
        found = await self._registry.find(entry.namespace, entry.claim_id)
        return found if found is not None and found.object_key == entry.object_key else entry
