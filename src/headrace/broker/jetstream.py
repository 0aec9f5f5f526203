"""JetStream: an account's streams on top of its store, and the subscriptions through which clients reach them.

Owns which streams exist and how they are loaded after a restart. Every configuration is stored as metadata in the same
frame as what it creates or changes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import msgspec

from headrace.broker.commit.advisories import Advisories
from headrace.broker.commit.disk_backpressure import DiskBackpressure
from headrace.broker.commit.event_history import EventHistory
from headrace.broker.commit.group_commit import GroupCommit
from headrace.broker.commit.idle_timer import IdleTimer
from headrace.broker.commit.server_quota import ServerQuota
from headrace.broker.commit.storage_usage import StorageUsage
from headrace.broker.consumers import ack_handling
from headrace.broker.consumers.ack_handling import AckDispatcher
from headrace.broker.consumers.consumer_flush import ConsumerFlusher
from headrace.broker.consumers.consumer_storage import decode_kept
from headrace.broker.consumers.delivery_scheduler import DeliveryScheduler
from headrace.broker.handlers import (
    backup_send,
    consumer_handlers,
    restore_receiver,
    restore_writer,
    snapshot_leases,
    stream_handlers,
)
from headrace.broker.handlers.api_dispatch import ApiDispatcher
from headrace.broker.handlers.direct_get import DirectGet, MirrorDirectGet
from headrace.broker.handlers.js_domain import DomainPrefix
from headrace.broker.handlers.lease_registry import LeaseRegistry
from headrace.broker.jetstream_settings import JetStreamSettings
from headrace.broker.metadata_compaction import MetadataCompaction
from headrace.broker.routing.router import SubjectRouter
from headrace.broker.sourcing.source_positions import make_key as origins_key
from headrace.broker.stream import Stream
from headrace.broker.streams.atomic_batch import AtomicBatchBudget
from headrace.broker.streams.fast_ingest import FastIngestBudget
from headrace.broker.streams.stream_metadata import StreamRecord, config_key, dedup_key
from headrace.broker.timers import Timers
from headrace.clock import Clock
from headrace.errors import RequestError, StoreError
from headrace.jetstream_api.account_limits import JetStreamLimits, Usage
from headrace.jetstream_api.configs import StreamConfig
from headrace.jetstream_api.errors import ApiError
from headrace.protocol import subjects
from headrace.storage import Store, StreamLog

if TYPE_CHECKING:
    from headrace.broker.sourcing.replicator import Replicator

#: A clock that went back further than this was set on purpose; follow it.
_CLOCK_JUMP_NS = 1_000_000_000

ENDPOINTS = (
    stream_handlers.ENDPOINTS
    | consumer_handlers.ENDPOINTS
    | snapshot_leases.ENDPOINTS
    | backup_send.ENDPOINTS
    | restore_receiver.ENDPOINTS
)


class AccountJetStream:
    """All streams of one account."""

    def __init__(
        self,
        router: SubjectRouter,
        store: Store,
        clock: Clock,
        timers: Timers,
        call_soon: Callable[[Callable[[], None]], object],
        settings: JetStreamSettings,
        server_quota: ServerQuota | None = None,
    ) -> None:
        self.router, self.store = router, store
        self.timers = timers
        self.server_name, self.account, self.domain = settings.server_name, settings.account, settings.domain
        self.reject_unknown_fields = settings.reject_unknown_fields
        self.pending_max = settings.pending_max
        self.flow_bytes = settings.flow_bytes
        self.limits = settings.limits
        self.call_soon = call_soon
        self.run_operation, self.run_off_loop = settings.run_operation, settings.run_off_loop
        self.group_commit = GroupCommit(store, router, call_soon, IdleTimer(store, timers).start)
        self.disk_backpressure = DiskBackpressure(store, timers)
        self.advisories = Advisories(self)
        self.event_history = EventHistory()
        self.batch_budget = AtomicBatchBudget(settings.batch_limits)
        self.fast_ingest_budget = FastIngestBudget(settings.fast_ingest_limits)
        self.streams: dict[str, Stream] = {}
        #: The replicator that reads through each durable consumer (subject of the upstream API, name): one at a time.
        self.copiers: dict[tuple[bytes, str], Replicator] = {}
        self.storage_usage = StorageUsage(store, self.streams)
        self.server_quota = server_quota if server_quota is not None else ServerQuota()
        self.backups: set[backup_send.BackupSender] = set()
        self.restores: dict[str, restore_receiver.BackupRestore] = {}
        self.pin_leases = LeaseRegistry(store, timers)
        self.api_total = self.api_errors = self.ended = 0
        self._clock, self._last_ns = clock, 0
        self._direct_gets: dict[str, list[DirectGet]] = {}
        self._api = ApiDispatcher(self, ENDPOINTS)
        self.ack_dispatcher = AckDispatcher()
        self.consumer_flusher = ConsumerFlusher(timers, self.group_commit)
        self.delivery_scheduler = DeliveryScheduler(call_soon)
        self._recover()

    def now_ns(self) -> int:
        """Return the time for a new message: never the same twice, so that a time identifies at most one message."""
        now = self._clock.now_ns()
        if self._last_ns - _CLOCK_JUMP_NS < now <= self._last_ns:
            now = self._last_ns + 1
        self._last_ns = now
        return now

    def reserve_times(self, count: int) -> int:
        """Return the first of `count` consecutive times, for messages that are stored together."""
        first = self.now_ns()
        self._last_ns = first + count - 1
        return first

    def clock_ns(self) -> int:
        """Return the wall-clock time."""
        return self._clock.now_ns()

    @property
    def is_durable(self) -> bool:
        """Whether everything accepted is durable and its replies were sent."""
        return not (self.store.dirty or self.store.in_flight)

    @property
    def is_quiescent(self) -> bool:
        """Whether waiting would make nothing more durable."""
        return self.is_durable or self.store.waiting_for_space or self.store.poisoned is not None

    # Streams

    def get_stream(self, name: str) -> Stream:
        """Return the stream with that name, or raise the API's error."""
        stream = self.streams.get(name)
        if stream is None:
            raise ApiError.STREAM_NOT_FOUND()
        return stream

    def sorted_streams(self, subject: str = "") -> list[Stream]:
        """Return the streams by name; with a subject, only those that could have a message on it."""
        found = [self.streams[name] for name in sorted(self.streams)]
        if not subject:
            return found
        return [s for s in found if any(subjects.overlaps(subject.encode(), own) for own in s.get_subjects())]

    def configs(self) -> dict[str, StreamConfig]:
        """Return the configuration of every stream."""
        return {name: stream.config for name, stream in self.streams.items()}

    def iter_create_stream(self, config: StreamConfig) -> Generator[None, None, Stream]:
        """Create a stream from a validated configuration; it subscribes to its subjects in slices."""
        if config.name in self.restores:
            raise ApiError.STREAM_NAME_EXIST()
        log = self.store.create(
            config.name, memory=config.storage == "memory", first_seq=max(config.first_seq, 1)
        )
        stream = self._add_stream(config, log)
        self._persist_config(stream)
        yield from self._iter_subscribe(stream)
        stream.sourcing.configure(config)
        return stream

    def register_stream(
        self, config: StreamConfig, log: StreamLog, restore_state: Callable[[Stream], None] | None = None
    ) -> Stream:
        """Create the stream of a log; `restore_state` applies its state from a backup before it is visible."""
        stream = self._add_stream(config, log)
        if restore_state is not None:
            restore_state(stream)
        self._persist_config(stream)
        self._subscribe(stream)
        if restore_state is not None:
            stream.retention.start()
            stream.consumer_set.open()
        stream.sourcing.configure(config)
        return stream

    def _add_stream(self, config: StreamConfig, log: StreamLog) -> Stream:
        stream = self.streams[config.name] = Stream(self, config, self.now_ns(), log)
        self.storage_usage.invalidate()
        return stream

    def iter_update_stream(self, stream: Stream, config: StreamConfig) -> Iterator[None]:
        """Apply a new, validated configuration to a stream and persist it; lower limits take effect in slices."""
        stream.retention.enforce()  # messages that expired under the old configuration are removed
        kept_without_interest = stream.config.retention != "interest"
        stream.configure(config)
        if kept_without_interest and config.retention == "interest":
            stream.consumer_set.recheck_interest()
        self._persist_config(stream)
        yield from self._iter_subscribe(stream)
        stream.sourcing.configure(config)
        yield from stream.retention.iter_enforce()

    def iter_delete_stream(self, stream: Stream) -> Iterator[None]:
        """Delete a stream and everything in it.

        Consumers stop in slices; what is stored goes in one frame at the end, so a crash before that keeps all of it.
        """
        self._unsubscribe_direct_gets(stream)
        yield from stream.iter_unsubscribe()
        yield from stream.iter_close()
        del self.streams[stream.name]
        self.ended += 1
        self.storage_usage.invalidate()
        self.event_history.drop_stream(stream.name)
        ident, metadata = stream.log.ident, self.store.metadata
        for key in (config_key(ident), dedup_key(ident), origins_key(ident)):
            metadata.delete(key)
        self.store.delete(stream.log)
        self.group_commit.schedule()
        self.server_quota.schedule_check(self)

    def _persist_config(self, stream: Stream) -> None:
        if stream.config.storage != "memory":
            record = StreamRecord(stream.created_ns, stream.config)
            metadata = self.store.metadata
            metadata.put(config_key(stream.log.ident), msgspec.json.encode(record))
        stream.mark_dirty()

    def _recover(self) -> None:
        metadata, logs = self.store.metadata, self.store.logs
        compaction = MetadataCompaction(metadata, self.streams, self.timers)
        compaction.register_before_recovery()
        for log in list(logs.values()):
            if metadata.get(restore_writer.unfinished_key_for(log)) is not None:  # an unfinished restore
                restore_writer.discard(self, log)
                continue
            value = metadata.get(config_key(log.ident))
            if value is None:
                continue
            record = decode_kept(value, StreamRecord, f"stream {log.name}")
            stream = self.streams[log.name] = Stream(self, record.config, record.created_ns, log)
            stream.consumer_set.recover()
        compaction.register_after_recovery()

    def start(self) -> None:
        """Start serving; enforce limits first, so that nothing overdue is ever delivered."""
        for pattern in self._api.subscriptions():
            self.router.subscribe_internal(pattern, self._api)
        self.router.subscribe_internal(ack_handling.PATTERN, self.ack_dispatcher)
        if self.domain:
            DomainPrefix(self.router, self.domain).subscribe()
        for stream in self.streams.values():
            stream.retention.start()
            self._subscribe(stream)
            stream.consumer_set.open()
            if stream.schedules is not None:
                stream.schedules.start()
        for stream in self.streams.values():
            stream.sourcing.configure(stream.config)
        self.pin_leases.load(self.clock_ns())
        self.server_quota.add_account(self)

    def close(self) -> None:
        """Stop serving and make everything durable; pending replies are sent."""
        self._api.stop()
        for backup in list(self.backups):
            backup.close()
        for restore in self.restores.values():
            restore.close()
        for stream in self.streams.values():
            self._unsubscribe(stream)
            stream.sourcing.stop()
            stream.retention.stop()
            if stream.schedules is not None:
                stream.schedules.stop()
        self.server_quota.remove_account(self)
        self.consumer_flusher.flush()
        self.group_commit.commit()
        self.store.close()

    # Subscriptions

    def _subscribe(self, stream: Stream) -> None:
        for _ in self._iter_subscribe(stream):
            pass

    def _iter_subscribe(self, stream: Stream) -> Iterator[None]:
        """Subscribe to what the configuration names, and to nothing else, in slices."""
        yield from stream.iter_subscribe()
        self._unsubscribe_direct_gets(stream)
        direct_gets: list[DirectGet] = []
        if stream.config.allow_direct:
            direct_gets.append(DirectGet(stream, stream.name_bytes))
        mirror = stream.config.mirror
        if stream.config.mirror_direct and mirror is not None:
            direct_gets.append(MirrorDirectGet(stream, mirror.name.encode()))
        self._direct_gets[stream.name] = direct_gets
        for subscriber in direct_gets:
            for pattern in subscriber.subscriptions:
                self.router.subscribe_internal(pattern, subscriber)

    def _unsubscribe(self, stream: Stream) -> None:
        for _ in stream.iter_unsubscribe():
            pass
        self._unsubscribe_direct_gets(stream)

    def _unsubscribe_direct_gets(self, stream: Stream) -> None:
        for subscriber in self._direct_gets.pop(stream.name, ()):
            for pattern in subscriber.subscriptions:
                self.router.unsubscribe_internal(pattern, subscriber)

    def to_api_error(self, failure: StoreError) -> RequestError:
        """Return the API error for a publish that the store rejected."""
        return ApiError.INSUFFICIENT_RESOURCES()

    # Usage and quotas

    def usage(self, storage: str) -> tuple[int, int]:
        """Return bytes in use and bytes reserved by `max_bytes`, for one kind of storage."""
        streams = [s for s in self.streams.values() if s.config.storage == storage]
        return sum(s.log.bytes for s in streams), sum(max(s.config.max_bytes, 0) for s in streams)

    def quota(self, storage: str) -> int:
        """Return the account's limit in bytes for one kind of storage; -1 is no limit."""
        return self.limits.max_memory if storage == "memory" else self.limits.max_storage

    def has_quota(self, storage: str) -> bool:
        """Whether messages must be checked against the quota of the account or the server."""
        return self.quota(storage) >= 0 or storage in self.server_quota.exhausted

    def set_limits(self, limits: JetStreamLimits) -> None:
        """Apply new account limits; stored messages stay."""
        self.limits = limits
        for stream in self.streams.values():
            stream.update_fast_path()

    def usage_excluding(self, name: str) -> Usage:
        """Return the usage of the account's streams, except for the one with this name."""
        others = [stream.config for stream in self.streams.values() if stream.name != name]
        reserved = {
            kind: sum(max(c.max_bytes, 0) for c in others if c.storage == kind) for kind in ("memory", "file")
        }
        return Usage(
            streams=len(others), reserved_memory=reserved["memory"], reserved_storage=reserved["file"]
        )

    def consumers(self) -> Iterator[object]:
        """Iterate over every consumer of every stream."""
        for stream in self.streams.values():
            yield from stream.consumers.values()
