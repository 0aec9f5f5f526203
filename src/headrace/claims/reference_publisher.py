"""Publishes the reference of a stored claim, and deals with publishes whose outcome is unknown.

A rejected publish removes the claim again. After an unknown outcome it stays: the message may be stored. Before a retry
the claim is marked *shared*, since the stream may later contain two messages with the same reference.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.claims.audit_trail import Audit
from headrace.claims.claim_rollback import ClaimRollback
from headrace.claims.config import ClaimConfig
from headrace.claims.errors import PublishFailed, PublishUnknown
from headrace.claims.jetstream_client import JetStreamClient, RequestTimeout
from headrace.claims.records import ClaimEntry
from headrace.claims.reference import MSG_ID, SENT_TTL, TTL, Reference, compute_message_ttl_s
from headrace.claims.registry import Registry, metadata_ttl_s
from headrace.clock import Clock
from headrace.errors import RequestError

_TTL_DISABLED = 10166
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}
_DURATION_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|ms|s|m|h)")
_DURATION = re.compile(rf"\+?({_DURATION_PART.pattern})+")
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Published:
    """Position of a message; `reference` is None if it carries its payload itself."""

    stream: str
    seq: int
    duplicate: bool
    reference: Reference | None


@dataclass(slots=True)
class PublishAttempt:
    """A claim about to be published.

    `is_new`: this attempt stored it. `is_sole`: if the server reports a duplicate, no other message carries the claim.
    """

    entry: ClaimEntry
    is_new: bool
    is_sole: bool = True


class ReferencePublisher:
    """Publishes the references of one namespace."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        config: ClaimConfig,
        registry: Registry,
        rollback: ClaimRollback,
        audit: Audit,
        clock: Clock,
    ) -> None:
        self._jetstream = jetstream
        self._config = config
        self._registry = registry
        self._rollback = rollback
        self._audit = audit
        self._clock = clock
        self._subjects_without_ttl: set[str] = set()

    async def publish(
        self, subject: str, reference: Reference, headers: dict[str, str], attempt: PublishAttempt
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
                await self._rollback.run(attempt.entry)
                raise PublishFailed(f"{subject!r}: {error}", reference.claim_id) from error
            return Published(ack["stream"], ack["seq"], bool(ack.get("duplicate")), reference)
        entry = attempt.entry
        await self._audit.record(entry.namespace, entry.claim_id, "failed", step="publish", outcome="unknown")
        raise PublishUnknown(
            f"no reply, so it is unknown whether claim {reference.claim_id} was published to {subject!r}; "
            f"publish again with msg_id={headers[MSG_ID]!r}",
            reference.claim_id,
        )

    async def is_referred_to(self, published: Published, reference: Reference) -> bool:
        """Return whether the duplicate's original refers to the object just stored; True if that cannot be found out."""
        try:
            message = await self._jetstream.get_message(published.stream, published.seq)
        except (RequestTimeout, RequestError):
            return True
        return message is not None and b64decode(message.get("data", "")) == reference.encode()

    async def _mark_shared(self, attempt: PublishAttempt) -> bool:
        """Mark the claim as shared before a retry: the message may be stored already, and the stream may have forgotten
        its id. Returns whether it can be sent again.
        """
        if attempt.entry.shared:
            attempt.is_sole = False  # by now the stream may have it twice: it may forget ids between retries
        else:
            entry = replace(attempt.entry, shared=True)
            ttl_s = metadata_ttl_s(entry, self._config.ttl.grace_period, self._clock.now_ns())
            updated = await self._registry.compare_and_set(entry, ttl_s)
            if updated is None:
                return False  # it was read meanwhile, or another attempt uses it
            attempt.entry = updated
        return True

    async def _publish_with_ttl(
        self, subject: str, reference: Reference, headers: dict[str, str]
    ) -> dict[str, Any]:
        """Publish with a TTL, if the stream allows it, so that the message ends soon after its claim."""
        ttl_s = compute_message_ttl_s(reference.expires_at, self._config, self._clock.now_ns())
        if TTL in headers:
            timed = limit_sent_ttl(headers, ttl_s)
            return await self._jetstream.publish(subject, reference.encode(), timed)
        if subject not in self._subjects_without_ttl:
            try:
                timed = {**headers, TTL: f"{ttl_s}s"}
                return await self._jetstream.publish(subject, reference.encode(), timed)
            except RequestError as error:
                if error.err_code != _TTL_DISABLED:
                    raise
                self._subjects_without_ttl.add(subject)
        return await self._jetstream.publish(subject, reference.encode(), headers)


def limit_sent_ttl(headers: Mapping[str, str], ttl_s: int) -> dict[str, str]:
    """Return the headers with the sender's TTL, or the claim's if that is shorter; restored messages have the sender's."""
    sent_s = _parse_ttl_s(headers[TTL])
    ttl = headers[TTL] if sent_s is None or sent_s <= ttl_s else f"{ttl_s}s"
    return {**headers, TTL: ttl, SENT_TTL: headers[TTL]}


def _parse_ttl_s(text: str) -> float | None:
    """Return a TTL in seconds: a number, or a duration as in Go; infinite for `never` and 0, None if it is neither."""
    if text.lower() == "never":
        return float("inf")
    if text.isdigit():
        return float(text) or float("inf")
    if not _DURATION.fullmatch(text):
        return None
    return sum(float(number) * _UNIT_S[unit] for number, unit in _DURATION_PART.findall(text))
