"""Finds the claim of an earlier attempt with the same message id, so that a retry does not store its payload again.

A claim that is found is marked *shared* before anything relies on it: the earlier attempt can no longer remove it, and
a reader of one message does not end it for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headrace.claims import reference as references
from headrace.claims.config import ClaimConfig
from headrace.claims.errors import PublishUnknown, StoreUnavailable
from headrace.claims.jetstream_client import RequestTimeout
from headrace.claims.object_deletion import ClaimObjects
from headrace.claims.records import ClaimEntry
from headrace.claims.reference_publisher import PublishAttempt
from headrace.claims.registry import Registry, metadata_ttl_s
from headrace.claims.stores import ObjectStore, ObjectStoreError
from headrace.claims.streaming_upload import Payload, compute_checksum
from headrace.clock import Clock
from headrace.errors import RequestError

_ATTEMPTS = 3


class EarlierAttempts:
    """The reusable claims of one namespace. Raises `PublishUnknown` and `StoreUnavailable` if that cannot be determined."""

    def __init__(
        self,
        config: ClaimConfig,
        store: ObjectStore,
        registry: Registry,
        clock: Clock,
        draw_id: Callable[[], str],
    ) -> None:
        self._config = config
        self._store = store
        self._objects = ClaimObjects(config, store)
        self._registry = registry
        self._clock = clock
        self._draw_id = draw_id

    async def share(self, claim_id: str) -> ClaimEntry | None:
        """Return the claim with this id, marked as shared; None if there is none that can be reused."""
        for _ in range(_ATTEMPTS):
            entry = await self._find_reusable(claim_id)
            if entry is None:
                break
            updated = await self._mark_shared(entry)
            if updated is not None:
                return updated
        return None

    async def share_with_payload(self, claim_id: str, payload: Payload) -> tuple[str, PublishAttempt | None]:
        """Return an earlier attempt's claim, which two messages may carry from now on, or the id for a new one."""
        for _ in range(_ATTEMPTS):
            found = await self._find_reusable(claim_id)
            if found is None:
                return claim_id, None
            checksum = await compute_checksum(payload)
            if checksum is None:  # it can be read only once, so it cannot be compared beforehand
                return self._draw_id(), None
            if checksum != (found.reference or {}).get("checksum"):
                # The same id with another payload: a stream forgets ids. Both keep their objects and records.
                claim_id = references.make_claim_id(self._config.namespace, checksum, subject=claim_id)
                continue
            updated = await self._mark_shared(found)
            if updated is not None:
                return claim_id, PublishAttempt(updated, is_new=False, is_sole=not found.shared)
        return claim_id, None

    async def _find_reusable(self, claim_id: str) -> ClaimEntry | None:
        """Return the claim of an earlier attempt, if it is complete and not expired."""
        try:
            entry = await self._registry.find(self._config.namespace, claim_id)
            if entry is None or entry.reference is None or entry.doomed:
                return None
            if entry.expires_ns <= self._clock.now_ns() or not self._objects.is_own(entry):
                return None
            return entry if await self._store.exists(entry.object_key) else None
        except (RequestTimeout, RequestError) as error:
            raise _make_unknown_error(claim_id, error) from error
        except ObjectStoreError as error:
            raise StoreUnavailable(f"claim {claim_id}: {error}", claim_id) from error

    async def _mark_shared(self, entry: ClaimEntry) -> ClaimEntry | None:
        """Change the record before anything relies on it; return None if another process changed it meanwhile."""
        ttl_s = metadata_ttl_s(entry, self._config.ttl.grace_period, self._clock.now_ns())
        try:
            return await self._registry.compare_and_set(replace(entry, shared=True), ttl_s)
        except (RequestTimeout, RequestError) as error:
            raise _make_unknown_error(entry.claim_id, error) from error


def _make_unknown_error(claim_id: str, error: Exception) -> PublishUnknown:
    return PublishUnknown(f"the outcome of an earlier attempt is unknown: {error}", claim_id)
