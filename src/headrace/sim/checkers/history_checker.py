"""Records what clients did and which replies they got, and checks what a server may therefore contain.

Owns the promises C1 to C9 and C13 (docs/explanation/testing.md): it knows every message that was sent, every reply, and
every removal that was requested. A server's log is compared with that after a recovery and at rest. It keeps no copy of
the server's rules beyond those it checks, and must not know disks, frames or sockets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from headrace.protocol import subjects
from headrace.sim.checkers.store_invariants import Violation
from headrace.storage import StreamLog

SECOND_NS = 1_000_000_000
#: How long after its deadline a message may still exist.
EXPIRY_SLACK_NS = SECOND_NS // 4
#: Duplicate window in simulations.
DEDUP_WINDOW_NS = 120 * SECOND_NS
_FOREVER = 1 << 63


@dataclass(slots=True, eq=False)
class SentMessage:
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
    seq: int = 0  # from the server's reply
    acked_ns: int = _FOREVER
    refused: bool = False
    duplicate: bool = False
    padding_bytes: int = 0

    @property
    def payload(self) -> bytes:
        return self.ident + b"x" * self.padding_bytes


@dataclass(slots=True)
class PurgeRecord:
    """A purge removes what was sent before it, and perhaps what was sent before its reply arrived."""

    pattern: bytes
    client: int
    expected_seqs: set[int]  # certainly gone once there is a reply
    until_order: int = _FOREVER


@dataclass(slots=True)
class Removals:
    """Requested removals of a stream, whether or not there was a reply."""

    requested_deletes: set[int] = field(default_factory=set)
    confirmed_deletes: set[int] = field(default_factory=set)
    purges: list[PurgeRecord] = field(default_factory=list)
    requested_acks: dict[str, set[int]] = field(default_factory=dict)  # by consumer
    confirmed_acks: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class StreamRules:
    """What a stream may remove by itself."""

    per_subject: bool = False
    messages_max: int = 0
    is_workqueue: bool = False
    ttl: bool = False
    is_sourced_away: bool = False  # another stream sources it; its content is checked there
    interested_consumers: Mapping[str, tuple[bytes, ...]] | None = (
        None  # interest retention: it keeps what one of these consumers still needs
    )


class HistoryChecker:
    """The history of all streams."""

    def __init__(self, rules: dict[str, StreamRules]) -> None:
        self.rules = rules
        self.sent: dict[bytes, SentMessage] = {}
        self.by_stream: dict[str, list[SentMessage]] = {name: [] for name in rules}
        self.removals = {name: Removals() for name in rules}
        self.seq_owners: dict[tuple[str, int], bytes] = {}  # the message ever seen with a sequence
        self.last_order = 0
        self.latest_ns = 0  # the latest time of the clock, which may have been set back since

    # Client events

    def record_send(self, stream: str, subject: bytes, client: int, now_ns: int) -> SentMessage:
        """Record a message that is about to be sent; its payload must begin with its ident."""
        self.last_order += 1
        record = SentMessage(
            b"%s#%d#" % (stream.encode(), self.last_order), stream, subject, client, self.last_order, now_ns
        )
        self.sent[record.ident] = record
        self.by_stream[stream].append(record)
        return record

    def record_ack(self, message: SentMessage, seq: int, now_ns: int, *, duplicate: bool = False) -> None:
        """Record the acknowledgement of a publish."""
        self.latest_ns = max(self.latest_ns, now_ns)
        message.seq, message.acked_ns, message.duplicate = seq, self.latest_ns, duplicate
        if not duplicate:
            self.record_seq_owner(message.stream, seq, message.ident, "acknowledged")
            return
        duplicates = [m for m in self.by_stream[message.stream] if m.message_id == message.message_id]
        if not any(other is not message and other.seq in (0, seq) for other in duplicates):
            raise Violation(f"C6: {message.ident!r} was acknowledged as a duplicate of {seq}, but is not")

    def record_seq_owner(self, stream: str, seq: int, ident: bytes, observed_as: str) -> None:
        """Record that a sequence was seen to belong to a message."""
        owner = self.seq_owners.setdefault((stream, seq), ident)
        if owner != ident:
            raise Violation(f"C4: {stream} {seq} was {owner!r} and is now {ident!r} ({observed_as})")

    def record_purge(self, stream: str, pattern: bytes, client: int) -> PurgeRecord:
        """Record a purge that is about to be sent."""
        known = (m for m in self.by_stream[stream] if m.seq and not m.duplicate)
        record = PurgeRecord(pattern, client, {m.seq for m in known if _is_purged(pattern, m)})
        self.removals[stream].purges.append(record)
        return record

    def record_consumer_ack(self, stream: str, consumer: str, seq: int) -> None:
        """Record that a consumer's client is about to acknowledge a message."""
        self.removals[stream].requested_acks.setdefault(consumer, set()).add(seq)

    def on_disconnect(self, client: int) -> None:
        """Record that a client is gone: what it requested has happened by now, or never will."""
        for removals in self.removals.values():
            for purge in removals.purges:
                if purge.client == client:
                    purge.until_order = min(purge.until_order, self.last_order)

    # Server state

    def check(self, stream: str, log: StreamLog, now_ns: int, *, quiescent: bool) -> None:
        """Check a log against the history. `quiescent`: timers have run, so overdue messages must be gone."""
        self.latest_ns = max(self.latest_ns, now_ns)
        stored = dict(self._iter_stored(stream, log))
        self._check_order(stream, stored)
        self._check_batches(stream, stored)
        for message in self.by_stream[stream]:
            if message.seq and not message.duplicate:
                self._check_acknowledged(message, log, stored, now_ns, quiescent=quiescent)
        confirmed = self.removals[stream].confirmed_deletes
        if self.rules[stream].is_workqueue:
            confirmed = confirmed | self.removals[stream].confirmed_acks
        for seq in confirmed & set(stored):
            raise Violation(f"C8: {stream} {seq} was removed, but exists again")

    def _iter_stored(self, stream: str, log: StreamLog) -> Iterator[tuple[int, SentMessage]]:
        seen: dict[bytes, int] = {}
        ids: dict[str, int] = {}
        for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist():
            found = log.get(seq)
            if found is None:
                raise Violation(f"C9: {stream} {seq} is listed, but cannot be read")
            time_ns, subject, header, payload, _ = found
            if b"Nats-Marker-Reason" in header:
                continue
            ident = parse_ident(payload)
            message = self.sent.get(ident)
            if message is None or message.stream != stream or message.subject != bytes(subject):
                raise Violation(
                    f"C2: {stream} {seq} is {payload[:40]!r} on {subject!r}, which was never sent"
                )
            if message.refused or message.duplicate:
                raise Violation(f"C13: {ident!r} was rejected, but is stored at {seq}")
            if ident in seen:
                raise Violation(f"C2: {ident!r} is stored twice, at {seen[ident]} and {seq}")
            seen[ident] = seq
            if (
                message.message_id
                and abs(time_ns - ids.get(message.message_id, -DEDUP_WINDOW_NS)) < DEDUP_WINDOW_NS
            ):
                raise Violation(f"C6: the id {message.message_id} is stored again as {ident!r} at {seq}")
            ids[message.message_id] = time_ns
            self.record_seq_owner(stream, seq, ident, "stored")
            yield seq, message

    def _check_order(self, stream: str, stored: dict[int, SentMessage]) -> None:
        """C3: messages of one client are stored in the order of sending."""
        newest: dict[int, int] = {}
        for seq, message in stored.items():
            if message.batch:
                continue
            if message.order < newest.get(message.client, 0):
                raise Violation(f"C3: {stream} {seq}: {message.ident!r} was sent before its predecessor")
            newest[message.client] = message.order

    def _check_batches(self, stream: str, stored: dict[int, SentMessage]) -> None:
        """C5: a batch is stored completely or not at all, contiguously; except what was removed later."""
        by_batch: dict[bytes, dict[int, SentMessage]] = {}
        for seq, message in stored.items():
            if message.batch:
                by_batch.setdefault(message.batch, {})[seq] = message
        for batch, members in by_batch.items():
            all_members = sorted(
                (m for m in self.by_stream[stream] if m.batch == batch), key=lambda member: member.order
            )
            at = {message.ident: seq for seq, message in members.items()}
            first_offset = next(index - at[m.ident] for index, m in enumerate(all_members) if m.ident in at)
            for index, member in enumerate(all_members):
                seq = index - first_offset
                if at.get(member.ident, seq) != seq:
                    raise Violation(f"C5: batch {batch!r} of {stream} is not contiguous")
                if member.ident not in at and not self._may_be_removed(member, seq, stored, 0):
                    raise Violation(f"C5: batch {batch!r} of {stream} does not contain {member.ident!r}")

    def _check_acknowledged(
        self,
        message: SentMessage,
        log: StreamLog,
        stored: dict[int, SentMessage],
        now_ns: int,
        *,
        quiescent: bool,
    ) -> None:
        """C1: acknowledged messages are stored, byte for byte; C8: messages that must be gone are gone."""
        seq, there = message.seq, stored.get(message.seq)
        if there is message:
            if quiescent and self._must_be_removed(message, stored, now_ns):
                raise Violation(
                    f"C8: {message.ident!r} ({message.stream} {seq}) should have been removed by now"
                )
            found = log.get(seq)
            if found is None or found[3] != message.payload:
                raise Violation(f"C1: {message.ident!r} ({message.stream} {seq}) has changed")
            return
        if log.last_seq < seq:
            raise Violation(f"C1: {message.stream} ends at {log.last_seq}, but {seq} was acknowledged")
        if not self._may_be_removed(message, seq, stored, log.last_seq):
            raise Violation(f"C1: {message.ident!r} was acknowledged as {message.stream} {seq}, but is lost")

    def _may_be_removed(
        self, message: SentMessage, seq: int, stored: dict[int, SentMessage], last_seq: int
    ) -> bool:
        rules, removals = self.rules[message.stream], self.removals[message.stream]
        if rules.is_sourced_away or seq in removals.requested_deletes or self._may_be_acked(message, seq):
            return True
        if any(
            message.order <= purge.until_order and _is_purged(purge.pattern, message)
            for purge in removals.purges
        ):
            return True
        if rules.ttl and message.ttl_ns and self.latest_ns >= message.sent_ns + message.ttl_ns:
            return True
        if rules.messages_max and max(last_seq, max(stored, default=0)) - seq >= rules.messages_max:
            return True
        return rules.per_subject and self._is_replaced(message, seq)

    def _may_be_acked(self, message: SentMessage, seq: int) -> bool:
        """Return whether all consumers for which the stream kept the message may have acknowledged it."""
        rules, acked = self.rules[message.stream], self.removals[message.stream].requested_acks
        if rules.interested_consumers is not None:
            consumers = (
                name for name, filters in rules.interested_consumers.items() if message.subject in filters
            )
            return all(seq in acked.get(name, ()) for name in consumers)
        return rules.is_workqueue and any(seq in seqs for seqs in acked.values())

    def _is_replaced(self, message: SentMessage, seq: int) -> bool:
        return any(
            stream == message.stream and later > seq and self.sent[ident].subject == message.subject
            for (stream, later), ident in self.seq_owners.items()
        )

    def _must_be_removed(self, message: SentMessage, stored: dict[int, SentMessage], now_ns: int) -> bool:
        rules = self.rules[message.stream]
        if rules.ttl and message.ttl_ns and now_ns > message.acked_ns + message.ttl_ns + EXPIRY_SLACK_NS:
            return True
        if rules.interested_consumers is not None:
            return True  # all consumers are done by then
        newer = (s for s, other in stored.items() if other.subject == message.subject and s > message.seq)
        return rules.per_subject and any(newer)


def _is_purged(pattern: bytes, message: SentMessage) -> bool:
    return not pattern or subjects.matches(pattern, message.subject)


def parse_ident(payload: bytes) -> bytes:
    """Return the beginning of a payload that identifies its message."""
    return bytes(payload[: payload.rfind(b"#") + 1])
