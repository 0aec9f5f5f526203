"""JetStream: the streams of a server over its store, and the doors that lead to them.

Owns which streams exist and how they come back after a restart. Every configuration is a fact in the journal, in the
same frame as what it creates or changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import msgspec

from headrace.api import errors
from headrace.api.configs import StreamConfig
from headrace.api.limits import NO_LIMITS, Limits, Usage
from headrace.broker import acks, consumer_api, contents, pin_api, restores, snapshots, stream_api
from headrace.broker.acks import AckDoor
from headrace.broker.advisories import Advisories
from headrace.broker.batches import DEFAULT_LIMITS, BatchLimits, Staging
from headrace.broker.consumer_facts import PROGRESS_KEY, decode_kept
from headrace.broker.diary import Diary
from headrace.broker.direct import DirectGet, MirrorGet
from headrace.broker.domains import DomainDoor
from headrace.broker.door import ApiDoor
from headrace.broker.fast_batches import DEFAULT_LIMITS as FAST_LIMITS
from headrace.broker.fast_batches import FastLimits, FastRoom
from headrace.broker.flow import START_BYTES
from headrace.broker.footprint import Footprint
from headrace.broker.positions import KEY as ORIGINS_KEY
from headrace.broker.positions import key_of as origins_key
from headrace.broker.pressure import Pressure
from headrace.broker.room import Room
from headrace.broker.router import Hub
from headrace.broker.schedules import KEY as SCHEDULES_KEY
from headrace.broker.scribe import Scribe
from headrace.broker.stream import Stream
from headrace.broker.ticks import Ticker
from headrace.broker.timers import Handle, Timers
from headrace.errors import RequestError, StoreError
from headrace.probes import probe
from headrace.protocol import subjects
from headrace.store import Log, Store

if TYPE_CHECKING:
    from headrace.broker.link import Link

_CONFIG = b"stream/"
_DUPLICATES = b"ids/"
_IDLE_NS = 50_000_000
_FULL_NS = 1_000_000_000
#: A clock that went back further than this was set; it is followed.
_CLOCK_JUMP_NS = 1_000_000_000

ENDPOINTS = (
    stream_api.ENDPOINTS
    | consumer_api.ENDPOINTS
    | pin_api.ENDPOINTS
    | snapshots.ENDPOINTS
    | restores.ENDPOINTS
)


class Clock(Protocol):
    def now_ns(self) -> int: ...


class Kept(msgspec.Struct):
    """A stream's configuration as the store keeps it."""

    created_ns: int
    config: StreamConfig


class JetStream:
    """All streams of one account."""

    def __init__(
        self,
        hub: Hub,
        store: Store,
        clock: Clock,
        timers: Timers,
        wake: Callable[[Callable[[], None]], object],
        *,
        server_name: str,
        account: str = "$G",
        domain: str = "",
        strict: bool = True,
        pending_max: int = 64 * 1024 * 1024,
        limits: Limits = NO_LIMITS,
        batch_limits: BatchLimits = DEFAULT_LIMITS,
        fast_limits: FastLimits = FAST_LIMITS,
        flow_bytes: int = START_BYTES,
        room: Room | None = None,
    ) -> None:
        self.hub = hub
        self.store = store
        self.timers = timers
        self.server_name = server_name
        self.account = account
        self.domain = domain
        self.strict = strict  # whether a request with a key that nobody knows is refused
        self.pending_max = pending_max
        self.later = wake
        self.ticker = Ticker(store, hub, wake, self._look_soon)
        store.on_full = self._look_soon
        self._idle_alarm: Handle | None = None
        if store.full:
            self._look_soon()
        self.pressure = Pressure(store, timers)
        self.advisories = Advisories(self)
        self.diary = Diary()
        self.staging = Staging(batch_limits)
        self.fast_room = FastRoom(fast_limits)
        self.flow_bytes = flow_bytes
        self.streams: dict[str, Stream] = {}
        #: Which link reads with a durable consumer (subject of its origin's API, name): one at a time.
        self.copiers: dict[tuple[bytes, str], Link] = {}
        self.footprint = Footprint(self)
        self.limits = limits
        self.room = room if room is not None else Room()
        self.snapshots: set[snapshots.Snapshot] = set()
        self.restores: dict[str, restores.Restore] = {}
        self.leases: dict[str, Handle] = {}  # name of a pin that is held -> its end
        self.api_total = 0
        self.api_errors = 0
        self._clock = clock
        self._last_ns = 0
        self._doors: dict[str, list[DirectGet]] = {}
        self.ack_door = AckDoor()
        self.scribe = Scribe(self)
        store.facts.register(_DUPLICATES, self._fold_duplicates)
        self._recover()
        store.facts.register(PROGRESS_KEY, self._fold_progress)
        store.facts.register(ORIGINS_KEY, self._fold_origins)

    def now_ns(self) -> int:
        """The time for a new message: never the same twice, so that a time names one message at most."""
        now = self._clock.now_ns()
        if self._last_ns - _CLOCK_JUMP_NS < now <= self._last_ns:
            now = self._last_ns + 1
        self._last_ns = now
        return now

    def times_ns(self, count: int) -> int:
        """The first of so many times in a row, for messages that are stored together."""
        first = self.now_ns()
        self._last_ns = first + count - 1
        return first

    def clock_ns(self) -> int:
        """The time as the clock shows it."""
        return self._clock.now_ns()

    # Rest

    def _look_soon(self) -> None:
        if self._idle_alarm is None:
            self._idle_alarm = self.timers.after(_IDLE_NS, self._look_idle)

    def _look_idle(self) -> None:
        """When nothing happened for a while a mark proves the last frame, so that rot can be told from a tear."""
        self._idle_alarm = None
        self.store.idle()
        if self.store.full:  # look again: space may be freed by others
            probe("a full disk is looked at again")
            self._idle_alarm = self.timers.after(_FULL_NS, self._look_idle)

    @property
    def settled(self) -> bool:
        """Whether everything admitted is durable and told."""
        return not (self.store.dirty or self.store.in_flight)

    @property
    def at_rest(self) -> bool:
        """Whether nothing more becomes durable by waiting."""
        return self.settled or self.store.waits or self.store.poisoned is not None

    # Streams

    def lookup(self, name: str) -> Stream:
        """The stream of that name, or the API's error."""
        stream = self.streams.get(name)
        if stream is None:
            raise errors.error(10059)
        return stream

    def sorted_streams(self, subject: str = "") -> list[Stream]:
        """By name; with a subject, only streams that could hold a message on it."""
        found = [self.streams[name] for name in sorted(self.streams)]
        if not subject:
            return found
        return [s for s in found if any(subjects.collides(subject.encode(), own) for own in s.subjects())]

    def configs(self) -> dict[str, StreamConfig]:
        """The configuration of every stream."""
        return {name: stream.config for name, stream in self.streams.items()}

    def create_stream(self, config: StreamConfig) -> Stream:
        """Make a stream; its configuration has been validated."""
        if config.name in self.restores:
            raise errors.error(10058)
        log = self.store.create(
            config.name, memory=config.storage == "memory", first_seq=max(config.first_seq, 1)
        )
        return self.adopt_stream(config, log)

    def adopt_stream(
        self, config: StreamConfig, log: Log, equip: Callable[[Stream], None] | None = None
    ) -> Stream:
        """A stream for a log; `equip` gives it what it had when it was backed up, before anybody sees it."""
        stream = Stream(self, config, self.now_ns(), log)
        self.streams[config.name] = stream
        self.footprint.forget()
        if equip is not None:
            equip(stream)
        self._keep(stream)
        self._open_doors(stream)
        if equip is not None:
            stream.retention.start()
            stream.readers.open()
        stream.sourcing.configure(config)
        return stream

    def update_stream(self, stream: Stream, config: StreamConfig) -> None:
        """Give a stream a new, validated configuration; it is written down before it bites."""
        stream.retention.enforce()  # what was overdue by the old one is gone
        was_kept = stream.config.retention != "interest"
        stream.configure(config)
        if was_kept and config.retention == "interest":
            stream.readers.release_all()
        self._keep(stream)
        stream.retention.start()
        self._open_doors(stream)
        stream.sourcing.configure(config)

    def delete_stream(self, stream: Stream) -> None:
        """Remove a stream with all it holds."""
        self._close_doors(stream)
        stream.close()
        del self.streams[stream.name]
        self.footprint.forget()
        self.diary.forget(stream.name)
        ident = stream.log.ident
        for key in (self.config_key(ident), self.duplicates_key(stream.log), origins_key(ident)):
            self.store.facts.delete(key)
        self.store.delete(stream.log)
        self.ticker.arm()
        self.room.changed(self)

    def _keep(self, stream: Stream) -> None:
        if stream.config.storage != "memory":
            kept = Kept(stream.created_ns, stream.config)
            self.store.facts.put(self.config_key(stream.log.ident), msgspec.json.encode(kept))
        stream.changed()

    def _recover(self) -> None:
        facts = self.store.facts
        for log in list(self.store.logs.values()):
            if facts.get(contents.mark_of(log)) is not None:  # the restore was cut short
                contents.discard(self, log)
                continue
            value = facts.get(self.config_key(log.ident))
            if value is None:
                continue
            kept = decode_kept(value, Kept, f"stream {log.name}")
            stream = self.streams[log.name] = Stream(self, kept.config, kept.created_ns, log)
            stream.readers.recover()

    def start(self) -> None:
        """Open for business: bring limits up to date first, so that nothing overdue is ever served."""
        door = ApiDoor(self, ENDPOINTS)
        for pattern in door.patterns():
            self.hub.subscribe_internal(pattern, door)
        self.hub.subscribe_internal(acks.PATTERN, self.ack_door)
        if self.domain:
            DomainDoor(self.hub, self.domain).open()
        for stream in self.streams.values():
            stream.retention.start()
            self._open_doors(stream)
            stream.readers.open()
            if stream.schedules is not None:
                stream.schedules.start()
        for stream in self.streams.values():
            stream.sourcing.configure(stream.config)
        self.room.join(self)

    def close(self) -> None:
        """Take nothing more, and make everything durable; answers that were waiting leave."""
        for snapshot in list(self.snapshots):
            snapshot.close()
        for restore in self.restores.values():
            restore.close()
        for stream in self.streams.values():
            self._close_doors(stream)
            stream.sourcing.stop()
            stream.retention.stop()
            if stream.schedules is not None:
                stream.schedules.stop()
        self.room.leave(self)
        self.scribe.write()
        self.ticker.tick()
        self.store.close()

    # Doors

    def _open_doors(self, stream: Stream) -> None:
        self._close_doors(stream)
        stream.listen()
        doors: list[DirectGet] = []
        if stream.config.allow_direct:
            doors.append(DirectGet(stream, stream.name_bytes))
        if stream.config.mirror_direct and stream.config.mirror is not None:
            doors.append(MirrorGet(stream, stream.config.mirror.name.encode()))
        self._doors[stream.name] = doors
        for door in doors:
            for pattern in door.patterns:
                self.hub.subscribe_internal(pattern, door)

    def _close_doors(self, stream: Stream) -> None:
        stream.unlisten()
        for door in self._doors.pop(stream.name, ()):
            for pattern in door.patterns:
                self.hub.unsubscribe_internal(pattern, door)

    # Facts

    @staticmethod
    def config_key(ident: int) -> bytes:
        return _CONFIG + b"%d" % ident

    @staticmethod
    def duplicates_key(log: Log) -> bytes:
        return _DUPLICATES + b"%d" % log.ident

    @staticmethod
    def schedules_key(log: Log) -> bytes:
        return SCHEDULES_KEY + b"%d/" % log.ident

    def _by_ident(self, ident: bytes) -> Stream | None:
        return next((s for s in self.streams.values() if s.log.ident == int(ident)), None)

    def _fold_duplicates(self, key: bytes) -> bytes:
        stream = self._by_ident(key[len(_DUPLICATES) :])
        return stream.duplicates.snapshot() if stream is not None and stream.duplicates is not None else b""

    def _fold_progress(self, key: bytes) -> bytes:
        ident, _, name = key[len(PROGRESS_KEY) :].partition(b"/")
        stream = self._by_ident(ident)
        consumer = stream.readers.find(name.decode()) if stream is not None else None
        return consumer.progress.snapshot(self.timers.behind_ns) if consumer is not None else b""

    def _fold_origins(self, key: bytes) -> bytes:
        stream = self._by_ident(key[len(ORIGINS_KEY) :])
        return stream.sourcing.positions.snapshot() if stream is not None else b""

    def store_refusal(self, failure: StoreError) -> RequestError:
        """What a publisher is told when the store takes nothing more."""
        return errors.error(10023)

    # Figures

    def usage(self, storage: str) -> tuple[int, int]:
        """Bytes in use and bytes reserved by `max_bytes`, of one kind of storage."""
        streams = [s for s in self.streams.values() if s.config.storage == storage]
        return sum(s.log.bytes for s in streams), sum(max(s.config.max_bytes, 0) for s in streams)

    def cap(self, storage: str) -> int:
        """How many bytes the account may keep of one kind of storage; -1 is any number."""
        return self.limits.max_memory if storage == "memory" else self.limits.max_storage

    def bounded(self, storage: str) -> bool:
        """Whether a message may be one too many for the account, or the server, whatever its stream says."""
        return self.cap(storage) >= 0 or storage in self.room.full

    def adopt_limits(self, limits: Limits) -> None:
        """From now on keep within these limits; what is there stays."""
        self.limits = limits
        for stream in self.streams.values():
            stream.choose_lane()

    def usage_beside(self, name: str) -> Usage:
        """What the account's streams take, except for the one of this name."""
        others = [stream.config for stream in self.streams.values() if stream.name != name]
        reserved = {
            kind: sum(max(c.max_bytes, 0) for c in others if c.storage == kind) for kind in ("memory", "file")
        }
        return Usage(
            streams=len(others), reserved_memory=reserved["memory"], reserved_storage=reserved["file"]
        )

    def consumers(self) -> Iterator[object]:
        """Every consumer of every stream."""
        for stream in self.streams.values():
            yield from stream.consumers.values()
