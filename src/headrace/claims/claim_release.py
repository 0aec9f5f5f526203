"""Releases a claim after its message was acknowledged: sets the timer that ends it, or deletes it as the last reader.

A claim that several messages may carry, or whose message is a republished copy, is only removed by age. Must
not know how a payload is read.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from headrace.claims.ack_floors import Floors
from headrace.claims.audit_trail import Audit
from headrace.claims.claim_removal import ClaimRemover
from headrace.claims.config import ClaimConfig
from headrace.claims.gc_policy import RECHECK_S
from headrace.claims.jetstream_client import JetStreamClient
from headrace.claims.metrics import Metrics
from headrace.claims.object_deletion import ClaimObjects
from headrace.claims.records import ClaimEntry
from headrace.claims.reference import Reference
from headrace.claims.registry import Registry, metadata_ttl_s
from headrace.claims.stores import ObjectStore, ObjectStoreError
from headrace.clock import Clock

_LOG = logging.getLogger("headrace.claims")
_ATTEMPTS = 3


class ClaimReleaser:
    """Releases claims of one namespace."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        config: ClaimConfig,
        store: ObjectStore,
        registry: Registry,
        audit: Audit,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._jetstream = jetstream
        self._config = config
        self._objects = ClaimObjects(config, store)
        self._remover = ClaimRemover(config, store, registry, metrics)
        self._registry = registry
        self._audit = audit
        self._metrics = metrics
        self._clock = clock

    async def release(self, reference: Reference, message: Msg) -> None:
        """Release the claim of an acknowledged message, if that ack means that it was read."""
        metadata = message.metadata
        retention_s = self._config.ttl.retention_after_read
        for _ in range(_ATTEMPTS):
            floors = Floors(self._jetstream, self._registry.on_rejected)
            lookup = self._registry.find(self._config.namespace, reference.claim_id)
            # The floors are read only now, after the ack, and concurrently with the record.
            entry = (
                await lookup
                if retention_s
                else (await asyncio.gather(lookup, floors.get(metadata.stream)))[0]
            )
            if entry is None or entry.object_key != reference.object_key or entry.shared:
                return  # already removed, by age or by another consumer's ack; or only removed by age
            if not self._objects.is_own(entry) or not _may_release(entry, message):
                return  # only removed by age
            entry = entry.with_place(metadata.stream, metadata.sequence.stream, message.subject)
            if entry.state == "pending" and not await self._is_primary_stream(metadata.stream, entry.subject):
                if await self._registry.compare_and_set(entry, self._metadata_ttl_s(entry)):
                    return
                continue
            if not retention_s and await self._delete_now(entry, metadata.stream, metadata.consumer, floors):
                return
            if await self._mark_released(entry, retention_s or RECHECK_S):
                await self._audit.record(
                    entry.namespace, entry.claim_id, "released", by=get_consumer_name(message)
                )
                return

    async def _is_primary_stream(self, stream: str, subject: str) -> bool:
        """Return whether messages are published to this stream, so that it is not a copy.

        If a producer's update was lost, the position of its message is unknown, and a copy may be read while readers of
        the original still need the claim: such a claim is released by them, or ends by its age.
        """
        found = await self._jetstream.api_request("STREAM.NAMES", {"subject": subject})
        return stream in (found.get("streams") or ())

    async def _mark_released(self, entry: ClaimEntry, timer_s: float) -> bool:
        """Record that the claim was read, and when to check again; return False if the record changed meanwhile."""
        released = replace(entry, state="released", released_ns=self._clock.now_ns())
        return await self._registry.release(released, self._metadata_ttl_s(entry), timer_s)

    async def _delete_now(self, entry: ClaimEntry, read_from: str, consumer: str, floors: Floors) -> bool:
        """Delete as the last reader, with retention 0.

        Returns False if it was not the last, or the record changed meanwhile.
        """
        for stream, (seq, subject) in entry.places.items():
            # A consumer of another stream may have the same name.
            if await floors.find_blocking_consumer(
                stream, subject, seq, excluding=consumer if stream == read_from else ""
            ):
                return False
        removal = await self._remover.remove([entry], self)
        if removal.changed:
            return False
        if removal.failed:
            return True
        self._metrics.deleted.labels(entry.namespace).inc()
        age_s = (self._clock.now_ns() - entry.created_ns) / 1e9
        self._metrics.lifetime.labels(entry.namespace).observe(max(age_s, 0))
        await self._audit.record(entry.namespace, entry.claim_id, "released", by=consumer)
        await self._audit.record(entry.namespace, entry.claim_id, "deleted", by=consumer)
        await self._registry.cancel_timers([entry])
        return True

    async def on_delete_failed(self, entry: ClaimEntry, error: ObjectStoreError) -> None:
        _LOG.warning("claim %s could not be deleted, the collector will retry: %s", entry.claim_id, error)
        await self._audit.record(entry.namespace, entry.claim_id, "failed", step="delete", error=str(error))

    async def restore_record(self, entry: ClaimEntry, tombstone: int) -> None:
        """Restore the record as released after the store failed to delete the object: the collector tries again."""
        released = replace(entry, state="released", released_ns=self._clock.now_ns())
        if await self._registry.restore(released, tombstone, self._metadata_ttl_s(entry)):
            await self._registry.set_timer(released, RECHECK_S)

    def _metadata_ttl_s(self, entry: ClaimEntry) -> float:
        return metadata_ttl_s(entry, self._config.ttl.grace_period, self._clock.now_ns())


def _may_release(entry: ClaimEntry, message: Msg) -> bool:
    """Return whether the ack of this message means that the claim was read.

    A different message of a stream that is known to carry the claim is a republished copy: readers of the
    first one may still need the claim. While the position of the first one is unknown, only a message on the claim's
    own subject may be it.
    """
    place = message.metadata
    known = entry.places.get(place.stream)
    if known is not None:
        return known[0] == place.sequence.stream
    return bool(entry.places) or message.subject == entry.subject


def get_consumer_name(message: Msg) -> str:
    """Return stream and consumer of a delivered message; "" if it was not delivered by a consumer."""
    try:
        metadata = message.metadata
    except NatsError:
        return ""
    return f"{metadata.stream}/{metadata.consumer}"
