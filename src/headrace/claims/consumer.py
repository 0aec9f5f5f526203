"""Claim consumer: turns references into payloads, and releases a claim only after a confirmed ack.

A claim is checked before it is fetched, verified while it streams, and released once the server has confirmed the ack.
From then on the timer in the registry ends it, or with retention 0 this very call, unless another consumer of the
stream needs it. A failed release or deletion never fails the message.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from headrace.claims import reference as references
from headrace.claims.ack_keep_alive import AckKeepAlive
from headrace.claims.audit_trail import Audit
from headrace.claims.claim_release import ClaimReleaser, get_consumer_name
from headrace.claims.clock import SECOND_NS
from headrace.claims.compression import Chunk
from headrace.claims.config import ClaimConfig
from headrace.claims.errors import (
    ClaimFailure,
    ClaimNotFound,
    Corrupt,
    Expired,
    Forbidden,
    StoreUnavailable,
)
from headrace.claims.jetstream_client import JetStreamClient, RequestTimeout
from headrace.claims.metrics import Metrics
from headrace.claims.payload_fetch import fetch, fetch_whole
from headrace.claims.reference import Reference
from headrace.claims.registry import Registry
from headrace.claims.stores import ObjectStore, ObjectStoreError
from headrace.clock import Clock
from headrace.deprecation import renamed_names
from headrace.errors import RequestError

_LOG = logging.getLogger("headrace.claims")
_RETRY_S = 5.0
_RETRY_S_MAX = 300.0
#: Original subject of a dead letter.
_FIRST_SUBJECT = "Claim-Subject"


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
        self._registry = registry
        self._audit = audit
        self._metrics = metrics
        self._clock = clock
        self._releaser = ClaimReleaser(jetstream, config, store, registry, audit, metrics, clock)
        self._keep_alive = AckKeepAlive(jetstream, config.ttl.max_age)
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
        started = time.perf_counter()
        headers = dict(message.headers or {})
        try:
            reference = await self._get_permitted_reference(message)
            if reference is None:
                content_type = headers.get(references.CONTENT_TYPE, "")
                return Received(message.subject, message.data, headers, content_type, None, message)
            try:
                data = await fetch_whole(self._store, reference)
            except ClaimNotFound as error:
                raise self._explain_missing(reference, error) from error
        except ClaimFailure as error:
            await self._record_failure(message, error)
            raise
        await self._record_retrieval(message, reference, started)
        headers = references.restore_headers(headers, reference.claim_id)
        return Received(message.subject, data, headers, reference.content_type, reference, message)

    async def stream(self, message: Msg) -> AsyncIterator[Chunk]:
        """Yield the payload in pieces, at constant memory. It is verified only after the last piece."""
        started = time.perf_counter()
        try:
            reference = await self._get_permitted_reference(message)
            if reference is None:
                yield message.data
                return
            try:
                async for chunk in fetch(self._store, reference):
                    yield chunk
            except ClaimNotFound as error:
                raise self._explain_missing(reference, error) from error
        except ClaimFailure as error:
            await self._record_failure(message, error)
            raise
        await self._record_retrieval(message, reference, started)

    async def _get_permitted_reference(self, message: Msg) -> Reference | None:
        """Return the reference that a message carries and may carry; None if it carries its payload itself."""
        reference = self.reference(message)
        if reference is not None and self._config.strict_subjects:
            await self._check_subject(reference, message)
        return reference

    async def _record_retrieval(self, message: Msg, reference: Reference, started: float) -> None:
        namespace = self._config.namespace
        self._metrics.retrieved.labels(namespace).inc()
        self._metrics.retrieval_duration.labels(namespace).observe(time.perf_counter() - started)
        await self._audit.record(namespace, reference.claim_id, "retrieved", by=get_consumer_name(message))

    def _explain_missing(self, reference: Reference, error: ClaimNotFound) -> ClaimFailure:
        """Return the error for a missing payload; after `max_age` it has expired: the grace period is for its consumers."""
        if self._clock.now_ns() <= reference.expires_at * SECOND_NS:
            return error
        return Expired(f"claim {reference.claim_id} ended at its max_age", reference.claim_id)

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
            f"claim {reference.claim_id} does not belong to subject {message.subject!r}: its object key is "
            f"{reference.object_key}",
            reference.claim_id,
            may_pass=False,
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
        await self.release(message)
        return True

    async def release(self, message: Msg) -> None:
        """Release the claim of a message whose ack the server has confirmed; never raises."""
        if not references.is_claim(message.headers) or not self._config.ttl.delete_after_read:
            return
        try:
            await self._releaser.release(references.decode(message.data), message)
        except (RequestTimeout, RequestError, ObjectStoreError, Corrupt) as error:
            self._metrics.errors.labels(self._config.namespace, "release").inc()
            _LOG.warning("a claim could not be released, the collector will release it: %s", error)

    def keep(self, message: Msg) -> AbstractAsyncContextManager[None]:
        """Ask the server to wait for the ack of a message, during a context."""
        return self._keep_alive.keep(message)

    async def handle(self, message: Msg, handler: Callable[[Received], Awaitable[Any]]) -> bool:
        """Read the payload, call the handler, acknowledge; return whether all of it worked.

        While this takes long the server is asked to wait, so that the message is not delivered a second time meanwhile.
        On errors that may pass the message is redelivered, as long as its claim exists; a message whose claim can never
        be read goes to the dead letters and is terminated. Exceptions of the handler are raised, without an ack.
        """
        async with self._keep_alive.keep(message):
            try:
                received = await self.read(message)
            except ClaimFailure as error:
                await self.retry_or_give_up(message, error)
                return False
            await handler(received)
            return await self.ack(message)

    async def retry_or_give_up(self, message: Msg, error: ClaimFailure) -> None:
        """Let the server redeliver a message whose claim may be readable later; dead-letter and terminate any other."""
        if error.retryable or (error.may_pass and await self._is_claim_live(message)):
            delay_s = _get_retry_delay_s(message)
            _LOG.warning("message on %s will be redelivered in %g s: %s", message.subject, delay_s, error)
            await message.nak(delay=delay_s)
        else:
            _LOG.error("message on %s is given up, its claim is lost: %s", message.subject, error)
            await self._dead_letter(message, error)

    async def _is_claim_live(self, message: Msg) -> bool:
        """Return whether the registry has the claim of a message, and it has time left; True if that is unknown.

        Then this program's store or configuration is at fault, not the message. A forged reference has no record, and
        cannot extend its time.
        """
        try:
            reference = references.decode(message.data)
            stored_s = message.metadata.timestamp.timestamp()
        except (Corrupt, NatsError):
            return False
        key, config = references.parse_key(reference.object_key), self._config
        end_s = min(reference.expires_at, stored_s + config.ttl.max_age) + config.end_grace_s
        if key is None or self._clock.now_ns() > end_s * SECOND_NS:
            return False
        try:
            entry = await self._registry.find(key.namespace, reference.claim_id)
        except (RequestTimeout, RequestError):
            return True
        return entry is not None and entry.reference == reference.as_dict()

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
            by=get_consumer_name(message),
        )

    async def _dead_letter(self, message: Msg, error: ClaimFailure) -> None:
        """Store the dead letter, then terminate the message."""
        if self._config.dead_letter:
            # Headers of the server say what to expect of the first stream, not of this one.
            kept = {
                name: value for name, value in (message.headers or {}).items() if not name.startswith("Nats-")
            }
            headers = {**kept, "Claim-Error": error.reason, _FIRST_SUBJECT: message.subject}
            try:
                await self._jetstream.publish(self._config.dead_letter, message.data, headers)
            except (RequestTimeout, RequestError) as refusal:
                _LOG.warning("no dead letter for %s, will retry: %s", message.subject, refusal)
                await message.nak(delay=_RETRY_S)
                return
        await message.term()


def _get_retry_delay_s(message: Msg) -> float:
    """Return when to redeliver a message whose claim cannot be read now: less and less often."""
    try:
        delivered = message.metadata.num_delivered
    except NatsError:
        return _RETRY_S
    return float(min(_RETRY_S * 2 ** min(delivered - 1, 10), _RETRY_S_MAX))


if not TYPE_CHECKING:
    __getattr__ = renamed_names(__name__, {"Consumer": "ClaimConsumer"})
