"""A stream: its configuration, its log, and the publish path of a message into it.

Invariant: every reply to a publisher waits, through group commit, for the frame with the changes it refers to. It knows
no sockets and no JSON; the API's handlers call its methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

import numpy as np

from headrace._native import PublishFastPath
from headrace.broker.account_context import StreamJetStream
from headrace.broker.consumers.consumer import Consumer
from headrace.broker.consumers.consumer_set import ConsumerSet
from headrace.broker.routing.apply_transform import make_transform
from headrace.broker.sourcing.sourcing import Sourcing
from headrace.broker.streams import publish_checks, schedules
from headrace.broker.streams.atomic_batch import AtomicBatches
from headrace.broker.streams.dedup import StreamDedupWindow
from headrace.broker.streams.fast_ingest import FastIngestBatches
from headrace.broker.streams.publish_processor import PublishProcessor
from headrace.broker.streams.republish import Republisher
from headrace.broker.streams.retention import Retention
from headrace.broker.streams.schedules import MessageSchedules
from headrace.broker.streams.stream_metadata import schedules_key
from headrace.errors import CorruptData
from headrace.jetstream_api.configs import ConsumerConfig, StreamConfig
from headrace.jetstream_api.errors import ApiError
from headrace.protocol import headers
from headrace.storage import MetadataStore, StreamLog

#: Number of subjects that a stream subscribes to in one turn of the event loop.
SUBJECTS_PER_SLICE = 256
_NO_HEADERS: Mapping[bytes, bytes] = {}
#: Overhead of a record besides its contents.
_RECORD_OVERHEAD_BYTES = 64


class Stream:
    """One stream of the account."""

    __slots__ = (
        "_publishing",
        "_republisher",
        "_router",
        "_subscribed_subjects",
        "_totals",
        "_transform",
        "clock",
        "closed",
        "config",
        "consumer_set",
        "consumers",
        "created_ns",
        "dedup",
        "fast_path",
        "group_commit",
        "jetstream",
        "log",
        "name",
        "name_bytes",
        "pub_ack_prefix",
        "quota",
        "retention",
        "schedules",
        "sourcing",
    )

    def __init__(
        self, jetstream: StreamJetStream, config: StreamConfig, created_ns: int, log: StreamLog
    ) -> None:
        self.jetstream = jetstream
        self._totals = jetstream.totals
        group_commit = jetstream.group_commit
        self.group_commit = group_commit.memory if config.storage == "memory" else group_commit
        self._router = jetstream.router
        self.clock = jetstream.clock
        self.quota = jetstream.quota
        self.name = config.name
        self.name_bytes = config.name.encode()
        self.created_ns = created_ns
        self.log = log
        self.consumers: dict[str, Consumer] = {}
        self.consumer_set = ConsumerSet(self)
        self.retention: Retention = Retention(self, self.consumer_set)
        self._publishing = PublishProcessor(
            self, self.retention, jetstream.batch_budget, jetstream.fast_ingest_budget
        )
        self.fast_path = PublishFastPath(
            self._publishing, log, self.clock, self.retention, self.group_commit.pending_replies
        )
        self.fast_path.last_message_id = self._load_message_id(log.last_seq)
        self.dedup: StreamDedupWindow | None = None
        self.schedules: MessageSchedules | None = None
        self._subscribed_subjects: dict[bytes, None] = {}
        self.closed = False
        self.configure(config)
        self.sourcing: Sourcing = Sourcing(self, self._metadata_store())

    # Configuration

    def configure(self, config: StreamConfig) -> None:
        """Apply a validated configuration and derive everything that depends on it."""
        self.config = config
        jetstream = self.jetstream
        self._totals.config_changes += 1
        domain = jetstream.domain
        domain_field = f'"domain":"{domain}",' if domain else ""
        self.pub_ack_prefix = self.fast_path.ack_prefix = (
            f'{{"stream":"{self.name}",{domain_field}"seq":'.encode()
        )
        transform, republish = config.subject_transform, config.republish
        self._transform = make_transform(transform.src, transform.dest) if transform else None
        self._republisher = Republisher(self.name_bytes, republish, self.group_commit) if republish else None
        if not config.allow_atomic:
            self.atomic_batches.clear()
        if not config.allow_batched:
            self.fast_ingest.clear()
        self.log.set_compression(config.compression == "s2")
        self.update_fast_path()
        self.fast_path.sends_acks = not config.no_ack
        self.fast_path.calls_after_append = bool(config.max_age or config.max_msgs_per_subject > 0)
        self.fast_path.reset_ttl_cache()
        self._configure_dedup(config.duplicate_window)
        self.retention.configure(config)
        if config.allow_msg_schedules and self.schedules is None:
            self.schedules = MessageSchedules(self, self._metadata_store(), schedules_key(self.log.ident))

    def update_fast_path(self) -> None:
        """Enable the fast path if messages without special headers need no checks."""
        self.fast_path.enabled = not publish_checks.requires_slow_path(self.quota, self.config)

    def _metadata_store(self) -> MetadataStore | None:
        """Return the store for durable state; None for a stream in memory."""
        store = self.jetstream.store
        return None if self.config.storage == "memory" else store.metadata

    def _configure_dedup(self, window_ns: int) -> None:
        if window_ns <= 0:
            if self.dedup is not None:
                self.dedup.delete_stored()
            self.dedup = None
        elif self.dedup is None:
            store = None if self.config.storage == "memory" else self.jetstream.store
            self.dedup = StreamDedupWindow(store, self.log.ident, window_ns)
        else:
            self.dedup.window_ns = window_ns
        self.fast_path.dedup = self.dedup

    @property
    def atomic_batches(self) -> AtomicBatches:
        """The open atomic batches."""
        return self._publishing.atomic_batches

    @property
    def fast_ingest(self) -> FastIngestBatches:
        """The open fast-ingest batches."""
        return self._publishing.fast_ingest

    def iter_subscribe(self) -> Iterator[None]:
        """Subscribe to the configured subjects and to no others, in slices; those that stay are never missing."""
        wanted, subscribed = self.get_subjects(), self._subscribed_subjects
        for number, subject in enumerate(wanted, 1):
            if subject not in subscribed:
                self._router.subscribe_internal(subject, self.fast_path)
                self._totals.config_changes += 1
                subscribed[subject] = None
            if number % SUBJECTS_PER_SLICE == 0:
                yield
        yield from self.iter_unsubscribe(keep=set(wanted))

    def iter_unsubscribe(self, keep: Set[bytes] = frozenset()) -> Iterator[None]:
        """Stop receiving messages, except on the subjects in `keep`, in slices."""
        subscribed = self._subscribed_subjects
        for number, subject in enumerate(list(subscribed), 1):
            if subject not in keep:
                del subscribed[subject]
                self._router.unsubscribe_internal(subject, self.fast_path)
                self._totals.config_changes += 1
            if number % SUBJECTS_PER_SLICE == 0:
                yield

    def consumer_configs(self) -> list[tuple[str, ConsumerConfig]]:
        """Return its consumers by name."""
        return [(name, consumer.config) for name, consumer in sorted(self.consumers.items())]

    def get_subjects(self) -> list[bytes]:
        """Return the subjects that it subscribes to."""
        return [subject.encode() for subject in self.config.subjects]

    def iter_close(self) -> Iterator[None]:
        """Stop, in slices: the stream is being deleted; group commit ignores it from now on."""
        self.closed = True
        self._totals.config_changes += 1
        self.sourcing.close()
        self.retention.stop()
        self.atomic_batches.clear()
        self.fast_ingest.clear()
        yield from self.consumer_set.iter_close()
        self.consumer_set.delete_stored()
        if self.schedules is not None:
            self.schedules.delete_all()

    # Publishing

    def transform_subject(self, subject: bytes) -> bytes:
        """Return the subject that a message is stored under."""
        return subject if self._transform is None else self._transform(subject) or subject

    def store(
        self,
        subject: bytes,
        header: bytes,
        payload: bytes,
        time_ns: int,
        ttl_s: int = 0,
        message_id: bytes = b"",
        rollup: bytes = b"",
        *,
        forced: bool = False,
    ) -> int:
        """Store a message that passed its checks, and apply its consequences.

        `forced` is for messages of the server itself, which use space that is always reserved.
        """
        log = self.log
        previous = log.get_last_seq(subject) if self._republisher is not None else 0
        append_record = log.append_unchecked if forced else log.append
        seq = append_record(subject, header, payload, time_ns, ttl_s)
        if self.retention.expires_messages:
            self.retention.track_expiry(seq, time_ns, ttl_s)
        self._record_message_id(message_id, seq, time_ns)
        if rollup:
            self.retention.apply_rollup(subject, seq, everything=rollup == b"all")
        elif self.config.max_msgs_per_subject > 0:
            self.retention.trim_subject(subject)
        if self._republisher is not None:
            self._republisher.republish(subject, header, payload, seq, time_ns, previous)
        if self.schedules is not None:
            self.schedules.on_stored(subject, header, seq, time_ns)
        return seq

    def store_unconditionally(self, subject: bytes, header: bytes, payload: bytes) -> int:
        """Store a message of the server, without acting on its headers; raise the error if it cannot be stored."""
        return self._publishing.store_unconditionally(subject, header, payload)

    def store_again(self, subject: bytes, header: bytes, payload: bytes) -> int:
        """Store a message that was in this stream before, on the subject that it had; of its headers only a TTL counts."""
        if self.schedules is not None and self.schedules.has_schedule(subject):
            problem = f"the schedule on {subject.decode('utf-8', 'replace')} would end"
            raise ApiError.STREAM_STORE_FAILED(err=problem)
        return self._publishing.store_again(subject, header, payload)

    def reserve_frame_space(self, size: int, count: int) -> None:
        """Make sure that this many bytes fit into the open frame; raise StoreFull if they do not."""
        if self.config.storage == "memory":
            return
        store = self.jetstream.store
        frame = store.open_frame
        size += count * _RECORD_OVERHEAD_BYTES
        if frame.closed or frame.pending_bytes + size > frame.max_bytes:
            store.extend_frame(size)
        store.reserve_large_space(size)

    def skip(
        self, subject: bytes, message_id: bytes, now_ns: int, rollup: bytes, header_map: Mapping[bytes, bytes]
    ) -> int:
        """Use up a sequence without storing a message that no consumer wants; its side effects still apply."""
        seq = self.log.last_seq + 1
        self.log.advance(seq)
        self._record_message_id(message_id, seq, now_ns)
        self.apply_side_effects(subject, rollup, header_map)
        return seq

    def apply_side_effects(self, subject: bytes, rollup: bytes, header_map: Mapping[bytes, bytes]) -> None:
        """Apply the side effects of a message that is not stored: rollup removals and schedule cancellation."""
        log = self.log
        if rollup == b"all":
            self.retention.remove_below(log.last_seq + 1)
        elif rollup:
            self.retention.remove(log.find_seqs(log.get_filter((subject,)), log.first_seq, log.last_seq))
        if header_map.get(schedules.NEXT) == schedules.PURGE:
            self.retention.purge(header_map[schedules.SCHEDULER], 0, 0)

    def _record_message_id(self, message_id: bytes, seq: int, time_ns: int) -> None:
        self.fast_path.last_message_id = message_id
        if message_id and self.dedup is not None:
            self.dedup.add(message_id, seq, time_ns)

    # Group commit

    def mark_dirty(self) -> None:
        """Schedule a commit after a change to the stream."""
        if not self.fast_path.dirty:
            self.fast_path.dirty = True
            self.group_commit.mark_dirty(self)

    def prepare_commit(self) -> None:
        """Enforce limits that are checked once per commit, and persist message ids together with their messages."""
        self.fast_path.dirty = False
        if self.closed:
            return
        self.retention.apply_limits()
        self.quota.schedule_server_check()
        if self.dedup is not None:
            self.dedup.save(self.clock.wall_ns())
        self.consumer_set.persist_dirty()
        self.sourcing.prepare_commit()

    def on_committed(self) -> None:
        """Deliver: the newest changes are durable."""
        self.consumer_set.on_committed()

    def on_messages_removed(self, seqs: np.ndarray | Sequence[int]) -> None:
        """Notify consumers that messages were removed."""
        self.consumer_set.on_messages_removed(seqs)

    def record_event(self, kind: str, text: str, count: int = 1) -> None:
        """Record an event for the web page and the metrics, which happened `count` times."""
        history = self.jetstream.event_history
        history.record(self.clock.wall_ns(), kind, self.name, text, count)

    # Lookups

    def find_last_seq(self, subject: bytes) -> int:
        """Return the newest sequence on a subject, which may have wildcards; 0 if there is none."""
        log = self.log
        if b"*" in subject or b">" in subject:
            return log.find_prev(log.get_filter((subject,)), log.last_seq)
        return log.get_last_seq(subject)

    def _load_message_id(self, seq: int) -> bytes:
        try:
            message = self.log.get(seq) if seq else None
        except CorruptData:  # the store reports it; the last id is unknown
            return b""
        return (headers.get(message[2], publish_checks.MSG_ID) or b"") if message else b""

    def compute_stored_size(self, subject: bytes, header: bytes, payload: bytes) -> int:
        """Return what a message counts against `max_bytes`, by nats-server's formula."""
        if self.config.storage == "memory":
            return 16 + len(subject) + len(header) + len(payload)
        return 30 + len(subject) + len(payload) + (4 + len(header) if header else 0)

    def get_stored_size(self, seq: int) -> int:
        """Return the same for a stored message."""
        message = self.log.get(seq)
        return self.compute_stored_size(message[1], message[2], message[3]) if message else 0
