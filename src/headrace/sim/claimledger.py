"""What must hold of claims, whatever happens (C12): the judge of a `ClaimWorld`.

Owns what was sent and what was acknowledged, and looks at broker and bucket as they really are. A message that carries
a reference is owed its object until everybody concerned has acknowledged it or it has expired, and while somebody needs
it until the grace period is over, too. Nobody's deletion may break that, no unread object goes within the grace period,
and what is read is what was sent. It must not know how claims are kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.claims import ClaimConfig, ClaimError, Reference
from headrace.claims.clock import rfc3339_ns
from headrace.claims.consumer import fetched
from headrace.claims.reference import CLAIM_HEADER, decode
from headrace.claims.registry import STREAM, claim_subject
from headrace.protocol import headers
from headrace.sim.checks import Violation
from headrace.sim.clock import SECOND_NS
from headrace.sim.host import SimHost
from headrace.sim.objects import HonestDoor, SimObjects

IDENT = "Ident"


class Carried(NamedTuple):
    """A message that carries a reference."""

    stream: str
    seq: int
    subject: bytes
    ident: str
    reference: Reference

    def __str__(self) -> str:
        return f"{self.stream} {self.seq} ({self.reference.object_key})"


class ClaimLedger:
    """`skew_ns` is how far any two clocks may differ."""

    def __init__(self, host: SimHost, objects: SimObjects, config: ClaimConfig, skew_ns: int) -> None:
        self.payloads: dict[str, bytes] = {}
        self.read = self.losses = 0
        self.removals: list[tuple[int, str, str]] = []
        self.violations: list[str] = []
        self._host = host
        self._objects = objects
        self._honest = HonestDoor(objects)
        self._config = config
        self._skew_ns = skew_ns + SECOND_NS
        self._acked_ns: dict[str, int] = {}
        objects.removing = self.removing

    @property
    def now_ns(self) -> int:
        return self._host.clock.now_ns()

    # What actors tell

    def acking(self, reference: Reference | None) -> None:
        """Somebody is about to acknowledge a claim's message."""
        if reference is not None:
            self._acked_ns.setdefault(reference.object_key, self.now_ns)

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
                if message is not None and (each := _carried(name, seq, message)) is not None:
                    found.append(each)
        return found

    def owed(self, each: Carried) -> str:
        """Why a message's object must be there; "" when nobody is owed anything."""
        ttl, expires_ns = self._config.ttl, each.reference.expires_at * SECOND_NS
        concerned, needing = self._consumers(each)
        if needing and self.now_ns < expires_ns + ttl.grace_period * SECOND_NS:
            return f"{needing} still needs it"
        if self.now_ns >= expires_ns or (concerned and ttl.delete_after_read):
            return ""
        return "it has not expired"

    def _consumers(self, each: Carried) -> tuple[bool, str]:
        """Whether anybody is concerned with a message, and who has not acknowledged it."""
        concerned, log = False, self._host.broker.jetstream.streams[each.stream].log
        for consumer in self._host.broker.jetstream.streams[each.stream].consumers.values():
            if log.next(consumer.filter, each.seq) != each.seq:
                continue
            concerned = True
            if each.seq in consumer.progress.pending or each.seq >= consumer.progress.next_seq:
                return True, consumer.name
        return concerned, ""

    # Judging

    def removing(self, key: str, who: str) -> None:
        """Somebody of ours deletes an object: nobody may be owed it."""
        life = self._objects.peek(key)
        if life is None:
            return
        self.removals.append((self.now_ns, key, who))
        for each in self.carried():
            if each.reference.object_key == key and (reason := self.owed(each)):
                self.blame(f"{who} deletes the object of {each}: {reason}")
        if who.startswith("collector"):
            self._check_age(key, who, rfc3339_ns(life.info.metadata["prism-created-at"]))

    def _check_age(self, key: str, who: str, created_ns: int) -> None:
        ttl, acked_ns = self._config.ttl, self._acked_ns.get(key)
        kept_ns = created_ns + ttl.grace_period * SECOND_NS
        if acked_ns is not None:
            kept_ns = min(
                acked_ns + ttl.retention_after_read * SECOND_NS, created_ns + ttl.max_age * SECOND_NS
            )
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
            if reason := self.owed(each):
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
        log = self._host.broker.jetstream.streams[STREAM].log
        pattern = claim_subject(self._config.namespace, "*").encode()
        for seq in log.seqs(log.filter((pattern,)), log.first_seq, log.last_seq).tolist():
            message = log.get(seq)
            if message is not None and message[3]:
                self.blame(f"facts are left for ever: {bytes(message[3])[:200]!r}")
        self.raise_first()


def _carried(stream: str, seq: int, message: tuple[int, bytes, bytes, bytes, int]) -> Carried | None:
    _, subject, header, payload, _ = message
    block: Any = bytes(header)
    if headers.get(block, CLAIM_HEADER.encode()) != b"true":
        return None
    ident = headers.get(block, IDENT.encode()) or b""
    return Carried(stream, seq, bytes(subject), ident.decode(), decode(bytes(payload)))
