"""The streams of one account: which exist, and how they are created, changed, deleted and recovered.

Owns the stored configurations. Invariant: every configuration is stored as metadata in the same frame as what it creates
or changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator

import msgspec

from headrace.broker.account_context import StreamJetStream
from headrace.broker.consumers.consumer_storage import decode_kept
from headrace.broker.handlers.direct_get import DirectGetSubscriptions
from headrace.broker.metadata_compaction import MetadataCompaction
from headrace.broker.sourcing.handover import make_key as handover_key
from headrace.broker.sourcing.source_positions import make_key as origins_key
from headrace.broker.stream import Stream
from headrace.broker.streams.dedup import dedup_key
from headrace.broker.streams.stream_metadata import StreamRecord, config_key, sweep_key
from headrace.jetstream_api.configs import StreamConfig
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.validation.stream_configs import StreamConfigs
from headrace.storage import StreamLog


class StreamRegistry:
    """`streams` has the streams by name; `restoring` the names of streams that are being restored from a backup."""

    def __init__(
        self, jetstream: StreamJetStream, streams: dict[str, Stream], restoring: Collection[str]
    ) -> None:
        self._jetstream = jetstream
        self._streams = streams
        self.configs = StreamConfigs()
        self._sorted_names: list[str] | None = None
        self._restoring = restoring
        self._store = jetstream.store
        self._logs = jetstream.store.logs
        self._metadata = jetstream.store.metadata
        self._clock = jetstream.clock
        self._quota = jetstream.quota
        self._direct_gets = DirectGetSubscriptions(jetstream.router)
        self._compaction = MetadataCompaction(self._metadata, streams, jetstream.timers)
        self._compaction.register_before_recovery()

    def get_stream(self, name: str) -> Stream:
        """Return the stream with that name, or raise the API's error."""
        stream = self._streams.get(name)
        if stream is None:
            raise ApiError.STREAM_NOT_FOUND()
        return stream

    @property
    def sorted_names(self) -> list[str]:
        """The names of all streams in order; the list is never changed."""
        if self._sorted_names is None:
            self._sorted_names = sorted(self._streams)
        return self._sorted_names

    def iter_streams(self) -> Iterator[Stream]:
        """Iterate over the streams by name; streams may be created and deleted meanwhile."""
        for name in self.sorted_names:
            stream = self._streams.get(name)
            if stream is not None:
                yield stream

    def iter_create_stream(self, config: StreamConfig) -> Generator[None, None, Stream]:
        """Create a stream from a validated configuration; it subscribes to its subjects in slices."""
        if config.name in self._restoring:
            raise ApiError.STREAM_NAME_EXIST()
        log = self._store.create(
            config.name, memory=config.storage == "memory", first_seq=max(config.first_seq, 1)
        )
        stream = self._add_stream(config, log)
        self._persist_config(stream)
        yield from self.configs.iter_put(config)
        yield from self._iter_subscribe(stream)
        stream.sourcing.configure(config)
        return stream

    def register_stream(
        self, config: StreamConfig, log: StreamLog, restore_state: Callable[[Stream], None] | None = None
    ) -> Stream:
        """Create the stream of a log; `restore_state` applies its state from a backup before it is visible."""
        stream = self._add_stream(config, log)
        self.configs.put(config)
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
        stream = Stream(self._jetstream, config, self._clock.now_ns(), log)
        self._streams[config.name] = stream
        self._sorted_names = None
        self._quota.add_stream(config, log)
        return stream

    def iter_update_stream(self, stream: Stream, config: StreamConfig) -> Iterator[None]:
        """Apply a new, validated configuration to a stream and persist it; lower limits take effect in slices."""
        stream.retention.enforce()  # messages that expired under the old configuration are removed
        kept_without_interest = stream.config.retention != "interest"
        self._quota.update_stream(stream.config, config)
        stream.configure(config)
        if kept_without_interest and config.retention == "interest":
            stream.consumer_set.recheck_interest()
        self._persist_config(stream)
        stream.sourcing.configure(config)  # in the frame of the configuration: a crash leaves both or neither
        yield from self.configs.iter_put(config)
        yield from self._iter_subscribe(stream)
        yield from stream.retention.iter_enforce()

    def iter_delete_stream(self, stream: Stream) -> Iterator[None]:
        """Delete a stream and everything in it.

        Consumers stop in slices; what is stored goes in one frame at the end, so a crash before that keeps all of it.
        """
        jetstream = self._jetstream
        self._direct_gets.unsubscribe(stream)
        yield from stream.iter_unsubscribe()
        yield from stream.iter_close()
        del self._streams[stream.name]
        self._sorted_names = None
        jetstream.totals.ended += 1
        self._quota.remove_stream(stream.config, stream.log)
        jetstream.event_history.drop_stream(stream.name)
        ident = stream.log.ident
        for key in (
            config_key(ident),
            dedup_key(ident),
            origins_key(ident),
            handover_key(ident),
            sweep_key(ident),
        ):
            self._metadata.delete(key)
        if stream.dedup is not None:
            stream.dedup.delete_stored()
        self._store.delete(stream.log)
        stream.sourcing.delete_consumers()
        jetstream.group_commit.schedule()
        self._quota.schedule_server_check()
        yield from self.configs.iter_discard(stream.name)

    def _persist_config(self, stream: Stream) -> None:
        if stream.config.storage != "memory":
            record = StreamRecord(stream.created_ns, stream.config)
            self._metadata.put(config_key(stream.log.ident), msgspec.json.encode(record))
        stream.mark_dirty()

    # Start and end of the server

    def recover(self) -> None:
        """Create the streams of the logs in the store, with their consumers."""
        for name, log in list(self._logs.items()):
            value = self._metadata.get(config_key(log.ident))
            if value is None:
                continue
            record = decode_kept(value, StreamRecord, f"stream {name}")
            stream = self._streams[name] = Stream(self._jetstream, record.config, record.created_ns, log)
            self.configs.put(record.config)
            self._quota.add_stream(record.config, log)
            stream.consumer_set.recover()
        self._compaction.register_after_recovery()

    def start(self) -> None:
        """Start serving; enforce limits first, so that nothing overdue is ever delivered."""
        for stream in self._streams.values():
            stream.retention.start()
            self._subscribe(stream)
            stream.consumer_set.open()
            if stream.schedules is not None:
                stream.schedules.start()
        for stream in self._streams.values():
            stream.sourcing.configure(stream.config)

    def stop(self) -> None:
        """Stop serving; the streams stay."""
        for stream in self._streams.values():
            self._unsubscribe(stream)
            stream.sourcing.stop()
            stream.retention.stop()
            stream.atomic_batches.clear()
            stream.fast_ingest.clear()
            if stream.schedules is not None:
                stream.schedules.stop()

    def _subscribe(self, stream: Stream) -> None:
        for _ in self._iter_subscribe(stream):
            pass

    def _iter_subscribe(self, stream: Stream) -> Iterator[None]:
        """Subscribe to what the configuration names, and to nothing else, in slices."""
        yield from stream.iter_subscribe()
        self._direct_gets.unsubscribe(stream)
        self._direct_gets.subscribe(stream)

    def _unsubscribe(self, stream: Stream) -> None:
        for _ in stream.iter_unsubscribe():
            pass
        self._direct_gets.unsubscribe(stream)
