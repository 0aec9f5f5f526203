"""Claim consumer: turns references into payloads, and releases a claim only after a confirmed ack.

A claim is checked before it is fetched, verified while it streams, and released once the server has confirmed the ack.
From then on the timer in the registry ends it, or with retention 0 this very call, unless another consumer of the
stream needs it. A failed release or deletion never fails the message.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from headrace.claims import reference as references
from headrace.claims.ack_floors import Floors
from headrace.claims.audit_trail import Audit
from headrace.claims.compression import Chunk, Decompressor
from headrace.claims.config import ClaimConfig
from headrace.claims.errors import (
    ChecksumMismatch,
    ClaimFailure,
    ClaimNotFound,
    Corrupt,
    Expired,
    Forbidden,
    StoreUnavailable,
)
from headrace.claims.gc_policy import RECHECK_S
from headrace.claims.jetstream_client import JetStreamClient, RequestTimeout
from headrace.claims.metrics import Metrics
from headrace.claims.object_deletion import ClaimObjects
from headrace.claims.records import ClaimEntry
from headrace.claims.reference import Reference
from headrace.claims.registry import Registry, metadata_ttl_s
from headrace.claims.stores import ObjectMissing, ObjectStore, ObjectStoreError
from headrace.claims.streaming_upload import prefetch, run_in_thread_if_large
from headrace.clock import Clock
from headrace.deprecation import renamed_names
from headrace.errors import RequestError

_LOG = logging.getLogger("headrace.claims")
_ATTEMPTS = 3


_RETRY_S = 5.0
#: Original subject of a dead letter.
_FIRST_SUBJECT = "Claim-Subject"
_DROPPED_HEADERS = (references.CLAIM_HEADER, "Nats-TTL")


@dataclass(frozen=True, slots=True)
class Received:
    """A message as it was before its payload became a claim."""

    subject: str
    data: bytes
    headers: dict[str, str]
    content_type: str
    reference: Reference | None
    message: Msg


class ClaimConsumer:
    """Resolves the claims of one namespace."""

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
        self._store = store
        self._objects = ClaimObjects(config, store)
        self._registry = registry
        self._audit = audit
        self._metrics = metrics
        self._clock = clock
        #: Streams whose messages may have subjects other than those they were published to.
        self._copying: set[str] = set()

    def reference(self, message: Msg) -> Reference | None:
        """Return the checked reference that a message carries; None if it carries its payload itself."""
        if not references.is_claim(message.headers):
            return None
        reference = references.decode(message.data)
        references.check(reference, self._config, self._clock.now_ns())
        return reference

    async def read(self, message: Msg) -> Received:
        """Return the complete, verified payload. Raises `Expired`, `ClaimNotFound`, `ChecksumMismatch`, `TooLarge`, ..."""
        data = b"".join([bytes(chunk) async for chunk in self.stream(message)])
        reference = references.decode(message.data) if references.is_claim(message.headers) else None
        headers = {
            name: value for name, value in (message.headers or {}).items() if name not in _DROPPED_HEADERS
        }
        if reference is not None:
            headers[references.CONTENT_TYPE] = reference.content_type
        content_type = headers.get(references.CONTENT_TYPE, "")
        return Received(message.subject, data, headers, content_type, reference, message)

    async def stream(self, message: Msg) -> AsyncIterator[Chunk]:
        """Yield the payload in pieces, at constant memory. It is verified only after the last piece."""
        started = time.perf_counter()
        try:
            reference = self.reference(message)
            if reference is None:
                yield message.data
                return
            if self._config.strict_subjects:
                await self._check_subject(reference, message)
            async for chunk in fetch(self._store, reference):
                yield chunk
        except ClaimFailure as error:
            await self._record_failure(message, error)
            raise
        namespace = self._config.namespace
        self._metrics.retrieved.labels(namespace).inc()
        self._metrics.retrieval_duration.labels(namespace).observe(time.perf_counter() - started)
        await self._audit.record(namespace, reference.claim_id, "retrieved", by=_get_consumer_name(message))

    async def _check_subject(self, reference: Reference, message: Msg) -> None:
        """Reject a reference on a subject that it was not published to, unless the message is known to be a copy.

        Subjects change legitimately in mirrors, sources and transforms, which the stream's configuration shows; by a
        subject mapping, if the registry knows the very message; and in dead letters. Others, such as republished or
        forwarded messages, cannot be distinguished from forged ones.
        """
        key = references.parse_key(reference.object_key)
        first = message.subject
        if message.subject == self._config.dead_letter:
            first = (message.headers or {}).get(_FIRST_SUBJECT, "")
        if key is not None and key.topic == references.encode_topic(first):
            return
        try:
            if await self._is_copy(reference, message):
                return
        except (RequestTimeout, RequestError) as error:
            raise StoreUnavailable(f"claim {reference.claim_id}: {error}", reference.claim_id) from error
        raise Forbidden(
            f"claim {reference.claim_id} was not published to {message.subject!r}: its key is "
            f"{reference.object_key}",
            reference.claim_id,
        )

    async def _is_copy(self, reference: Reference, message: Msg) -> bool:
        """Return whether the producer recorded this message, or its stream's messages may have other subjects."""
        try:
            place = message.metadata
        except NatsError:
            return False
        if place.stream in self._copying:
            return True
        entry = await self._registry.find(self._config.namespace, reference.claim_id)
        if entry is not None and entry.object_key == reference.object_key:
            noted = entry.places.get(place.stream)
            if noted is not None and noted[0] == place.sequence.stream:
                return True
        config = (await self._jetstream.api_request(f"STREAM.INFO.{place.stream}"))["config"]
        if any(config.get(name) for name in ("mirror", "sources", "subject_transform")):
            self._copying.add(place.stream)
        return place.stream in self._copying

    async def ack(self, message: Msg, timeout_s: float = 5.0) -> bool:
        """Acknowledge and, once confirmed, release the claim; return False if not confirmed: expect redelivery."""
        try:
            await message.ack_sync(timeout=timeout_s)
        except (NatsError, TimeoutError) as error:
            _LOG.warning("ack of a message on %s was not confirmed: %r", message.subject, error)
            return False
        if references.is_claim(message.headers) and self._config.ttl.delete_after_read:
            try:
                await self._release(references.decode(message.data), message)
            except (RequestTimeout, RequestError, ObjectStoreError, Corrupt) as error:
                self._metrics.errors.labels(self._config.namespace, "release").inc()
                _LOG.warning("a claim could not be released, the collector will find it: %s", error)
        return True

    async def handle(self, message: Msg, handler: Callable[[Received], Awaitable[Any]]) -> bool:
        """Read the payload, call the handler, acknowledge; return whether all of it worked.

        On errors that may pass the message is redelivered; a message whose claim can never be read goes to the dead
        letters and is terminated. Exceptions of the handler are raised, without an ack.
        """
        try:
            received = await self.read(message)
        except ClaimFailure as error:
            if error.retryable:
                await message.nak(delay=_RETRY_S)
            else:
                await self._dead_letter(message, error)
            return False
        await handler(received)
        return await self.ack(message)

    async def _record_failure(self, message: Msg, error: ClaimFailure) -> None:
        namespace = self._config.namespace
        if isinstance(error, ClaimNotFound | Expired):
            self._metrics.not_found.labels(namespace).inc()
        self._metrics.errors.labels(namespace, error.reason).inc()
        await self._audit.record(
            namespace,
            error.claim_id or "unknown",
            "failed",
            reason=error.reason,
            by=_get_consumer_name(message),
        )

    async def _dead_letter(self, message: Msg, error: ClaimFailure) -> None:
        """Store the dead letter, then terminate the message."""
        if self._config.dead_letter:
            headers = {
                **(message.headers or {}),
                "Claim-Error": error.reason,
                _FIRST_SUBJECT: message.subject,
            }
            headers.pop("Nats-TTL", None)
            headers.pop("Nats-Msg-Id", None)
            try:
                await self._jetstream.publish(self._config.dead_letter, message.data, headers)
            except (RequestTimeout, RequestError):
                await message.nak(delay=_RETRY_S)
                return
        await message.term()

    async def _release(self, reference: Reference, message: Msg) -> None:
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
                return  # gone already, by its age or somebody else's ack; or only its age ends it
            if not self._objects.is_own(entry) or not _may_release(entry, message):
                return  # only its age ends it
            entry = entry.with_place(metadata.stream, metadata.sequence.stream, message.subject)
            if entry.state == "pending" and not await self._is_primary_stream(metadata.stream, entry.subject):
                if await self._registry.compare_and_set(entry, self._metadata_ttl_s(entry)):
                    return
                continue
            if not retention_s and await self._delete_now(entry, metadata.stream, metadata.consumer, floors):
                return
            if await self._mark_released(entry, retention_s or RECHECK_S):
                await self._audit.record(
                    entry.namespace, entry.claim_id, "released", by=_get_consumer_name(message)
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
        removed = await self._registry.remove([entry])
        if not removed:
            return False
        try:
            await self._objects.delete([entry])
        except ObjectStoreError as error:
            await self._restore_after_failed_delete(*removed[0], error)
            return True
        self._metrics.deleted.labels(entry.namespace).inc()
        age_s = (self._clock.now_ns() - entry.created_ns) / 1e9
        self._metrics.lifetime.labels(entry.namespace).observe(max(age_s, 0))
        await self._audit.record(entry.namespace, entry.claim_id, "released", by=consumer)
        await self._audit.record(entry.namespace, entry.claim_id, "deleted", by=consumer)
        await self._registry.cancel_timers([entry])
        return True

    async def _restore_after_failed_delete(
        self, entry: ClaimEntry, tombstone: int, error: ObjectStoreError
    ) -> None:
        """Restore the record after the store failed to delete the object: the collector tries again."""
        self._metrics.delete_failures.labels(entry.namespace).inc()
        _LOG.warning("claim %s could not be deleted, the collector tries again: %s", entry.claim_id, error)
        await self._audit.record(entry.namespace, entry.claim_id, "failed", step="delete", error=str(error))
        released = replace(entry, state="released", released_ns=self._clock.now_ns())
        if await self._registry.restore(released, tombstone, self._metadata_ttl_s(entry)):
            await self._registry.set_timer(released, RECHECK_S)

    def _metadata_ttl_s(self, entry: ClaimEntry) -> float:
        return metadata_ttl_s(entry, self._config.ttl.grace_period, self._clock.now_ns())


async def fetch(store: ObjectStore, reference: Reference) -> AsyncIterator[Chunk]:
    """Yield the payload of a checked reference in pieces; it is verified only after the last piece."""
    claim_id = reference.claim_id
    try:
        stored = await store.get(reference.object_key)
    except ObjectMissing as error:
        raise ClaimNotFound(f"claim {claim_id} is not in the store: {error}", claim_id) from error
    except ObjectStoreError as error:
        raise StoreUnavailable(f"claim {claim_id}: {error}", claim_id) from error
    async for chunk in _verify(reference, _map_store_errors(stored, claim_id)):
        yield chunk


async def _map_store_errors(stored: AsyncIterator[Chunk], claim_id: str) -> AsyncIterator[Chunk]:
    try:
        async for chunk in stored:
            yield chunk
    except ObjectStoreError as error:
        raise StoreUnavailable(f"claim {claim_id} broke off: {error}", claim_id) from error


async def _verify(reference: Reference, stored: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
    """Hash stored bytes as they arrive and original bytes as they leave; both must match the reference."""
    claim_id = reference.claim_id
    stored_hash, original_hash = hashlib.sha256(), hashlib.sha256()
    is_uncompressed = reference.compression == "none"
    decompressor = Decompressor(reference.compression, reference.original_size)
    size = stored_size = 0
    try:
        async for data in prefetch(stored):
            stored_size += len(data)
            await run_in_thread_if_large(len(data), stored_hash.update, data)
            for chunk in decompressor.feed(data):
                size += len(chunk)
                if not is_uncompressed:
                    await run_in_thread_if_large(len(chunk), original_hash.update, chunk)
                yield chunk
    except ClaimFailure as error:
        error.claim_id = error.claim_id or claim_id
        raise
    checksum = stored_hash.hexdigest() if is_uncompressed else original_hash.hexdigest()
    if stored_hash.hexdigest() != reference.stored_checksum or stored_size != reference.stored_size:
        raise ChecksumMismatch(
            f"claim {claim_id}: {stored_size} bytes are in the store that are not the {reference.stored_size} stored",
            claim_id,
        )
    if checksum != reference.checksum or size != reference.original_size:
        raise ChecksumMismatch(f"claim {claim_id} has {size} bytes that are not those published", claim_id)


def _may_release(entry: ClaimEntry, message: Msg) -> bool:
    """Return whether the ack of this message means that the claim was read.

    A different message of a stream that is known to carry the claim is a copy that somebody published: readers of the
    first one may still need the claim. While the position of the first one is unknown, only a message on the claim's
    own subject may be it.
    """
    place = message.metadata
    known = entry.places.get(place.stream)
    if known is not None:
        return known[0] == place.sequence.stream
    return bool(entry.places) or message.subject == entry.subject


def _get_consumer_name(message: Msg) -> str:
    try:
        metadata = message.metadata
    except NatsError:
        return ""
    return f"{metadata.stream}/{metadata.consumer}"


if not TYPE_CHECKING:
    __getattr__ = renamed_names(__name__, {"Consumer": "ClaimConsumer"})
