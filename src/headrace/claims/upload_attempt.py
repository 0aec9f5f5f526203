"""One attempt to upload a payload: names its object, stores it, registers its record, and removes both on failure.

Payloads that fit into one request are stored and registered at the same time, as soon as their checksum is known; longer
ones are registered after the upload. Must not know whether, or how, the reference is published.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from headrace.claims import reference as references
from headrace.claims.claim_builder import PendingClaim
from headrace.claims.claim_rollback import ClaimRollback
from headrace.claims.clock import SECOND_NS
from headrace.claims.config import ClaimConfig
from headrace.claims.errors import PublishFailed, StoreUnavailable
from headrace.claims.jetstream_client import RequestTimeout
from headrace.claims.metrics import Metrics
from headrace.claims.records import ClaimEntry
from headrace.claims.registry import Registry, metadata_ttl_s
from headrace.claims.stores import Attributes, Chunk, ObjectStore, ObjectStoreError
from headrace.claims.stores.object_store import SINGLE_PUT_MAX_BYTES, Metadata
from headrace.claims.streaming_upload import (
    Payload,
    PayloadEncoder,
    buffer_small,
    get_payload_size,
    iter_chunks,
)
from headrace.clock import Clock
from headrace.errors import RequestError


@dataclass(frozen=True, slots=True)
class UploadContext:
    """What all uploads of a producer share."""

    config: ClaimConfig
    store: ObjectStore
    registry: Registry
    rollback: ClaimRollback
    metrics: Metrics
    clock: Clock
    draw_id: Callable[[], str]


class UploadAttempt:
    """The upload of one payload; `may_repeat`: there may be other attempts with this id, so each names its own object."""

    def __init__(
        self,
        context: UploadContext,
        subject: str,
        payload: Payload,
        headers: Mapping[str, str],
        claim_id: str,
        *,
        may_repeat: bool,
    ) -> None:
        self._context = context
        self._payload = payload
        self._may_repeat = may_repeat
        self._claim = self._plan(subject, headers, claim_id)
        self._started = time.perf_counter()

    async def run(self) -> ClaimEntry:
        """Store and register; raise `StoreUnavailable` or `PublishFailed` if that failed or took too long."""
        entry = await self._store_and_register()
        if entry.expires_ns > self._context.clock.now_ns():
            return entry
        await self._context.rollback.run(entry)
        max_age = self._context.config.ttl.max_age
        raise PublishFailed(
            f"the upload of claim {entry.claim_id} took longer than ttl.max_age, {max_age} s", entry.claim_id
        )

    def _plan(self, subject: str, headers: Mapping[str, str], claim_id: str) -> PendingClaim:
        config, created_ns = self._context.config, self._context.clock.now_ns()
        expires_at = created_ns // SECOND_NS + config.ttl.max_age
        attempt = self._context.draw_id()[:8] if self._may_repeat else ""
        return PendingClaim(
            config,
            subject,
            claim_id,
            references.make_key(config.namespace, subject, expires_at, claim_id, attempt),
            created_ns,
            expires_at,
            headers.get(references.CONTENT_TYPE, references.DEFAULT_CONTENT_TYPE),
            get_payload_size(self._payload),
            PayloadEncoder(config.compression),
        )

    async def _store_and_register(self) -> ClaimEntry:
        claim, store = self._claim, self._context.store
        if (whole := self._get_whole_payload()) is not None:
            return await self._store_while_hashing(whole)
        encoded = await buffer_small(claim.encoder.encode(iter_chunks(self._payload)))
        if isinstance(encoded, bytes | bytearray | memoryview):
            return await self._store_while_registering(encoded)
        await self._put_object(partial(store.put_stream, claim.key, encoded, claim.attributes))
        entry = claim.make_entry()
        try:
            return await self._register(entry)
        except PublishFailed:
            await self._context.rollback.run(entry)
            raise

    def _get_whole_payload(self) -> Chunk | None:
        """Return a payload that the store can write before its checksum is known; None if that is impossible."""
        payload, is_compressed = self._payload, self._claim.encoder.compression != "none"
        if is_compressed or not getattr(self._context.store, "has_late_metadata", False):
            return None
        if not isinstance(payload, bytes | bytearray | memoryview) or len(payload) > SINGLE_PUT_MAX_BYTES:
            return None
        return memoryview(payload)

    async def _store_while_hashing(self, data: Chunk) -> ClaimEntry:
        """Hash in one thread and write in another; register the record while the store makes the object durable.

        The thread that is first hashes, so that neither waits for one that may never start.
        """
        claim, hash_once = self._claim, _Once(partial(_encode_whole, self._claim.encoder, data))
        hashing = asyncio.get_running_loop().run_in_executor(None, hash_once.run)

        def make_metadata() -> Metadata:
            hash_once.run()
            return claim.metadata()

        async def store() -> None:
            try:
                await self._put(data, replace(claim.attributes, make_metadata=make_metadata))
            except BaseException:
                hashing.cancel()  # after a success the record still waits for it, although the checksum is known
                raise

        async def register() -> ClaimEntry:
            await hashing
            return await self._register(claim.make_entry())

        return await self._reconcile(*await asyncio.gather(store(), register(), return_exceptions=True))

    async def _store_while_registering(self, data: Chunk) -> ClaimEntry:
        """Register the record while the store writes: everything is known already."""
        claim = self._claim
        put, register = self._put(data, claim.attributes), self._register(claim.make_entry())
        return await self._reconcile(*await asyncio.gather(put, register, return_exceptions=True))

    async def _put(self, data: Chunk, attributes: Attributes) -> None:
        store, key = self._context.store, self._claim.key
        await self._put_object(partial(store.put, key, data, attributes, replace=self._may_repeat))

    async def _reconcile(
        self, stored: BaseException | None, registered: ClaimEntry | BaseException
    ) -> ClaimEntry:
        """Combine the results of storing and registering; if only one succeeded, undo it."""
        if isinstance(registered, PublishFailed) and stored is None:
            await self._context.rollback.run(self._claim.make_entry())
        if isinstance(stored, StoreUnavailable) and isinstance(registered, ClaimEntry):
            await self._unregister(registered)
        if isinstance(stored, BaseException):
            raise stored
        if isinstance(registered, BaseException):
            raise registered
        return registered

    async def _register(self, entry: ClaimEntry) -> ClaimEntry:
        ttl = self._context.config.ttl
        ttl_s = metadata_ttl_s(entry, ttl.grace_period, self._context.clock.now_ns())
        try:
            return await self._context.registry.register(entry, ttl.max_age, ttl_s)
        except (RequestTimeout, RequestError) as error:
            text = f"claim {entry.claim_id} could not be registered: {error}"
            raise PublishFailed(text, entry.claim_id) from error

    async def _unregister(self, entry: ClaimEntry) -> None:
        if await self._context.registry.remove([entry]):
            await self._context.registry.cancel_timers([entry])

    async def _put_object(self, put: Callable[[], Awaitable[None]]) -> None:
        metrics, namespace = self._context.metrics, self._context.config.namespace
        try:
            await put()
        except ObjectStoreError as error:
            metrics.errors.labels(namespace, "upload").inc()
            raise StoreUnavailable(f"the payload could not be stored: {error}") from error
        metrics.upload_duration.labels(namespace).observe(time.perf_counter() - self._started)
        metrics.upload_bytes.labels(namespace).observe(self._claim.encoder.stored_size)


def _encode_whole(encoder: PayloadEncoder, data: Chunk) -> None:
    encoder.encode_chunk(data)
    encoder.finish()


class _Once:
    """Work that is done once, by the first of several threads; the others wait for it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work: Callable[[], None] | None = work
        self._lock = threading.Lock()

    def run(self) -> None:
        with self._lock:
            if self._work is not None:
                self._work()
                self._work = None
