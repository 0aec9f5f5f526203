"""What clients did and what they were told, and what a server may therefore hold: the judge of a simulated world.

Owns the promises C1 to C9 and C13 (RELIABILITY of the design): it knows every message that was sent, what was answered,
and which removals were ever asked for. A server's log is held against that, after a recovery and at rest. It keeps no
copy of the server's rules beyond the ones it judges by, and it must not know disks, frames or sockets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headrace.protocol import subjects
from headrace.sim.checks import Violation
from headrace.store import Log

SECOND_NS = 1_000_000_000
#: How much later than its deadline a message may still be there.
LATE_NS = SECOND_NS // 4
#: How long ids are remembered in a world.
WINDOW_NS = 120 * SECOND_NS
_FOREVER = 1 << 63


@dataclass(slots=True, eq=False)
class Sent:
    """One message that a client sent."""

    ident: bytes
    stream: str
    subject: bytes
    client: int
    order: int
    sent_ns: int
    ttl_ns: int = 0
    message_id: str = ""
    batch: bytes = b""
    seq: int = 0  # told by the server
    told_ns: int = _FOREVER
    refused: bool = False
    duplicate: bool = False
    filler: int = 0

    @property
    def payload(self) -> bytes:
        return self.ident + b"x" * self.filler


@dataclass(slots=True)
class Purge:
    """A purge takes what was sent before it, and perhaps what was sent before its answer came."""

    pattern: bytes
    client: int
    doomed: set[int]  # surely gone once it is answered
    until: int = _FOREVER


@dataclass(slots=True)
class Removals:
    """What was asked to be removed from a stream, whether or not it was answered."""

    deleted: set[int] = field(default_factory=set)
    deleted_surely: set[int] = field(default_factory=set)
    purges: list[Purge] = field(default_factory=list)
    acked: dict[str, set[int]] = field(default_factory=dict)  # by consumer
    acked_surely: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Rules:
    """What a stream may remove by itself."""

    per_subject: bool = False
    messages_max: int = 0
    queue: bool = False
    ttl: bool = False
    moved: bool = False  # another stream takes it away; whether it arrives there is judged there
    readers: Mapping[str, tuple[bytes, ...]] | None = None  # it keeps what one of these consumers still needs


class Ledger:
    """Everything that happened, by stream."""

    def __init__(self, rules: dict[str, Rules]) -> None:
        self.rules = rules
        self.sent: dict[bytes, Sent] = {}
        self.by_stream: dict[str, list[Sent]] = {name: [] for name in rules}
        self.removals = {name: Removals() for name in rules}
        self.given: dict[tuple[str, int], bytes] = {}  # who was ever seen to have a sequence
        self.order = 0
        self.latest_ns = 0  # the latest time that the clock ever showed; it may have been set back since

    # What clients do

    def send(self, stream: str, subject: bytes, client: int, now_ns: int) -> Sent:
        """A message is about to be sent; its ident is to be its payload's beginning."""
        self.order += 1
        made = Sent(b"%s#%d#" % (stream.encode(), self.order), stream, subject, client, self.order, now_ns)
        self.sent[made.ident] = made
        self.by_stream[stream].append(made)
        return made

    def stored(self, message: Sent, seq: int, now_ns: int, *, duplicate: bool = False) -> None:
        """A publisher was told that its message is stored."""
        self.latest_ns = max(self.latest_ns, now_ns)
        message.seq, message.told_ns, message.duplicate = seq, self.latest_ns, duplicate
        if not duplicate:
            self.give(message.stream, seq, message.ident, "acknowledged")
            return
        twins = [m for m in self.by_stream[message.stream] if m.message_id == message.message_id]
        if not any(twin is not message and twin.seq in (0, seq) for twin in twins):
            raise Violation(f"C6: {message.ident!r} is called a duplicate of {seq}, which it is not")

    def give(self, stream: str, seq: int, ident: bytes, how: str) -> None:
        """A sequence was seen to belong to a message."""
        owner = self.given.setdefault((stream, seq), ident)
        if owner != ident:
            raise Violation(f"C4: {stream} {seq} was {owner!r} and is now {ident!r} ({how})")

    def purge(self, stream: str, pattern: bytes, client: int) -> Purge:
        """A purge is about to be sent."""
        known = (m for m in self.by_stream[stream] if m.seq and not m.duplicate)
        made = Purge(pattern, client, {m.seq for m in known if _purges(pattern, m)})
        self.removals[stream].purges.append(made)
        return made

    def acknowledge(self, stream: str, consumer: str, seq: int) -> None:
        """A consumer's client is about to say that it is done with a message."""
        self.removals[stream].acked.setdefault(consumer, set()).add(seq)

    def leave(self, client: int) -> None:
        """A client is gone: what it asked for has happened by now, or never will."""
        for removals in self.removals.values():
            for purge in removals.purges:
                if purge.client == client:
                    purge.until = min(purge.until, self.order)

    # What a server holds

    def judge(self, stream: str, log: Log, now_ns: int, *, calm: bool) -> None:
        """Hold a log against all that is known. `calm`: timers have run, so what is overdue must be gone."""
        self.latest_ns = max(self.latest_ns, now_ns)
        held = dict(self._held(stream, log))
        self._judge_order(stream, held)
        self._judge_batches(stream, held)
        for message in self.by_stream[stream]:
            if message.seq and not message.duplicate:
                self._judge_acknowledged(message, log, held, now_ns, calm=calm)
        surely = self.removals[stream].deleted_surely
        if self.rules[stream].queue:
            surely = surely | self.removals[stream].acked_surely
        for seq in surely & set(held):
            raise Violation(f"C8: {stream} {seq} was removed and is back")

    def _held(self, stream: str, log: Log) -> Iterator[tuple[int, Sent]]:
        seen: dict[bytes, int] = {}
        ids: dict[str, int] = {}
        for seq in log.seqs(None, log.first_seq, log.last_seq).tolist():
            found = log.get(seq)
            if found is None:
                raise Violation(f"C9: {stream} {seq} is listed and cannot be read")
            time_ns, subject, header, payload, _ = found
            if b"Nats-Marker-Reason" in header:
                continue
            ident = ident_of(payload)
            message = self.sent.get(ident)
            if message is None or message.stream != stream or message.subject != bytes(subject):
                raise Violation(
                    f"C2: {stream} {seq} holds {payload[:40]!r} on {subject!r}, which nobody sent"
                )
            if message.refused or message.duplicate:
                raise Violation(f"C13: {ident!r} was refused and is stored at {seq}")
            if ident in seen:
                raise Violation(f"C2: {ident!r} is stored twice, at {seen[ident]} and {seq}")
            seen[ident] = seq
            if message.message_id and abs(time_ns - ids.get(message.message_id, -WINDOW_NS)) < WINDOW_NS:
                raise Violation(f"C6: the id {message.message_id} is stored again as {ident!r} at {seq}")
            ids[message.message_id] = time_ns
            self.give(stream, seq, ident, "stored")
            yield seq, message

    def _judge_order(self, stream: str, held: dict[int, Sent]) -> None:
        """C3: what one client sent, one by one, stands in the order of sending."""
        newest: dict[int, int] = {}
        for seq, message in held.items():
            if message.batch:
                continue
            if message.order < newest.get(message.client, 0):
                raise Violation(f"C3: {stream} {seq}: {message.ident!r} was sent before what precedes it")
            newest[message.client] = message.order

    def _judge_batches(self, stream: str, held: dict[int, Sent]) -> None:
        """C5: of a batch all is there or nothing, side by side; except what was removed later."""
        by_batch: dict[bytes, dict[int, Sent]] = {}
        for seq, message in held.items():
            if message.batch:
                by_batch.setdefault(message.batch, {})[seq] = message
        for batch, members in by_batch.items():
            whole = sorted(
                (m for m in self.by_stream[stream] if m.batch == batch), key=lambda member: member.order
            )
            at = {message.ident: seq for seq, message in members.items()}
            anchor = next(place - at[m.ident] for place, m in enumerate(whole) if m.ident in at)
            for place, member in enumerate(whole):
                seq = place - anchor
                if at.get(member.ident, seq) != seq:
                    raise Violation(f"C5: batch {batch!r} of {stream} is not together")
                if member.ident not in at and not self._may_be_gone(member, seq, held, 0):
                    raise Violation(f"C5: batch {batch!r} of {stream} lacks {member.ident!r}")

    def _judge_acknowledged(
        self, message: Sent, log: Log, held: dict[int, Sent], now_ns: int, *, calm: bool
    ) -> None:
        """C1: what was acknowledged is there, byte for byte; C8: what had to go is gone."""
        seq, there = message.seq, held.get(message.seq)
        if there is message:
            if calm and self._must_be_gone(message, held, now_ns):
                raise Violation(f"C8: {message.ident!r} ({message.stream} {seq}) should be gone by now")
            found = log.get(seq)
            if found is None or found[3] != message.payload:
                raise Violation(f"C1: {message.ident!r} ({message.stream} {seq}) is not what it was")
            return
        if log.last_seq < seq:
            raise Violation(f"C1: {message.stream} ends at {log.last_seq}, {seq} was acknowledged")
        if not self._may_be_gone(message, seq, held, log.last_seq):
            raise Violation(f"C1: {message.ident!r} was acknowledged as {message.stream} {seq} and is lost")

    def _may_be_gone(self, message: Sent, seq: int, held: dict[int, Sent], last_seq: int) -> bool:
        rules, removals = self.rules[message.stream], self.removals[message.stream]
        if rules.moved or seq in removals.deleted or self._done(message, seq):
            return True
        if any(message.order <= purge.until and _purges(purge.pattern, message) for purge in removals.purges):
            return True
        if rules.ttl and message.ttl_ns and self.latest_ns >= message.sent_ns + message.ttl_ns:
            return True
        if rules.messages_max and max(last_seq, max(held, default=0)) - seq >= rules.messages_max:
            return True
        return rules.per_subject and self._replaced(message, seq)

    def _done(self, message: Sent, seq: int) -> bool:
        """Whether everybody for whom the stream kept it may be done with it."""
        rules, acked = self.rules[message.stream], self.removals[message.stream].acked
        if rules.readers is not None:
            needing = (name for name, wanted in rules.readers.items() if message.subject in wanted)
            return all(seq in acked.get(name, ()) for name in needing)
        return rules.queue and any(seq in seqs for seqs in acked.values())

    def _replaced(self, message: Sent, seq: int) -> bool:
        return any(
            stream == message.stream and later > seq and self.sent[ident].subject == message.subject
            for (stream, later), ident in self.given.items()
        )

    def _must_be_gone(self, message: Sent, held: dict[int, Sent], now_ns: int) -> bool:
        rules = self.rules[message.stream]
        if rules.ttl and message.ttl_ns and now_ns > message.told_ns + message.ttl_ns + LATE_NS:
            return True
        if rules.readers is not None:
            return True  # everybody is done by then
        newer = (s for s, other in held.items() if other.subject == message.subject and s > message.seq)
        return rules.per_subject and any(newer)


def _purges(pattern: bytes, message: Sent) -> bool:
    return not pattern or subjects.matches(pattern, message.subject)


def ident_of(payload: bytes) -> bytes:
    """The beginning of a payload by which its message is known."""
    return bytes(payload[: payload.rfind(b"#") + 1])
