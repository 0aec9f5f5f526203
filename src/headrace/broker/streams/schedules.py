"""Message schedules: a stored message that says when, and to which subject, a copy of it is published.

A schedule is the newest message of its subject, so that a new schedule replaces it and a plain message ends it. When it
fires, the copy and the change to the schedule - it is purged, or gets its next time - are in one frame: after a crash it
has fired or it has not. The next time of each schedule is stored as metadata; one whose time passed while the server was
down fires once. See ADR 41.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator, Mapping
from datetime import tzinfo
from typing import TYPE_CHECKING

from headrace.broker.streams import publish_checks
from headrace.broker.streams.publish_checks import ROLLUP, TTL
from headrace.errors import CorruptData, RequestError, StoreError
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.schedules import BadPattern, BadZone, FireTime, find_next_fire, get_zone
from headrace.jetstream_api.times import TTL_INVALID, TTL_ZERO, parse_ttl
from headrace.protocol import headers, subjects

if TYPE_CHECKING:
    from headrace.broker.streams.stream_context import StreamContext
    from headrace.broker.timers import TimerHandle
    from headrace.storage import MetadataStore

KEY = b"schedule/"
#: The prefix of every header of a schedule, including `Nats-Scheduler`.
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
#: The maximum that fire in one turn, so that other work gets its turn.
_FIRE_MAX = 256
_RETRY_NS = 1_000_000_000
#: Headers that the copy must not have: it would be rejected, or be a schedule itself.
_STRIPPED_HEADERS = (b"Nats-Schedule", b"Nats-Expected-", b"Nats-Msg-Id:", b"Nats-TTL:", b"Nats-Rollup:")

HeaderMap = Mapping[bytes, bytes]


# Checks of published schedules


def check_schedule(
    stream: StreamContext, subject: bytes, header: bytes, header_map: HeaderMap
) -> tuple[bytes, HeaderMap]:
    """Check a message with schedule headers; return its headers as they are to be stored."""
    allowed = stream.config.allow_msg_schedules
    try:
        moment = parse_schedule(header_map, stream.clock.wall_ns())
    except RequestError:
        if not allowed:
            raise ApiError.MESSAGE_SCHEDULES_DISABLED() from None
        raise
    if moment is not None:
        if not allowed:
            raise ApiError.MESSAGE_SCHEDULES_DISABLED()
        _check_target_headers(stream, header_map)
        _check_target_and_source(stream, subject, header_map)
        rollup = header_map.get(ROLLUP, b"").lower()
        if rollup not in (b"", b"sub"):
            raise ApiError.MESSAGE_SCHEDULES_ROLLUP_INVALID()
        if not rollup:
            header = headers.append(header, [(ROLLUP, b"sub")])
            header_map = {**header_map, ROLLUP: b"sub"}
    _check_scheduler(stream, subject, header_map)
    return header, header_map


def parse_schedule(header_map: HeaderMap, after_ns: int, now_ns: int = 0) -> FireTime | None:
    """Return when the schedule in a header fires next; None if it has none."""
    zone: tzinfo | None = None
    try:
        if (name := header_map.get(ZONE)) is not None:
            zone = get_zone(name.decode())
        pattern = header_map.get(SCHEDULE)
        return find_next_fire(pattern.decode(), zone, after_ns, now_ns or after_ns) if pattern else None
    except BadZone:
        raise ApiError.MESSAGE_SCHEDULES_TIME_ZONE_INVALID() from None
    except (BadPattern, UnicodeDecodeError, OverflowError):
        raise ApiError.MESSAGE_SCHEDULES_PATTERN_INVALID() from None


def _check_target_headers(stream: StreamContext, header_map: HeaderMap) -> None:
    ttl = header_map.get(TARGET_TTL)
    if ttl and parse_ttl(ttl)[0] in (TTL_INVALID, TTL_ZERO):
        raise ApiError.MESSAGE_SCHEDULES_TTL_INVALID()
    if header_map.get(TARGET_ROLLUP, b"") not in (b"", b"sub"):
        raise ApiError.MESSAGE_SCHEDULES_ROLLUP_INVALID()
    if ttl and not stream.config.allow_msg_ttl:
        raise ApiError.MESSAGE_TTL_DISABLED()


def _check_target_and_source(stream: StreamContext, subject: bytes, header_map: HeaderMap) -> None:
    """Check that target and source are other subjects of the same stream."""
    target, source = header_map.get(TARGET, b""), header_map.get(SOURCE, b"")
    if target == subject or not subjects.is_valid_publish(target):
        raise ApiError.MESSAGE_SCHEDULES_TARGET_INVALID()
    if source and (source in (target, subject) or not subjects.is_valid_publish(source)):
        raise ApiError.MESSAGE_SCHEDULES_SOURCE_INVALID()
    stream_subjects = stream.get_subjects()
    if not any(subjects.matches(pattern, target) for pattern in stream_subjects):
        raise ApiError.MESSAGE_SCHEDULES_TARGET_INVALID()
    if source and not any(subjects.matches(pattern, source) for pattern in stream_subjects):
        raise ApiError.MESSAGE_SCHEDULES_SOURCE_INVALID()


def _check_scheduler(stream: StreamContext, subject: bytes, header_map: HeaderMap) -> None:
    """Check that a client uses `Nats-Scheduler` only to end a schedule."""
    next_value, scheduler = header_map.get(NEXT), header_map.get(SCHEDULER)
    if not next_value:
        if scheduler:
            raise ApiError.MESSAGE_SCHEDULES_SCHEDULER_INVALID()
        return
    if (
        next_value != PURGE
        or not scheduler
        or scheduler == subject
        or not subjects.is_valid_publish(scheduler)
    ):
        raise ApiError.MESSAGE_SCHEDULES_SCHEDULER_INVALID()
    if not stream.config.allow_msg_schedules:
        raise ApiError.MESSAGE_SCHEDULES_DISABLED()
    last = stream.log.get_last_seq(scheduler)
    message = stream.log.get(last) if last else None
    if message is not None and not headers.get(message[2], SCHEDULE):
        raise ApiError.MESSAGE_SCHEDULES_SCHEDULER_INVALID()


# Schedules of a stream


class MessageSchedules:
    """The schedules of one stream, by subject."""

    __slots__ = (
        "_clock",
        "_entries",
        "_heap",
        "_key",
        "_log",
        "_metadata",
        "_retention",
        "_stream",
        "_timer",
        "_timer_at_ns",
        "_timers",
    )

    def __init__(self, stream: StreamContext, metadata: MetadataStore | None, key: bytes) -> None:
        """`metadata` is None for a stream in memory, whose schedules need not survive."""
        self._stream = stream
        self._log = stream.log
        self._retention = stream.retention
        self._clock = stream.clock
        self._timers = stream.jetstream.timers
        self._metadata = metadata
        self._key = key
        self._entries: dict[bytes, tuple[int, int]] = {}  # subject -> sequence, time
        self._heap: list[tuple[int, int, bytes]] = []
        self._timer: TimerHandle | None = None
        self._timer_at_ns = 0
        if metadata is not None:
            for name, value in metadata.items(key):
                seq, time_ns = _ENTRY.unpack(value)
                self._track(name[len(key) :], seq, time_ns)

    def __len__(self) -> int:
        return len(self._entries)

    def has_schedule(self, subject: bytes) -> bool:
        """Return whether the newest message of a subject is a schedule."""
        entry = self._entries.get(subject)
        return entry is not None and self._log.get_last_seq(subject) == entry[0]

    def iter_entries(self) -> Iterator[tuple[bytes, int, int]]:
        """Iterate over subject, sequence and next time of all schedules; they may change meanwhile."""
        for subject in list(self._entries):
            if (entry := self._entries.get(subject)) is not None:
                yield subject, *entry

    def on_stored(self, subject: bytes, header: bytes, seq: int, time_ns: int) -> None:
        """Update schedules after a message was stored: it may be a schedule, replace or end one, or purge another."""
        header_map = self.update_from_message(subject, header, seq, time_ns)
        if header_map.get(NEXT) == PURGE:
            self._retention.purge(header_map[SCHEDULER], 0, 0)

    def update_from_message(self, subject: bytes, header: bytes, seq: int, time_ns: int) -> HeaderMap:
        """Update the schedule of a stored message's subject; return the message's headers."""
        header_map: HeaderMap = publish_checks.parse_nats_headers(header) if SCHEDULE in header else {}
        moment = self._try_parse(header_map, time_ns)
        if moment is not None:
            self._put(subject, seq, moment.time_ns)
        elif not header_map.get(SCHEDULER):
            self._remove(subject)
        return header_map

    def start(self) -> None:
        """Start firing schedules."""
        self._arm_timer()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def delete_all(self) -> None:
        """Delete all schedules together with the stream."""
        self.stop()
        for subject in list(self._entries):
            self._remove(subject)

    # Times

    def _try_parse(self, header_map: HeaderMap, after_ns: int) -> FireTime | None:
        try:
            return parse_schedule(header_map, after_ns, self._clock.wall_ns())
        except RequestError:
            return None

    def _put(self, subject: bytes, seq: int, time_ns: int) -> None:
        if self._metadata is not None:
            self._metadata.put(self._key + subject, _ENTRY.pack(seq, time_ns))
        self._track(subject, seq, time_ns)
        self._arm_timer()

    def _track(self, subject: bytes, seq: int, time_ns: int) -> None:
        self._entries[subject] = seq, time_ns
        heapq.heappush(self._heap, (time_ns, seq, subject))
        if len(self._heap) > 64 + 2 * len(self._entries):  # mostly replaced entries
            self._heap = [(at, number, name) for name, (number, at) in self._entries.items()]
            heapq.heapify(self._heap)

    def _remove(self, subject: bytes) -> None:
        if self._entries.pop(subject, None) is not None and self._metadata is not None:
            self._metadata.delete(self._key + subject)

    def _arm_timer(self) -> None:
        config = self._stream.config
        if not self._heap or config.sealed:
            return
        time_ns = self._heap[0][0]
        if self._timer is not None:
            if self._timer_at_ns <= time_ns:
                return
            self._timer.cancel()
        self._set_timer(time_ns)

    def _set_timer(self, time_ns: int) -> None:
        self._timer_at_ns = time_ns
        self._timer = self._timers.at_wall_time(time_ns, self._on_timer)

    # Firing

    def _on_timer(self) -> None:
        self._timer = None
        stream = self._stream
        if stream.closed or stream.config.sealed:
            return
        try:
            self._fire_due(self._clock.wall_ns())
        except StoreError:  # the store accepts nothing now
            self._set_timer(self._clock.wall_ns() + _RETRY_NS)
            return
        stream.mark_dirty()
        self._arm_timer()

    def _fire_due(self, now_ns: int) -> None:
        for _ in range(_FIRE_MAX):
            if not self._heap or self._heap[0][0] > now_ns:
                return
            due = time_ns, seq, subject = heapq.heappop(self._heap)
            if self._entries.get(subject) != (seq, time_ns):
                continue  # replaced meanwhile
            try:
                self._fire(subject, seq, time_ns)
            except RequestError:  # restored from a backup, or copied: it was never checked here
                self._remove(subject)
            except StoreError:
                heapq.heappush(self._heap, due)
                raise

    def _fire(self, subject: bytes, seq: int, time_ns: int) -> None:
        """Publish the copy and update the schedule, in one frame."""
        stream = self._stream
        message = self._load_message(seq)
        header_map = publish_checks.parse_nats_headers(message[2]) if message else {}
        moment = self._try_parse(header_map, time_ns)
        if message is None or moment is None or not subjects.is_valid_publish(header_map.get(TARGET, b"")):
            self._remove(subject)
            return
        content = self._load_source(header_map) or message
        header = _make_copy_header(content[2], subject, header_map, moment)
        target = stream.transform_subject(header_map[TARGET])
        stream.reserve_frame_space(len(target) + len(header) + len(content[3]), 2)
        if moment.repeats:
            self._reschedule(subject, seq, moment.time_ns)
        self._publish(target, header, content[3])

    def _load_message(self, seq: int) -> tuple[int, bytes, bytes, bytes, int] | None:
        try:
            return self._log.get(seq)
        except CorruptData:  # the store reports it; there is nothing to publish
            return None

    def _load_source(self, header_map: HeaderMap) -> tuple[int, bytes, bytes, bytes, int] | None:
        """Return the newest message of the source subject, whose content is published, if there is one."""
        seq = self._log.get_last_seq(header_map[SOURCE]) if header_map.get(SOURCE) else 0
        return self._load_message(seq) if seq else None

    def _reschedule(self, subject: bytes, seq: int, time_ns: int) -> None:
        if self._metadata is not None:
            self._metadata.put(self._key + subject, _ENTRY.pack(seq, time_ns))
        self._entries[subject] = seq, time_ns
        heapq.heappush(self._heap, (time_ns, seq, subject))

    def _publish(self, target: bytes, header: bytes, payload: bytes) -> None:
        stream = self._stream
        header_map = publish_checks.parse_nats_headers(header)
        now_ns = stream.clock.now_ns()
        ttl_s = publish_checks.parse_ttl_header(stream, header_map) if TTL in header_map else 0
        header, ttl_s = publish_checks.apply_min_ttl(stream, header, ttl_s)
        rollup = header_map.get(ROLLUP, b"")
        if stream.retention.has_interest(target):
            stream.store(target, header, payload, now_ns, ttl_s, rollup=rollup)
        else:
            stream.skip(target, b"", now_ns, rollup, header_map)


def _make_copy_header(block: bytes, scheduler: bytes, header_map: HeaderMap, moment: FireTime) -> bytes:
    """Build the header of the copy: the user's headers, and which schedule it comes from."""
    kept_lines = [line for line in block.split(headers.CRLF) if not line.startswith(_STRIPPED_HEADERS)]
    next_value = moment.text.encode() if moment.repeats else PURGE
    added = [(SCHEDULER, scheduler), (NEXT, next_value)]
    if ttl := header_map.get(TARGET_TTL):
        added.append((TTL, ttl))
    if rollup := header_map.get(TARGET_ROLLUP):
        added.append((ROLLUP, rollup))
    return headers.append(headers.CRLF.join(kept_lines) if block else b"", added)
