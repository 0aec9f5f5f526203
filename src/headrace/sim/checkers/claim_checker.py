"""Checks a `ClaimSimulation`: what must hold for claims whatever happens (promise C12).

Owns what was sent and what was acknowledged, and inspects the actual state of broker and bucket. The object of a
message with a reference must exist until every consumer concerned has acknowledged the message or it has expired, and
while it is needed (`ClaimRequirements`) until the end of the grace period as well. No deletion may break that, no
unread object is deleted within the grace period, no upload that may still succeed is aborted, and what is read is what
was sent. Must not know how claims are stored, except where claim records and leases are documented to be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from headrace.claims import ClaimConfig, ClaimError, Reference
from headrace.claims.clock import parse_rfc3339_ns
from headrace.claims.payload_fetch import fetch
from headrace.claims.reference import CLAIM_HEADER, decode
from headrace.claims.registry import STREAM, claim_subject
from headrace.claims.stores import MultipartUpload
from headrace.protocol import headers
from headrace.sim.checkers.claim_reachability import IDENT_HEADER, ClaimMessage, ClaimRequirements
from headrace.sim.checkers.store_invariants import Violation
from headrace.sim.clock import SECOND_NS
from headrace.sim.network.sim_transport import SimHost
from headrace.sim.object_store import FaultFreeObjectStore, SimBucket


class ClaimChecker:
    """Checks a claim simulation; `skew_ns` is how far any two clocks may differ."""

    def __init__(self, host: SimHost, bucket: SimBucket, config: ClaimConfig, skew_ns: int) -> None:
        self.payloads: dict[str, bytes] = {}
        self.read = self.loss_count = 0
        self.deletions: list[tuple[int, str, str]] = []
        self.violations: list[str] = []
        self.requirements = ClaimRequirements(host)
        #: When each process began to decide about its current work.
        self.decision_times: dict[str, Callable[[], int]] = {}
        self._host = host
        self._bucket = bucket
        self._fault_free_store = FaultFreeObjectStore(bucket)
        self._config = config
        self._skew_ns = skew_ns + SECOND_NS
        self._acked_ns: dict[str, int] = {}
        self._copies_acked_ns: dict[str, int] = {}
        self._decision_ns: dict[str, int] = {}

    @property
    def now_ns(self) -> int:
        return self._host.clock.now_ns()

    # Events reported by actors

    def record_ack(self, reference: Reference | None, stream: str) -> None:
        """Record that a consumer is about to acknowledge a claim's message, in a stream that may be a copy."""
        if reference is not None:
            acked_ns = self._copies_acked_ns if stream in self.requirements.copies else self._acked_ns
            acked_ns.setdefault(reference.object_key, self.now_ns)

    def record_release(self, reference: Reference, stream: str) -> None:
        """Record a successful release by a reader of a copy: the claim record must name the copy from now on."""
        metadata = self._get_metadata(reference.claim_id)
        if metadata is None or metadata["object_key"] != reference.object_key or metadata["shared"]:
            return  # already removed, or only removed by age
        if stream in metadata["places"]:
            self.requirements.record_release(reference.object_key, stream)
        elif metadata["state"] == "released":
            self.add_violation(
                f"claim {reference.claim_id} was released by a reader of {stream}, but its record does not name {stream}"
            )

    def record_read(self, ident: str, data: bytes) -> None:
        self.read += 1
        if self.payloads.get(ident) != data:
            self.add_violation(f"message {ident} was read with a payload that was never sent")

    def add_violation(self, text: str) -> None:
        """Record a violation; the simulation raises it, because an actor's exception may get lost."""
        self.violations.append(f"C12: {text}")

    def raise_first_violation(self) -> None:
        if self.violations:
            raise Violation(self.violations[0])

    # Actual state

    def find_claim_messages(self) -> list[ClaimMessage]:
        """Return all messages that carry references, except those in the registry."""
        found = []
        for name, stream in sorted(self._host.broker.jetstream.streams.items()):
            if name.startswith("CLAIMS"):
                continue
            log = stream.log
            for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist():
                message = log.get(seq)
                if (
                    message is not None
                    and (claim_message := parse_claim_message(name, seq, *message[1:4])) is not None
                ):
                    found.append(claim_message)
        return found

    def find_requirement(self, claim_message: ClaimMessage, decision_ns: int) -> str:
        """Return why a message's object must exist for a process that decided at `decision_ns`; "" if it need not."""
        ttl, expires_ns = self._config.ttl, claim_message.reference.expires_at * SECOND_NS
        blocker = self.requirements.find_blocking_consumer(claim_message, decision_ns)
        if blocker and self.now_ns < expires_ns + ttl.grace_period * SECOND_NS:
            return f"{blocker} still needs it"
        if self.now_ns >= expires_ns or claim_message.stream in self.requirements.copies:
            return ""
        is_read = (
            claim_message.reference.object_key in self._copies_acked_ns
            or self.requirements.may_have_been_read(claim_message)
        )
        return "" if is_read and ttl.delete_after_read else "it has not expired"

    def _get_metadata(self, claim_id: str) -> dict[str, Any] | None:
        """Return the registry's record of a claim."""
        log = self._host.broker.jetstream.streams[STREAM].log
        message = log.get(log.get_last_seq(claim_subject(self._config.namespace, claim_id).encode()))
        return json.loads(bytes(message[3])) if message is not None and message[3] else None

    # Checks

    def on_delete(self, key: str, process_name: str) -> None:
        """Check a deletion by one of our processes: the object must not be required."""
        version = self._bucket.get_actual(key)
        if version is None:
            return
        self.deletions.append((self.now_ns, key, process_name))
        decision_ns = self._decision_ns[key] = (
            self.decision_times[process_name]() if process_name in self.decision_times else self.now_ns
        )
        for claim_message in self.find_claim_messages():
            if claim_message.reference.object_key == key and (
                reason := self.find_requirement(claim_message, decision_ns)
            ):
                self.add_violation(f"{process_name} deletes the object of {claim_message}: {reason}")
        if process_name.startswith("collector"):
            self._check_age(key, process_name, parse_rfc3339_ns(version.info.metadata["prism-created-at"]))

    def on_abort(self, upload: MultipartUpload, process_name: str) -> None:
        """Check that one of our processes aborts another's multipart upload only if it is dead, or too late anyway."""
        left_ns = upload.initiated_ns + self._config.ttl.max_age * SECOND_NS - self._skew_ns - self.now_ns
        if left_ns > 0:
            self.add_violation(
                f"{process_name} aborts the upload of {upload.key} {left_ns / SECOND_NS:.1f} s too early"
            )
        if not upload.belongs_to(self._config.namespace):
            self.add_violation(
                f"{process_name} aborts the upload of {upload.key}, which is outside the namespace"
            )

    def _check_age(self, key: str, process_name: str, created_ns: int) -> None:
        ttl, acked_ns = self._config.ttl, self._acked_ns.get(key)
        kept_ns = created_ns + ttl.grace_period * SECOND_NS
        if acked_ns is not None:
            kept_ns = min(
                acked_ns + ttl.retention_after_read * SECOND_NS, created_ns + ttl.max_age * SECOND_NS
            )
        if key in self._copies_acked_ns:  # its readers may have released it, but need not have
            kept_ns = min(kept_ns, self._copies_acked_ns[key] + ttl.retention_after_read * SECOND_NS)
        if self.now_ns < kept_ns - self._skew_ns:
            left_s = (kept_ns - self.now_ns) / SECOND_NS
            self.add_violation(
                f"{process_name} deletes {key} {left_s:.1f} s too early, {'unread' if acked_ns is None else 'read'}"
            )

    async def check(self) -> None:
        """Check that every required object exists, and that every object contains what was sent, or is reported."""
        claim_messages = self.find_claim_messages()
        for claim_message in claim_messages:
            key = claim_message.reference.object_key
            if key in self._bucket.tampered or self._bucket.get_actual(key) is not None:
                continue
            if reason := self.find_requirement(claim_message, self._decision_ns.get(key, self.now_ns)):
                self.add_violation(f"the object of {claim_message} is gone: {reason}")
        for claim_message in claim_messages:
            await self._check_resolves(claim_message)
        self.raise_first_violation()

    async def _check_resolves(self, claim_message: ClaimMessage) -> None:
        key = claim_message.reference.object_key
        if self._bucket.get_actual(key) is None:
            return
        try:
            chunks = [bytes(chunk) async for chunk in fetch(self._fault_free_store, claim_message.reference)]
        except ClaimError as error:
            self.loss_count += 1
            if key not in self._bucket.tampered and self._bucket.get_actual(key) is not None:
                self.add_violation(f"{claim_message} does not resolve: {error}")
            return
        if b"".join(chunks) != self.payloads.get(claim_message.ident):
            self.add_violation(f"{claim_message} resolves to a payload that was never sent")

    def check_end(self, foreign: set[str]) -> None:
        """Check at the end that nothing of ours is left, and everything of others."""
        left = set(self._bucket.list_keys())
        if leaked := sorted(left - foreign):
            self.add_violation(f"{len(leaked)} objects were never deleted, for example {leaked[0]}")
        if lost := sorted(foreign - left):
            self.add_violation(f"{lost[0]} is outside the namespace and was deleted")
        for upload in self._bucket.uploads.list_open():
            if upload.belongs_to(self._config.namespace):
                self.add_violation(f"the upload of {upload.key} was never aborted")
        self._check_registry()
        self.raise_first_violation()

    def _check_registry(self) -> None:
        log = self._host.broker.jetstream.streams[STREAM].log
        patterns = (claim_subject(self._config.namespace, "*").encode(), b"$CLAIMS.reader.*.*")
        for seq in log.find_seqs(log.get_filter(patterns), log.first_seq, log.last_seq).tolist():
            message = log.get(seq)
            if message is not None and message[3]:
                self.add_violation(f"a claim record or lease was never removed: {bytes(message[3])[:200]!r}")


def parse_claim_message(
    stream: str, seq: int, subject: bytes, header: bytes, payload: bytes
) -> ClaimMessage | None:
    """Parse a message that carries a reference; None for others."""
    block: Any = bytes(header)
    if headers.get(block, CLAIM_HEADER.encode()) != b"true":
        return None
    ident = headers.get(block, IDENT_HEADER.encode()) or b""
    return ClaimMessage(stream, seq, bytes(subject), ident.decode(), decode(bytes(payload)))
