"""What must hold of claims, whatever happens (C12): the judge of a `ClaimWorld`.

Owns what was sent and what was acknowledged, and looks at broker and bucket as they really are. A message that carries
a reference is owed its object until everybody concerned has acknowledged it or it has expired, and while somebody needs
it (`Needs`) until the grace period is over, too. Nobody's deletion may break that, no unread object goes within the grace
period, no upload is given up that may still end well, and what is read is what was sent. It must not know how claims are
kept, but for where facts and leases are documented to be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from headrace.claims import ClaimConfig, ClaimError, Reference
from headrace.claims.clock import rfc3339_ns
from headrace.claims.consumer import fetched
from headrace.claims.reference import CLAIM_HEADER, decode
from headrace.claims.registry import STREAM, claim_subject
from headrace.claims.stores import Upload
from headrace.protocol import headers
from headrace.sim.checks import Violation
from headrace.sim.claimneeds import IDENT, Carried, Needs
from headrace.sim.clock import SECOND_NS
from headrace.sim.host import SimHost
from headrace.sim.objects import HonestDoor, SimObjects


class ClaimLedger:
    """`skew_ns` is how far any two clocks may differ."""

    def __init__(self, host: SimHost, objects: SimObjects, config: ClaimConfig, skew_ns: int) -> None:
        self.payloads: dict[str, bytes] = {}
        self.read = self.losses = 0
        self.removals: list[tuple[int, str, str]] = []
        self.violations: list[str] = []
        self.needs = Needs(host)
        #: When each process began to decide about what it is doing now.
        self.deciding: dict[str, Callable[[], int]] = {}
        self._host = host
        self._objects = objects
        self._honest = HonestDoor(objects)
        self._config = config
        self._skew_ns = skew_ns + SECOND_NS
        self._acked_ns: dict[str, int] = {}
        self._copies_acked_ns: dict[str, int] = {}
        self._decided_ns: dict[str, int] = {}
        objects.removing = self.removing
        objects.aborting = self.aborting

    @property
    def now_ns(self) -> int:
        return self._host.clock.now_ns()

    # What actors tell

    def acking(self, reference: Reference | None, stream: str) -> None:
        """Somebody is about to acknowledge a claim's message, in a stream that may be a copy."""
        if reference is not None:
            acked_ns = self._copies_acked_ns if stream in self.needs.copies else self._acked_ns
            acked_ns.setdefault(reference.object_key, self.now_ns)

    def released(self, reference: Reference, stream: str) -> None:
        """A reader of a copy released a claim, and nothing went wrong: its facts must name the copy from now on."""
        facts = self._facts(reference.claim_id)
        if facts is None or facts["object_key"] != reference.object_key or facts["shared"]:
            return  # gone by now, or only its age ends it
        if stream in facts["places"]:
            self.needs.released(reference.object_key, stream)
        elif facts["state"] == "released":
            self.blame(f"claim {reference.claim_id} was released from {stream}, and its facts do not say so")

    def received(self, ident: str, data: bytes) -> None:
        self.read += 1
        if self.payloads.get(ident) != data:
            self.blame(f"message {ident} was read as something that nobody sent")

    def blame(self, text: str) -> None:
        """Noted here, raised by whoever runs the world: what an actor raises may get lost."""
        self.violations.append(f"C12: {text}")

    def raise_first(self) -> None:
        if self.violations:
            raise Violation(self.violations[0])

    # What is there

    def carried(self) -> list[Carried]:
        """All messages that carry references, in streams other than the registry's."""
        found = []
        for name, stream in sorted(self._host.broker.jetstream.streams.items()):
            if name.startswith("CLAIMS"):
                continue
            log = stream.log
            for seq in log.seqs(None, log.first_seq, log.last_seq).tolist():
                message = log.get(seq)
                if message is not None and (each := carried(name, seq, *message[1:4])) is not None:
                    found.append(each)
        return found

    def owed(self, each: Carried, decided_ns: int) -> str:
        """Why a message's object must be there, for whoever decided then; "" when nobody is owed anything."""
        ttl, expires_ns = self._config.ttl, each.reference.expires_at * SECOND_NS
        needing = self.needs.needing(each, decided_ns)
        if needing and self.now_ns < expires_ns + ttl.grace_period * SECOND_NS:
            return f"{needing} still needs it"
        if self.now_ns >= expires_ns or each.stream in self.needs.copies:
            return ""
        is_read = each.reference.object_key in self._copies_acked_ns or self.needs.concerned(each)
        return "" if is_read and ttl.delete_after_read else "it has not expired"

    def _facts(self, claim_id: str) -> dict[str, Any] | None:
        """What the registry says of a claim."""
        log = self._host.broker.jetstream.streams[STREAM].log
        message = log.get(log.last_of(claim_subject(self._config.namespace, claim_id).encode()))
        return json.loads(bytes(message[3])) if message is not None and message[3] else None

    # Judging

    def removing(self, key: str, who: str) -> None:
        """Somebody of ours deletes an object: nobody may be owed it."""
        life = self._objects.peek(key)
        if life is None:
            return
        self.removals.append((self.now_ns, key, who))
        decided_ns = self._decided_ns[key] = self.deciding[who]() if who in self.deciding else self.now_ns
        for each in self.carried():
            if each.reference.object_key == key and (reason := self.owed(each, decided_ns)):
                self.blame(f"{who} deletes the object of {each}: {reason}")
        if who.startswith("collector"):
            self._check_age(key, who, rfc3339_ns(life.info.metadata["prism-created-at"]))

    def aborting(self, upload: Upload, who: str) -> None:
        """Somebody of ours gives up an upload in parts that is another's: it must be dead, or too late anyway."""
        left_ns = upload.initiated_ns + self._config.ttl.max_age * SECOND_NS - self._skew_ns - self.now_ns
        if left_ns > 0:
            self.blame(f"{who} ends the upload of {upload.key} {left_ns / SECOND_NS:.1f} s too early")
        if not upload.is_of(self._config.namespace):
            self.blame(f"{who} ends the upload of {upload.key}, which is not ours")

    def _check_age(self, key: str, who: str, created_ns: int) -> None:
        ttl, acked_ns = self._config.ttl, self._acked_ns.get(key)
        kept_ns = created_ns + ttl.grace_period * SECOND_NS
        if acked_ns is not None:
            kept_ns = min(
                acked_ns + ttl.retention_after_read * SECOND_NS, created_ns + ttl.max_age * SECOND_NS
            )
        if key in self._copies_acked_ns:  # which may have released it, but need not have
            kept_ns = min(kept_ns, self._copies_acked_ns[key] + ttl.retention_after_read * SECOND_NS)
        if self.now_ns < kept_ns - self._skew_ns:
            left_s = (kept_ns - self.now_ns) / SECOND_NS
            self.blame(
                f"{who} deletes {key} {left_s:.1f} s too early, {'unread' if acked_ns is None else 'read'}"
            )

    async def judge(self) -> None:
        """Every message that is owed its object has it, and what is there is what was sent, or is reported."""
        carried = self.carried()
        for each in carried:
            key = each.reference.object_key
            if key in self._objects.tampered or self._objects.peek(key) is not None:
                continue
            if reason := self.owed(each, self._decided_ns.get(key, self.now_ns)):
                self.blame(f"the object of {each} is gone: {reason}")
        for each in carried:
            await self._resolve(each)
        self.raise_first()

    async def _resolve(self, each: Carried) -> None:
        key = each.reference.object_key
        if self._objects.peek(key) is None:
            return
        try:
            pieces = [bytes(piece) async for piece in fetched(self._honest, each.reference)]
        except ClaimError as error:
            self.losses += 1
            if key not in self._objects.tampered and self._objects.peek(key) is not None:
                self.blame(f"{each} does not resolve: {error}")
            return
        if b"".join(pieces) != self.payloads.get(each.ident):
            self.blame(f"{each} resolves to something that nobody sent")

    def judge_end(self, foreign: set[str]) -> None:
        """After everything is over: nothing of ours is left, and everything of others."""
        left = set(self._objects.stored())
        if leaked := sorted(left - foreign):
            self.blame(f"{len(leaked)} objects are left for ever, {leaked[0]} among them")
        if lost := sorted(foreign - left):
            self.blame(f"{lost[0]} is not ours and was deleted")
        for upload in self._objects.uploads.listed():
            if upload.is_of(self._config.namespace):
                self.blame(f"the upload of {upload.key} is left for ever")
        self._judge_registry()
        self.raise_first()

    def _judge_registry(self) -> None:
        log = self._host.broker.jetstream.streams[STREAM].log
        patterns = (claim_subject(self._config.namespace, "*").encode(), b"$CLAIMS.reader.*.*")
        for seq in log.seqs(log.filter(patterns), log.first_seq, log.last_seq).tolist():
            message = log.get(seq)
            if message is not None and message[3]:
                self.blame(f"facts are left for ever: {bytes(message[3])[:200]!r}")


def carried(stream: str, seq: int, subject: bytes, header: bytes, payload: bytes) -> Carried | None:
    """What a message carries; None if it is no reference."""
    block: Any = bytes(header)
    if headers.get(block, CLAIM_HEADER.encode()) != b"true":
        return None
    ident = headers.get(block, IDENT.encode()) or b""
    return Carried(stream, seq, bytes(subject), ident.decode(), decode(bytes(payload)))
