"""Claim producer: publishes small payloads as they are and large ones as claims.

Order of an upload: store the object and register the record with a timer (`UploadAttempt`), publish the reference
(`ReferencePublisher`), then add its position to the record. A crash at any moment leaves either nothing, or an object
or a record that a timer or the hour in the key will end. A rejected publish removes the object again; after an unknown
outcome it stays, and a retry with the same message id finds it (`EarlierAttempts`). Before a claim can be referenced by
a second message it is marked *shared* with a compare-and-set, so that a concurrent delete fails; a shared claim is only
removed by age. See ADR 31.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from nats.aio.client import Client as Connection

from headrace.claims import reference as references
from headrace.claims.audit_trail import Audit
from headrace.claims.claim_rollback import ClaimRollback
from headrace.claims.config import ClaimConfig
from headrace.claims.earlier_attempts import EarlierAttempts
from headrace.claims.errors import PublishFailed, PublishUnknown, TooLarge
from headrace.claims.jetstream_client import JetStreamClient, RequestTimeout
from headrace.claims.metrics import Metrics
from headrace.claims.records import ClaimEntry
from headrace.claims.reference import MSG_ID, Reference
from headrace.claims.reference_publisher import PublishAttempt, Published, ReferencePublisher
from headrace.claims.registry import Registry, metadata_ttl_s
from headrace.claims.stores import ObjectStore
from headrace.claims.streaming_upload import Payload, buffer_small, get_payload_size, iter_chunks
from headrace.claims.upload_attempt import UploadAttempt, UploadContext
from headrace.clock import Clock
from headrace.deprecation import RenamedAttribute, renamed_names
from headrace.errors import RequestError


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
        self._registry = registry
        self._audit = audit
        self._metrics = metrics
        self._clock = clock
        self._draw_id = draw_id
        self._rollback = ClaimRollback(config, store, registry, audit, metrics, clock)
        self._uploads = UploadContext(config, store, registry, self._rollback, metrics, clock, draw_id)
        self._earlier_attempts = EarlierAttempts(config, store, registry, clock, draw_id)
        self._publisher = ReferencePublisher(jetstream, config, registry, self._rollback, audit, clock)

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
            raise TooLarge(
                f"the payload for {subject!r} has more than {limit} bytes, and claim_check.enabled is false"
            )
        return await self._offload(subject, payload, headers, msg_id)

    async def upload(
        self, subject: str, payload: Payload, claim_id: str, headers: Mapping[str, str] | None = None
    ) -> tuple[ClaimEntry, bool]:
        """Store and register a payload, for callers that publish the reference themselves.

        Returns the entry and whether it is new. The claim of an earlier attempt with this id is reused.
        `confirm_published` or `cancel` must follow; until then, and if neither does, its timer runs.
        """
        earlier = await self._earlier_attempts.share(claim_id)
        if earlier is not None:
            return earlier, False
        upload = UploadAttempt(self._uploads, subject, payload, headers or {}, claim_id, may_repeat=True)
        return await upload.run(), True

    async def confirm_published(self, entry: ClaimEntry, stream: str, seq: int, subject: str) -> None:
        """Record that the reference of an uploaded claim was published."""
        await self._record_published(entry.with_place(stream, seq, subject), True)

    async def cancel(self, entry: ClaimEntry) -> None:
        """Remove an uploaded claim whose reference was not published, and never will be."""
        await self._rollback.run(entry)

    @property
    def inline_max(self) -> int:
        """Maximum bytes, headers included, of a message that is sent as it is."""
        return get_inline_max(self._config, self._jetstream.connection)

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
        attempt = None
        if msg_id:
            claim_id, attempt = await self._earlier_attempts.share_with_payload(claim_id, payload)
        if attempt is None:
            upload = UploadAttempt(
                self._uploads, subject, payload, headers, claim_id, may_repeat=bool(msg_id)
            )
            attempt = PublishAttempt(await upload.run(), is_new=True)
        reference = Reference(**(attempt.entry.reference or {}))
        headers = {**headers, references.CLAIM_HEADER: "true", MSG_ID: msg_id or claim_id}
        published = await self._publisher.publish(subject, reference, headers, attempt)
        entry = attempt.entry
        is_duplicate = published.duplicate
        if is_duplicate and attempt.is_new and not await self._publisher.is_referred_to(published, reference):
            # The message of the first attempt has its own claim, or was processed long ago.
            await self._rollback.run(entry)
        else:
            shared = entry.shared and not (is_duplicate and attempt.is_sole)
            placed = replace(entry.with_place(published.stream, published.seq, subject), shared=shared)
            await self._record_published(placed, attempt.is_new)
        return published

    async def _record_published(self, entry: ClaimEntry, is_new: bool) -> None:
        live = replace(entry, state="live") if entry.state == "pending" else entry
        ttl_s = metadata_ttl_s(live, self._config.ttl.grace_period, self._clock.now_ns())
        await self._registry.update_nowait(live, ttl_s)
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


def get_inline_max(config: ClaimConfig, connection: Connection) -> int:
    """Return the maximum bytes, headers included, of a message that is sent as it is."""
    server: int = connection.max_payload
    return min(config.threshold, server) if config.enabled else server


def get_headers_size(headers: Mapping[str, str]) -> int:
    """Return the encoded size of a header block; it counts towards the server's maximum."""
    if not headers:
        return 0
    lines = sum(len(f"{name}: {value}\r\n".encode()) for name, value in headers.items())
    return len("NATS/1.0\r\n") + lines + len("\r\n")


if not TYPE_CHECKING:
    __getattr__ = renamed_names(__name__, {"Producer": "ClaimProducer"})
