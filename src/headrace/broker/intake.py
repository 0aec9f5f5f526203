"""What a stream stores of the messages it copies: a mirror the same message, a source one of its own.

A mirror keeps sequence and time; what it did not get counts as deleted. A source gives new ones, says in the last header
where the message came from, and remembers its position in the same frame. Neither asks whether a publisher would have
been allowed the headers, and neither acts on those its stream has not enabled. Knows nothing of consumers and gaps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.api import errors, times
from headrace.api.times import TTL_INVALID, TTL_NEVER, parse_ttl
from headrace.broker import admission
from headrace.broker.batches import batch_id
from headrace.broker.counters import Totals
from headrace.broker.held import Held, Message
from headrace.broker.mappings import Change, first_of
from headrace.broker.origin import Origin, Start
from headrace.broker.positions import Positions, told_by_copies
from headrace.errors import RequestError, StoreError
from headrace.probes import probe

if TYPE_CHECKING:
    from headrace.broker.stream import Stream

_SOURCE = b"Nats-Stream-Source"
_BARE = b"NATS/1.0\r\n\r\n"
_NONE: Mapping[bytes, bytes] = {}
_COMMIT = b"Nats-Batch-Commit"
#: Members of a batch are kept back as far as this; a larger one becomes visible in parts.
_HELD_BYTES_MAX = 64 * 1024 * 1024
#: And as long as this after the last one came.
_HELD_NS_MAX = 10 * times.SECOND


def cleaned(header: bytes, *, source: bool) -> bytes:
    """A header block without what was meant for the origin only; b"" when nothing is left of it."""
    drop: list[bytes] = [b"Nats-Expected-", b"Nats-Batch-"]
    if source:
        drop.append(_SOURCE + b":")
    if not any(each in header for each in drop):
        return header
    lines = [line for line in header.split(b"\r\n") if not line.startswith(tuple(drop))]
    block = b"\r\n".join(lines)
    return b"" if block == _BARE else block


class _Intake:
    """What both have in common."""

    __slots__ = ("_rename", "_stream", "origin")

    def __init__(self, stream: Stream, origin: Origin) -> None:
        self._stream = stream
        self.origin = origin
        self._rename: Change | None = first_of(origin.entry.subject_transforms)

    def _renamed(self, subject: bytes) -> bytes:
        if self._rename is not None:
            subject = self._rename(subject) or subject
        return self._stream.renamed(subject)

    def _ttl(self, found: Mapping[bytes, bytes]) -> int:
        """Seconds to live; what cannot be read is no limit, and never is only so where TTLs are enabled."""
        value = found.get(admission.TTL)
        if not value:
            return 0
        kind, seconds = parse_ttl(value)
        if kind == TTL_INVALID:
            return 0
        if kind == TTL_NEVER:
            return admission.NEVER if self._stream.config.allow_msg_ttl else 0
        return min(seconds, admission.TTL_SECONDS_MAX)

    def _rollup(self, found: Mapping[bytes, bytes]) -> bytes:
        config = self._stream.config
        value = found.get(admission.ROLLUP, b"").lower()
        return (
            value if value in (b"sub", b"all") and config.allow_rollup_hdrs and not config.deny_purge else b""
        )

    def _check_room(self, subject: bytes, header: bytes, payload: bytes, rollup: bytes) -> None:
        """Refuse for now what a full stream that keeps its oldest has no place for."""
        if self._stream.config.storage in self._stream.jetstream.room.full:
            raise errors.error(10023)
        if self._stream.config.discard == "new":
            admission.check_room(self._stream, subject, header, payload, rollup)

    def _configured_start(self) -> Start:
        entry = self.origin.entry
        if entry.opt_start_seq:
            return Start(entry.opt_start_seq)
        return Start(0, times.nanos(entry.opt_start_time) if entry.opt_start_time else 0)


class MirrorIntake(_Intake):
    """Keeps a stream the same as its origin. `seq` is the newest sequence that is settled here."""

    __slots__ = ()

    @property
    def seq(self) -> int:
        return self._stream.log.last_seq

    @property
    def received(self) -> int:
        return self._stream.log.last_seq

    @property
    def stored(self) -> int:
        """The newest sequence that the frame under construction makes durable."""
        return self._stream.log.last_seq

    @property
    def identity(self) -> str:
        return ""

    def start(self) -> Start:
        """Where the origin has to begin."""
        last = self._stream.log.last_seq
        return Start(last + 1) if last else self._configured_start()

    def reached(self, seq: int, identity: str) -> None:
        """The origin will not deliver anything up to `seq`."""
        if seq > self._stream.log.last_seq:
            self._stream.log.advance(seq)
            self._stream.changed()

    def forget(self) -> None:
        """Another stream has taken the origin's name; a mirror follows its sequences all the same."""

    def take(self, seq: int, time_ns: int, subject: bytes, header: bytes, payload: bytes) -> None:
        """Store the next message."""
        stream = self._stream
        if not header and self._rename is None and stream.lane.open and seq == stream.log.last_seq + 1:
            self._take_plain(stream, seq, time_ns, subject, payload)
            return
        found = _NONE
        if header:
            header = cleaned(header, source=False)
            found = admission.nats_headers(header)
        subject = self._renamed(subject)
        rollup, ttl_s = (self._rollup(found), self._ttl(found)) if found else (b"", 0)
        self._check_room(subject, header, payload, rollup)
        if seq > stream.log.last_seq + 1:
            stream.log.advance(seq - 1)
        if not stream.retention.wanted(subject):
            stream.log.advance(seq)
            stream.heed(subject, rollup, found)
        else:
            stream.keep(subject, header, payload, time_ns, ttl_s, found.get(admission.MSG_ID, b""), rollup)
        stream.changed()

    @staticmethod
    def _take_plain(stream: Stream, seq: int, time_ns: int, subject: bytes, payload: bytes) -> None:
        """The next one in line, with nothing to look at, on a stream that takes such messages as they come."""
        lane = stream.lane
        stream.log.append(subject, b"", payload, time_ns)
        lane.last_message_id = b""
        if lane.follow is not None:
            lane.follow(subject, seq, time_ns, 0)
        stream.changed()

    def give_up(self, *, idle: bool) -> None:
        """Nothing is ever kept back."""

    def rewind(self) -> None:
        """Nothing is ever kept back."""

    def adopt(self, other: Intake) -> None:
        """Nothing is ever kept back."""

    def end(self) -> None:
        """Nothing is ever kept back."""


class SourceIntake(_Intake):
    """Adds what one origin has to a stream of its own. `seq` is the newest origin sequence that is settled here.

    Members of an atomic batch are kept back until it is complete, if the stream does batches itself, and then stored
    within one frame (batch.md, 6); `received` counts them already, `seq` does not. They are durable meanwhile.
    """

    __slots__ = (
        "_head",
        "_positions",
        "_stamp",
        "_tail",
        "_unfiltered",
        "batch",
        "held",
        "identity",
        "received",
        "seq",
    )

    def __init__(self, stream: Stream, origin: Origin, positions: Positions) -> None:
        super().__init__(stream, origin)
        self._positions = positions
        known = positions.get(origin.index)
        if not positions.knows(origin.index):
            known = told_by_copies(stream.log, origin.index)
        self.held = Held(stream, origin.index)
        self.seq = known.seq
        self.received = max(known.seq, self.held.durable_seq)
        self._know(known.identity)
        self._unfiltered = not origin.filters()
        if self.held:
            probe("a sourced batch waited through a restart")
        self.batch = self._name(self.held.messages[0]) if self.held else b""

    def _know(self, identity: str) -> None:
        self.identity = identity
        place, filters, dests = (part.encode() for part in self.origin.index.split(" "))
        self._head = b"Nats-Stream-Source: %s " % place
        self._stamp = b" %s %s " % (filters, dests)
        self._tail = b" %s\r\n\r\n" % identity.encode() if identity else b"\r\n\r\n"

    @property
    def stored(self) -> int:
        return max(self.seq, self.held.durable_seq)

    def start(self) -> Start:
        if self.stored:
            return Start(self.stored + 1)
        start, log = self._configured_start(), self._stream.log
        if start.seq:
            return start
        if start.time_ns:
            return Start(0, max(start.time_ns, log.last_time_ns))
        return Start(0, log.last_time_ns if log.first_seq > 1 else 0)

    def reached(self, seq: int, identity: str) -> None:
        if seq > self.received or identity != self.identity:
            if seq > self.received:
                self._release()  # what is missing of a batch will not come
                self.seq = self.received = seq
            self._know(identity)
            self._settled()

    def forget(self) -> None:
        """Another stream has taken the origin's name: begin anew with it."""
        self._release()
        self.seq = self.received = 0
        self._know("")
        self._settled()

    def take(self, seq: int, time_ns: int, subject: bytes, header: bytes, payload: bytes) -> None:
        try:
            if self.held or (b"Nats-Batch-" in header and self._keeps_batches()):
                self._member((seq, subject, header, payload))
            else:
                self._store(seq, subject, header, payload)
        except (RequestError, StoreError):
            self.rewind()
            raise
        self.received = seq

    # Batches

    def _keeps_batches(self) -> bool:
        return self._unfiltered and self._stream.config.allow_atomic

    def _member(self, message: Message) -> None:
        """A message while a batch is open, or the first of one."""
        found = admission.nats_headers(message[2])
        name = batch_id(found)
        if self.held and (name != self.batch or self.held.bytes > _HELD_BYTES_MAX):
            self._release()
        if not name:
            self._store(*message)
            return
        self.batch = name
        self.held.add(message, self._stream.jetstream.timers.now_ns())
        if found.get(_COMMIT):
            self._release()

    @staticmethod
    def _name(message: Message) -> bytes:
        return batch_id(admission.nats_headers(message[2]))

    def _release(self) -> None:
        """Store what was kept back, whether it is a whole batch or not; what does not fit is kept back on."""
        held = self.held
        if not held:
            return
        self._stream.reserve(held.bytes, len(held.messages))
        done = 0
        try:
            for message in held.messages:
                self._store(*message)
                done += 1
        finally:
            held.drop_first(done)

    def give_up(self, *, idle: bool) -> None:
        """The origin has nothing more to send (`idle`), or is silent for long: what is missing will not come."""
        if not self.held:
            return
        if idle or self._stream.jetstream.timers.now_ns() - self.held.newest_ns > _HELD_NS_MAX:
            probe("a sourced batch is never finished")
            self._release()
            self.received = self.seq

    def rewind(self) -> None:
        """Forget what a crash would; the origin will deliver it again."""
        self.held.rewind()
        self.received = self.stored

    def adopt(self, other: Intake) -> None:
        """Go on with what was kept back by the one before this."""
        if isinstance(other, SourceIntake) and other.held:
            self.held.adopt(other.held)
            self.batch = other.batch
            self.received = self.stored

    def end(self) -> None:
        """The source goes: the origin was told that these are stored, so they are."""
        self._release()

    # Storing

    def _store(self, seq: int, subject: bytes, header: bytes, payload: bytes) -> None:
        if not header:
            header = b"NATS/1.0\r\n%s%d%s%s%s" % (self._head, seq, self._stamp, subject, self._tail)
            self._keep(subject, header, payload, _NONE)
        else:
            block = cleaned(header, source=True) or _BARE
            found = admission.nats_headers(block)
            header = b"%s%s%d%s%s%s" % (block[:-2], self._head, seq, self._stamp, subject, self._tail)
            self._keep(subject, header, payload, found)
        self.seq = seq
        self._settled()

    def _settled(self) -> None:
        self._positions.set(self.origin.index, self.seq, self.identity)
        self._stream.changed()

    def _keep(self, subject: bytes, header: bytes, payload: bytes, found: Mapping[bytes, bytes]) -> None:
        stream = self._stream
        if stream.config.sealed:
            raise errors.error(10109)
        original, subject = subject, self._renamed(subject)
        now_ns = stream.jetstream.now_ns()
        stream.retention.expire(now_ns)
        message_id = found.get(admission.MSG_ID, b"")
        if message_id and stream.duplicates is not None and stream.duplicates.find(message_id, now_ns):
            return
        if stream.config.allow_msg_counter:
            place = self.origin.index.partition(" ")[0]
            shown = original.decode("utf-8", "replace")
            header, payload = Totals(stream).follow(subject, header, payload, found, place, shown)
        rollup, ttl_s = (self._rollup(found), self._ttl(found)) if found else (b"", 0)
        if ttl_s:
            header, ttl_s = admission.raise_ttl(stream, header, ttl_s)
        if not stream.retention.wanted(subject):
            stream.pass_over(subject, message_id, now_ns, rollup, found)
            return
        self._check_room(subject, header, payload, rollup)
        stream.keep(subject, header, payload, now_ns, ttl_s, message_id, rollup)


Intake = MirrorIntake | SourceIntake
