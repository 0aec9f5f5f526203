"""Claim producer: publishes small payloads as they are and large ones as claims.

Order of an upload: store the object and register the record with a timer, publish the reference, then add its position
to the record. A crash at any moment leaves either nothing, or an object or a record that a timer or the hour in the key
will end. A rejected publish removes the object again; after an unknown outcome it stays, and a retry with the same
message id finds it. Before a claim can be referenced by a second message it is marked *shared* with a compare-and-set,
so that a concurrent delete fails; a shared claim is only removed by age.
"""

from __future__ import annotations

import asyncio
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.claims import reference as references
from headrace.claims.audit_trail import Audit
from headrace.claims.claim_builder import PendingClaim
from headrace.claims.clock import SECOND_NS
from headrace.claims.config import ClaimConfig
from headrace.claims.errors import PublishFailed, PublishUnknown, StoreUnavailable, TooLarge
from headrace.claims.jetstream_client import JetStreamClient, RequestTimeout
from headrace.claims.metrics import Metrics
from headrace.claims.object_deletion import ClaimObjects
from headrace.claims.records import ClaimEntry
from headrace.claims.reference import Reference
from headrace.claims.registry import Registry, metadata_ttl_s
from headrace.claims.stores import ObjectStore, ObjectStoreError
from headrace.claims.streaming_upload import (
    Payload,
    PayloadEncoder,
    buffer_small,
    compute_checksum,
    get_payload_size,
    iter_chunks,
)
from headrace.clock import Clock
from headrace.deprecation import RenamedAttribute, renamed_names
from headrace.errors import RequestError

MSG_ID = "Nats-Msg-Id"
TTL = "Nats-TTL"
_TTL_DISABLED = 10166
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Published:
    """Position of a message; `reference` is None if it carries its payload itself."""

    stream: str
    seq: int
    duplicate: bool
    reference: Reference | None


@dataclass(slots=True)
class _PublishAttempt:
    """A claim about to be published.

    `is_new`: this attempt stored it. `is_sole`: if the server reports a duplicate, no other message carries the claim.
    """

    entry: ClaimEntry
    is_new: bool
    is_sole: bool = True


class ClaimProducer:
    """Publishes messages of one namespace."""

    deposit = RenamedAttribute("upload")
    confirm = RenamedAttribute("confirm_published")
    withdraw = RenamedAttribute("cancel")

    def __init__(
        self,
        jetstream: JetStreamClient,
        config: ClaimConfig,
        store: ObjectStore,
        registry: Registry,
        audit: Audit,
        metrics: Metrics,
        clock: Clock,
        draw_id: Callable[[], str] = references.make_random_id,
    ) -> None:
        self._jetstream = jetstream
        self._config = config
        self._store = store
        self._objects = ClaimObjects(config, store)
        self._registry = registry
        self._audit = audit
        self._metrics = metrics
        self._clock = clock
        self._draw_id = draw_id
        self._subjects_without_ttl: set[str] = set()

    async def publish(
        self,
        subject: str,
        payload: Payload,
        *,
        headers: Mapping[str, str] | None = None,
        msg_id: str = "",
        content_type: str = "",
    ) -> Published:
        """Publish, as a claim if it is too large. Raises `PublishFailed`, `PublishUnknown`, `StoreUnavailable`."""
        headers = dict(headers or {})
        msg_id = msg_id or headers.get(MSG_ID, "")
        if content_type:
            headers[references.CONTENT_TYPE] = content_type
        if msg_id:
            headers[MSG_ID] = msg_id
        limit = self.inline_max - get_headers_size(headers)
        size = get_payload_size(payload)
        if size is None or size <= limit:
            found = await buffer_small(iter_chunks(payload), max(limit, 0))
            if isinstance(found, bytes | bytearray | memoryview):
                return await self._publish_inline(subject, bytes(found), headers)
            payload = found
        if not self._config.enabled:
            raise TooLarge(f"more than {limit} bytes for {subject!r}, and claim_check.enabled is false")
        return await self._offload(subject, payload, headers, msg_id)

    async def upload(
        self, subject: str, payload: Payload, claim_id: str, headers: Mapping[str, str] | None = None
    ) -> tuple[ClaimEntry, bool]:
        """Store and register a payload, for callers that publish the reference themselves.

        Returns the entry and whether it is new. The claim of an earlier attempt with this id is reused.
        `confirm_published` or `cancel` must follow; until then, and if neither does, its timer runs.
        """
        for _ in range(_ATTEMPTS):
            entry = await self._find_reusable(claim_id)
            if entry is None:
                break
            # Shared, so that the earlier attempt cannot cancel it any more, and a reader of one message does not end it
            # for both.
            updated = await self._compare_and_set(replace(entry, shared=True))
            if updated is not None:
                return updated, False
        return await self._store_and_register(subject, payload, headers or {}, claim_id, True), True

    async def confirm_published(self, entry: ClaimEntry, stream: str, seq: int, subject: str) -> None:
        """Record that the reference of an uploaded claim was published."""
        await self._record_published(entry.with_place(stream, seq, subject), True)

    async def cancel(self, entry: ClaimEntry) -> None:
        """Remove an uploaded claim whose reference was not published, and never will be."""
        await self._rollback(entry)

    @property
    def inline_max(self) -> int:
        """Maximum bytes, headers included, of a message that is sent as it is."""
        server: int = self._jetstream.connection.max_payload
        return min(self._config.threshold, server) if self._config.enabled else server

    async def _publish_inline(self, subject: str, data: bytes, headers: dict[str, str]) -> Published:
        try:
            ack = await self._jetstream.publish(subject, data, headers)
        except RequestError as error:
            raise PublishFailed(f"{subject!r}: {error}") from error
        except RequestTimeout as error:
            raise PublishUnknown(f"{subject!r}: {error}") from error
        return Published(ack["stream"], ack["seq"], bool(ack.get("duplicate")), None)

    async def _offload(
        self, subject: str, payload: Payload, headers: dict[str, str], msg_id: str
    ) -> Published:
        claim_id = references.make_claim_id(self._config.namespace, msg_id, self._draw_id, subject=subject)
        claim_id, attempt = (
            await self._find_earlier_attempt(claim_id, payload) if msg_id else (claim_id, None)
        )
        if attempt is None:
            stored = await self._store_and_register(subject, payload, headers, claim_id, bool(msg_id))
            attempt = _PublishAttempt(stored, is_new=True)
        reference = Reference(**(attempt.entry.reference or {}))
        headers = {**headers, references.CLAIM_HEADER: "true", MSG_ID: msg_id or claim_id}
        published = await self._publish_reference(subject, reference, headers, attempt)
        entry = attempt.entry
        if published.duplicate and attempt.is_new and not await self._message_refers_to(published, reference):
            # The message of the first attempt has its own claim, or was processed long ago.
            await self._rollback(entry)
        else:
            shared = entry.shared and not (published.duplicate and attempt.is_sole)
            placed = replace(entry.with_place(published.stream, published.seq, subject), shared=shared)
            await self._record_published(placed, attempt.is_new)
        return published

    async def _find_earlier_attempt(
        self, claim_id: str, payload: Payload
    ) -> tuple[str, _PublishAttempt | None]:
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
            updated = await self._compare_and_set(replace(found, shared=True))
            if updated is not None:
                return claim_id, _PublishAttempt(updated, is_new=False, is_sole=not found.shared)
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
            raise self._make_unknown_error(claim_id, error) from error
        except ObjectStoreError as error:
            raise StoreUnavailable(f"claim {claim_id}: {error}", claim_id) from error

    async def _compare_and_set(self, entry: ClaimEntry) -> ClaimEntry | None:
        """Change the record before anything relies on it; return None if somebody else changed it meanwhile."""
        try:
            return await self._registry.compare_and_set(entry, self._metadata_ttl_s(entry))
        except (RequestTimeout, RequestError) as error:
            raise self._make_unknown_error(entry.claim_id, error) from error

    def _make_unknown_error(self, claim_id: str, error: Exception) -> PublishUnknown:
        return PublishUnknown(f"nobody said what became of an earlier attempt: {error}", claim_id)

    async def _store_and_register(
        self, subject: str, payload: Payload, headers: Mapping[str, str], claim_id: str, replaces: bool
    ) -> ClaimEntry:
        entry = await self._upload(subject, payload, headers, claim_id, replaces)
        if entry.expires_ns > self._clock.now_ns():
            return entry
        await self._rollback(entry)
        max_age = self._config.ttl.max_age
        raise PublishFailed(
            f"the upload of claim {claim_id} took longer than ttl.max_age, {max_age} s", claim_id
        )

    async def _upload(
        self, subject: str, payload: Payload, headers: Mapping[str, str], claim_id: str, replaces: bool
    ) -> ClaimEntry:
        claim = self._plan(subject, payload, headers, claim_id, self._draw_id()[:8] if replaces else "")
        started = time.perf_counter()
        encoded = await buffer_small(claim.encoder.encode(iter_chunks(payload)))
        if isinstance(encoded, bytes | bytearray | memoryview):
            # Everything is known: register the record while the store writes.
            put = partial(self._store.put, claim.key, encoded, claim.attributes, replace=replaces)
            registering = self._register(claim.make_entry())
            results = await asyncio.gather(
                self._put_object(put, claim, started), registering, return_exceptions=True
            )
            return await self._reconcile(claim.make_entry(), *results)
        put = partial(self._store.put_stream, claim.key, encoded, claim.attributes)
        await self._put_object(put, claim, started)
        entry = claim.make_entry()
        try:
            return await self._register(entry)
        except PublishFailed:
            await self._rollback(entry)
            raise

    async def _reconcile(
        self, entry: ClaimEntry, stored: BaseException | None, registered: ClaimEntry | BaseException
    ) -> ClaimEntry:
        """Combine the results of storing and registering; if only one succeeded, undo it."""
        if isinstance(registered, PublishFailed) and stored is None:
            await self._rollback(entry)
        if isinstance(stored, StoreUnavailable) and isinstance(registered, ClaimEntry):
            await self._unregister(registered)
        if isinstance(stored, BaseException):
            raise stored
        if isinstance(registered, BaseException):
            raise registered
        return registered

    def _plan(
        self, subject: str, payload: Payload, headers: Mapping[str, str], claim_id: str, attempt: str
    ) -> PendingClaim:
        created_ns = self._clock.now_ns()
        expires_at = created_ns // SECOND_NS + self._config.ttl.max_age
        key = references.make_key(self._config.namespace, subject, expires_at, claim_id, attempt)
        content_type = headers.get(references.CONTENT_TYPE, references.DEFAULT_CONTENT_TYPE)
        encoder = PayloadEncoder(self._config.compression)
        return PendingClaim(
            self._config,
            subject,
            claim_id,
            key,
            created_ns,
            expires_at,
            content_type,
            get_payload_size(payload),
            encoder,
        )

    async def _register(self, entry: ClaimEntry) -> ClaimEntry:
        try:
            return await self._registry.register(entry, self._config.ttl.max_age, self._metadata_ttl_s(entry))
        except (RequestTimeout, RequestError) as error:
            text = f"claim {entry.claim_id} could not be registered: {error}"
            raise PublishFailed(text, entry.claim_id) from error

    async def _put_object(
        self, put: Callable[[], Awaitable[None]], claim: PendingClaim, started: float
    ) -> None:
        try:
            await put()
        except ObjectStoreError as error:
            self._metrics.errors.labels(self._config.namespace, "upload").inc()
            raise StoreUnavailable(f"the payload could not be stored: {error}") from error
        namespace = self._config.namespace
        self._metrics.upload_duration.labels(namespace).observe(time.perf_counter() - started)
        self._metrics.upload_bytes.labels(namespace).observe(claim.encoder.stored_size)

    async def _publish_reference(
        self, subject: str, reference: Reference, headers: dict[str, str], attempt: _PublishAttempt
    ) -> Published:
        """Publish until there is a reply; the message id makes a retry harmless as long as the stream remembers it."""
        is_unknown = False
        for _ in range(_ATTEMPTS):
            try:
                if is_unknown and not await self._mark_shared(attempt):
                    break
                ack = await self._publish_with_ttl(subject, reference, headers)
            except RequestTimeout:
                is_unknown = True
                continue
            except RequestError as error:
                if is_unknown or not attempt.is_new:
                    break
                await self._rollback(attempt.entry)
                raise PublishFailed(f"{subject!r}: {error}", reference.claim_id) from error
            return Published(ack["stream"], ack["seq"], bool(ack.get("duplicate")), reference)
        entry = attempt.entry
        await self._audit.record(entry.namespace, entry.claim_id, "failed", step="publish", outcome="unknown")
        raise PublishUnknown(
            f"nobody said whether claim {reference.claim_id} was published to {subject!r}; publish again with "
            f"msg_id={headers[MSG_ID]!r}",
            reference.claim_id,
        )

    async def _mark_shared(self, attempt: _PublishAttempt) -> bool:
        """Mark the claim as shared before a retry: the message may be stored already, and the stream may have forgotten
        its id. Returns whether it can be sent again.
        """
        if attempt.entry.shared:
            attempt.is_sole = False  # by now the stream may have it twice: it may forget ids between retries
        else:
            entry = replace(attempt.entry, shared=True)
            updated = await self._registry.compare_and_set(entry, self._metadata_ttl_s(entry))
            if updated is None:
                return False  # it was read meanwhile, or another attempt uses it
            attempt.entry = updated
        return True

    async def _publish_with_ttl(
        self, subject: str, reference: Reference, headers: dict[str, str]
    ) -> dict[str, Any]:
        """Publish with a TTL, if the stream allows it, so that message and claim expire together."""
        left_s = reference.expires_at - self._clock.now_ns() // SECOND_NS
        if subject not in self._subjects_without_ttl and TTL not in headers:
            try:
                timed = {**headers, TTL: f"{max(left_s, 1)}s"}
                return await self._jetstream.publish(subject, reference.encode(), timed)
            except RequestError as error:
                if error.err_code != _TTL_DISABLED:
                    raise
                self._subjects_without_ttl.add(subject)
        return await self._jetstream.publish(subject, reference.encode(), headers)

    async def _message_refers_to(self, published: Published, reference: Reference) -> bool:
        """Return whether the duplicate's original refers to the object just stored; True if that cannot be found out."""
        try:
            message = await self._jetstream.get_message(published.stream, published.seq)
        except (RequestTimeout, RequestError):
            return True
        return message is not None and b64decode(message.get("data", "")) == reference.encode()

    async def _rollback(self, entry: ClaimEntry) -> None:
        """Remove an object that nothing refers to, unless another attempt has found it meanwhile."""
        try:
            entry = entry if entry.revision else await self._find_registered(entry)
        except (RequestTimeout, RequestError):
            return  # its timer or the hour in its key ends it
        removed = await self._registry.remove([entry]) if entry.revision else []
        if entry.revision and not removed:
            return
        try:
            await self._objects.delete([entry])
        except ObjectStoreError as error:
            self._metrics.delete_failures.labels(entry.namespace).inc()
            await self._audit.record(entry.namespace, entry.claim_id, "failed", step="undo", error=str(error))
            await self._restore_entries(removed)
            return
        if entry.revision:
            await self._registry.cancel_timers([entry])
        await self._audit.record(entry.namespace, entry.claim_id, "deleted", reason="not published")

    async def _find_registered(self, entry: ClaimEntry) -> ClaimEntry:
        """Return the record of a claim whose registration failed: it may exist in part, and others may find it."""
        found = await self._registry.find(entry.namespace, entry.claim_id)
        return found if found is not None and found.object_key == entry.object_key else entry

    async def _restore_entries(self, removed: Sequence[tuple[ClaimEntry, int]]) -> None:
        """Restore records whose objects the store did not delete: their timers run, and the collector tries again."""
        for entry, tombstone in removed:
            with suppress(RequestTimeout, RequestError):
                await self._registry.restore(entry, tombstone, self._metadata_ttl_s(entry))

    async def _unregister(self, entry: ClaimEntry) -> None:
        if await self._registry.remove([entry]):
            await self._registry.cancel_timers([entry])

    async def _record_published(self, entry: ClaimEntry, is_new: bool) -> None:
        live = replace(entry, state="live") if entry.state == "pending" else entry
        await self._registry.update_nowait(live, self._metadata_ttl_s(live))
        if is_new:
            self._metrics.created.labels(entry.namespace).inc()
            places = {stream: place[0] for stream, place in entry.places.items()}
            await self._audit.record(
                entry.namespace,
                entry.claim_id,
                "created",
                key=entry.object_key,
                size=entry.original_size,
                stored=entry.stored_size,
                expires_at=entry.expires_at,
                **places,
            )

    def _metadata_ttl_s(self, entry: ClaimEntry) -> float:
        return metadata_ttl_s(entry, self._config.ttl.grace_period, self._clock.now_ns())


def get_headers_size(headers: Mapping[str, str]) -> int:
    """Return the encoded size of a header block; it counts towards the server's maximum."""
    if not headers:
        return 0
    lines = sum(len(f"{name}: {value}\r\n".encode()) for name, value in headers.items())
    return len("NATS/1.0\r\n") + lines + len("\r\n")


if not TYPE_CHECKING:
    __getattr__ = renamed_names(__name__, {"Producer": "ClaimProducer"})
