"""Message schedules: a stored message that says when, and to which subject, a copy of it is to be published.

A schedule is the newest message of its subject, so that a new one replaces it and a plain message ends it. When it
fires, the copy and what becomes of the schedule - it is purged, or has its next time - are in one frame: after a crash
it has fired or it has not. The next time of each is a fact; one whose time passed while the server was down fires once.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Mapping
from datetime import tzinfo
from typing import TYPE_CHECKING

from headrace.api import errors
from headrace.api.schedules import BadPattern, BadZone, Moment, upcoming, zone_of
from headrace.api.times import TTL_INVALID, TTL_ZERO, parse_ttl
from headrace.broker import admission
from headrace.broker.admission import ROLLUP, TTL
from headrace.errors import Corrupt, RequestError, StoreError
from headrace.protocol import headers, subjects

if TYPE_CHECKING:
    from headrace.broker.stream import Stream
    from headrace.broker.timers import Handle
    from headrace.store import Facts

KEY = b"schedule/"
#: Every header of a schedule begins like this; so does the name of the scheduler.
SCHEDULE = b"Nats-Schedule"
ZONE = b"Nats-Schedule-Time-Zone"
TARGET = b"Nats-Schedule-Target"
SOURCE = b"Nats-Schedule-Source"
TARGET_TTL = b"Nats-Schedule-TTL"
TARGET_ROLLUP = b"Nats-Schedule-Rollup"
NEXT = b"Nats-Schedule-Next"
SCHEDULER = b"Nats-Scheduler"
PURGE = b"purge"

_ENTRY = struct.Struct("<Qq")
#: So many fire in one turn, then others get theirs.
_SLICE = 256
_AGAIN_NS = 1_000_000_000
#: What the copy must not bring along: it would be refused, or be a schedule itself.
_DROPPED = (b"Nats-Schedule", b"Nats-Expected-", b"Nats-Msg-Id:", b"Nats-TTL:", b"Nats-Rollup:")

Found = Mapping[bytes, bytes]


# What a publisher may ask for


def check(stream: Stream, subject: bytes, header: bytes, found: Found) -> tuple[bytes, Found]:
    """The headers of a message that names a schedule, as they are to be stored; raises what is wrong with them."""
    allowed = stream.config.allow_msg_schedules
    try:
        moment = read(found, stream.jetstream.clock_ns())
    except RequestError:
        if not allowed:
            raise errors.error(10188) from None
        raise
    if moment is not None:
        if not allowed:
            raise errors.error(10188)
        _check_copy(stream, found)
        _check_places(stream, subject, found)
        rollup = found.get(ROLLUP, b"").lower()
        if rollup not in (b"", b"sub"):
            raise errors.error(10192)
        if not rollup:
            header = headers.append(header, [(ROLLUP, b"sub")])
            found = {**found, ROLLUP: b"sub"}
    _check_scheduler(stream, subject, found)
    return header, found


def read(found: Found, after_ns: int, now_ns: int = 0) -> Moment | None:
    """When the schedule in a header fires next; None if there is none."""
    zone: tzinfo | None = None
    try:
        if (name := found.get(ZONE)) is not None:
            zone = zone_of(name.decode())
        pattern = found.get(SCHEDULE)
        return upcoming(pattern.decode(), zone, after_ns, now_ns or after_ns) if pattern else None
    except BadZone:
        raise errors.error(10223) from None
    except (BadPattern, UnicodeDecodeError, OverflowError):
        raise errors.error(10189) from None


def _check_copy(stream: Stream, found: Found) -> None:
    ttl = found.get(TARGET_TTL)
    if ttl and parse_ttl(ttl)[0] in (TTL_INVALID, TTL_ZERO):
        raise errors.error(10191)
    if found.get(TARGET_ROLLUP, b"") not in (b"", b"sub"):
        raise errors.error(10192)
    if ttl and not stream.config.allow_msg_ttl:
        raise errors.error(10166)


def _check_places(stream: Stream, subject: bytes, found: Found) -> None:
    """Target and source are other subjects of the same stream."""
    target, source = found.get(TARGET, b""), found.get(SOURCE, b"")
    if target == subject or not subjects.publishable(target):
        raise errors.error(10190)
    if source and (source in (target, subject) or not subjects.publishable(source)):
        raise errors.error(10203)
    own = stream.subjects()
    if not any(subjects.matches(pattern, target) for pattern in own):
        raise errors.error(10190)
    if source and not any(subjects.matches(pattern, source) for pattern in own):
        raise errors.error(10203)


def _check_scheduler(stream: Stream, subject: bytes, found: Found) -> None:
    """A client may end a schedule, and nothing else, in the scheduler's name."""
    following, scheduler = found.get(NEXT), found.get(SCHEDULER)
    if not following:
        if scheduler:
            raise errors.error(10212)
        return
    if following != PURGE or not scheduler or scheduler == subject or not subjects.publishable(scheduler):
        raise errors.error(10212)
    if not stream.config.allow_msg_schedules:
        raise errors.error(10188)
    last = stream.log.last_of(scheduler)
    message = stream.log.get(last) if last else None
    if message is not None and not headers.get(message[2], SCHEDULE):
        raise errors.error(10212)


# What becomes of it


class Schedules:
    """The schedules of one stream, by subject."""

    __slots__ = ("_alarm", "_alarm_ns", "_entries", "_facts", "_heap", "_key", "_stream")

    def __init__(self, stream: Stream, facts: Facts | None, key: bytes) -> None:
        """`facts` is None for a stream in memory, whose schedules need not survive."""
        self._stream = stream
        self._facts = facts
        self._key = key
        self._entries: dict[bytes, tuple[int, int]] = {}  # subject -> sequence, time
        self._heap: list[tuple[int, int, bytes]] = []
        self._alarm: Handle | None = None
        self._alarm_ns = 0
        if facts is not None:
            for name, value in facts.items(key):
                seq, time_ns = _ENTRY.unpack(value)
                self._note(name[len(key) :], seq, time_ns)

    def __len__(self) -> int:
        return len(self._entries)

    def stored(self, subject: bytes, header: bytes, seq: int, time_ns: int) -> None:
        """A message was stored: it may be a schedule, replace or end the one of its subject, or purge another."""
        found = self.learn(subject, header, seq, time_ns)
        if found.get(NEXT) == PURGE:
            self._stream.retention.purge(found[SCHEDULER], 0, 0)

    def learn(self, subject: bytes, header: bytes, seq: int, time_ns: int) -> Found:
        """What a stored message means for the schedule of its subject; its headers."""
        found: Found = admission.nats_headers(header) if SCHEDULE in header else {}
        moment = self._read(found, time_ns)
        if moment is not None:
            self._set(subject, seq, moment.time_ns)
        elif not found.get(SCHEDULER):
            self._drop(subject)
        return found

    def start(self) -> None:
        """Let what is due happen from now on."""
        self._set_alarm()

    def stop(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def forget(self) -> None:
        """The stream goes."""
        self.stop()
        for subject in list(self._entries):
            self._drop(subject)

    # Times

    def _read(self, found: Found, after_ns: int) -> Moment | None:
        try:
            return read(found, after_ns, self._stream.jetstream.clock_ns())
        except RequestError:
            return None

    def _set(self, subject: bytes, seq: int, time_ns: int) -> None:
        if self._facts is not None:
            self._facts.put(self._key + subject, _ENTRY.pack(seq, time_ns))
        self._note(subject, seq, time_ns)
        self._set_alarm()

    def _note(self, subject: bytes, seq: int, time_ns: int) -> None:
        self._entries[subject] = seq, time_ns
        heapq.heappush(self._heap, (time_ns, seq, subject))
        if len(self._heap) > 64 + 2 * len(self._entries):  # mostly replaced ones
            self._heap = [(at, number, name) for name, (number, at) in self._entries.items()]
            heapq.heapify(self._heap)

    def _drop(self, subject: bytes) -> None:
        if self._entries.pop(subject, None) is not None and self._facts is not None:
            self._facts.delete(self._key + subject)

    def _set_alarm(self) -> None:
        if not self._heap or self._stream.config.sealed:
            return
        time_ns = self._heap[0][0]
        if self._alarm is not None:
            if self._alarm_ns <= time_ns:
                return
            self._alarm.cancel()
        self._alarm_ns = time_ns
        self._alarm = self._stream.jetstream.timers.at(time_ns, self._ring)

    # Firing

    def _ring(self) -> None:
        self._alarm = None
        stream = self._stream
        if stream.closed or stream.config.sealed:
            return
        try:
            self._fire_due(stream.jetstream.clock_ns())
        except StoreError:  # nothing can be stored now
            self._alarm_ns = stream.jetstream.clock_ns() + _AGAIN_NS
            self._alarm = stream.jetstream.timers.at(self._alarm_ns, self._ring)
            return
        stream.changed()
        self._set_alarm()

    def _fire_due(self, now_ns: int) -> None:
        for _ in range(_SLICE):
            if not self._heap or self._heap[0][0] > now_ns:
                return
            due = time_ns, seq, subject = heapq.heappop(self._heap)
            if self._entries.get(subject) != (seq, time_ns):
                continue  # replaced meanwhile
            try:
                self._fire(subject, seq, time_ns)
            except RequestError:  # restored from a backup, or copied: what it asks for was never checked here
                self._drop(subject)
            except StoreError:
                heapq.heappush(self._heap, due)
                raise

    def _fire(self, subject: bytes, seq: int, time_ns: int) -> None:
        """Publish the copy, and see to the schedule, in one frame."""
        stream = self._stream
        message = self._load(seq)
        found = admission.nats_headers(message[2]) if message else {}
        moment = self._read(found, time_ns)
        if message is None or moment is None or not subjects.publishable(found.get(TARGET, b"")):
            self._drop(subject)
            return
        content = self._source(found) or message
        header = _copy_header(content[2], subject, found, moment)
        target = stream.renamed(found[TARGET])
        stream.reserve(len(target) + len(header) + len(content[3]), 2)
        if moment.repeats:
            self._put_off(subject, seq, moment.time_ns)
        self._publish(target, header, content[3])

    def _load(self, seq: int) -> tuple[int, bytes, bytes, bytes, int] | None:
        try:
            return self._stream.log.get(seq)
        except Corrupt:  # the store reports it; there is nothing to publish
            return None

    def _source(self, found: Found) -> tuple[int, bytes, bytes, bytes, int] | None:
        """The newest message of the subject whose content is to be published, if there is one."""
        seq = self._stream.log.last_of(found[SOURCE]) if found.get(SOURCE) else 0
        return self._load(seq) if seq else None

    def _put_off(self, subject: bytes, seq: int, time_ns: int) -> None:
        if self._facts is not None:
            self._facts.put(self._key + subject, _ENTRY.pack(seq, time_ns))
        self._entries[subject] = seq, time_ns
        heapq.heappush(self._heap, (time_ns, seq, subject))

    def _publish(self, target: bytes, header: bytes, payload: bytes) -> None:
        stream = self._stream
        found = admission.nats_headers(header)
        now_ns = stream.jetstream.now_ns()
        ttl_s = admission.read_ttl(stream, found) if TTL in found else 0
        header, ttl_s = admission.raise_ttl(stream, header, ttl_s)
        rollup = found.get(ROLLUP, b"")
        if stream.retention.wanted(target):
            stream.keep(target, header, payload, now_ns, ttl_s, rollup=rollup)
        else:
            stream.pass_over(target, b"", now_ns, rollup, found)


def _copy_header(block: bytes, scheduler: bytes, found: Found, moment: Moment) -> bytes:
    """The user's headers, and where the message comes from."""
    kept = [line for line in block.split(headers.CRLF) if not line.startswith(_DROPPED)]
    following = moment.text.encode() if moment.repeats else PURGE
    added = [(SCHEDULER, scheduler), (NEXT, following)]
    if ttl := found.get(TARGET_TTL):
        added.append((TTL, ttl))
    if rollup := found.get(TARGET_ROLLUP):
        added.append((ROLLUP, rollup))
    return headers.append(headers.CRLF.join(kept) if block else b"", added)
