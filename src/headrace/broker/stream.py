"""A stream: its configuration, its log, and the publish path of a message into it.

Invariant: every reply to a publisher waits, through group commit, for the frame with the changes it refers to. It knows
no sockets and no JSON; the API's handlers call its methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from headrace._native import PublishFastPath
from headrace.broker.account_context import StreamJetStream
from headrace.broker.consumers.consumer import Consumer
from headrace.broker.consumers.consumer_set import ConsumerSet
from headrace.broker.routing.apply_transform import make_transform
from headrace.broker.sourcing.sourcing import Sourcing
from headrace.broker.streams import counters, publish_checks, schedules
from headrace.broker.streams.atomic_batch import AtomicBatches, BatchMember, get_batch_id
from headrace.broker.streams.dedup import StreamDedupWindow
from headrace.broker.streams.fast_ingest import FastIngestBatches
from headrace.broker.streams.publish_checks import DuplicateMessage
from headrace.broker.streams.republish import Republisher
from headrace.broker.streams.retention import Retention
from headrace.broker.streams.schedules import MessageSchedules
from headrace.code_probes import sometimes
from headrace.errors import CorruptData, RequestError, StoreError
from headrace.jetstream_api import errors, times
from headrace.jetstream_api.configs import ConsumerConfig, StreamConfig
from headrace.jetstream_api.errors import ApiError
from headrace.protocol import headers
from headrace.storage import MetadataStore, StreamLog

if TYPE_CHECKING:
    from headrace.broker.routing.session import Session


_NO_HEADERS: Mapping[bytes, bytes] = {}
#: Overhead of a record besides its contents.
_RECORD_OVERHEAD_BYTES = 64


class Stream:
    """One stream of the account."""

    __slots__ = (
        "_expires_messages",
        "_republisher",
        "_subscribed_subjects",
        "_transform",
        "atomic_batches",
        "closed",
        "config",
        "consumer_set",
        "consumers",
        "created_ns",
        "dedup",
        "fast_ingest",
        "fast_path",
        "group_commit",
        "jetstream",
        "log",
        "name",
        "name_bytes",
        "pub_ack_prefix",
        "retention",
        "schedules",
        "sourcing",
    )

    def __init__(
        self, jetstream: StreamJetStream, config: StreamConfig, created_ns: int, log: StreamLog
    ) -> None:
        self.jetstream = jetstream
        self.group_commit = jetstream.group_commit
        self.name = config.name
        self.name_bytes = config.name.encode()
        self.created_ns = created_ns
        self.log = log
        self.fast_ingest = FastIngestBatches(self, jetstream.fast_ingest_budget)
        self.fast_path = self._make_fast_path()
        self.dedup: StreamDedupWindow | None = None
        self.schedules: MessageSchedules | None = None
        self.consumers: dict[str, Consumer] = {}
        self.atomic_batches = AtomicBatches(self, jetstream.batch_budget)
        self.retention = Retention(self)
        self.fast_path.track_ttl, self.fast_path.expire_until = (
            self.retention.track_expiry,
            self.retention.expire_slice,
        )
        self.consumer_set = ConsumerSet(self)
        self._subscribed_subjects: list[bytes] = []
        self.closed = False
        self.configure(config)
        self.sourcing = Sourcing(self)

    # Configuration

    def configure(self, config: StreamConfig) -> None:
        """Apply a validated configuration and derive everything that depends on it."""
        self.config = config
        domain = self.jetstream.domain
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
        self._expires_messages = bool(config.max_age or config.allow_msg_ttl)
        self.update_fast_path()
        self.fast_path.sends_acks = not config.no_ack
        self.fast_path.after_append = (
            self._after_append if config.max_age or config.max_msgs_per_subject > 0 else None
        )
        self.fast_path.reset_ttl_cache()
        self._configure_dedup(config.duplicate_window)
        self.retention.configure(config)
        if config.allow_msg_schedules and self.schedules is None:
            self.schedules = MessageSchedules(
                self, self._metadata_store(), self.jetstream.schedules_key(self.log)
            )

    def update_fast_path(self) -> None:
        """Enable the fast path if messages without special headers need no checks."""
        self.fast_path.enabled = not publish_checks.requires_slow_path(self.jetstream, self.config)

    def _metadata_store(self) -> MetadataStore | None:
        """Return the store for durable state; None for a stream in memory."""
        return None if self.config.storage == "memory" else self.jetstream.store.metadata

    def _configure_dedup(self, window_ns: int) -> None:
        if window_ns <= 0:
            self.dedup = None
        elif self.dedup is None:
            self.dedup = StreamDedupWindow(
                self._metadata_store(), self.jetstream.dedup_key(self.log), window_ns
            )
        else:
            self.dedup.window_ns = window_ns
        self.fast_path.dedup = self.dedup

    def _make_fast_path(self) -> PublishFastPath:
        fast_path = PublishFastPath(self.group_commit.pending_replies)
        fast_path.append = self.log.append
        fast_path.now_ns = self.jetstream.now_ns
        fast_path.on_slow_path = self.on_publish
        fast_path.on_fast_ingest = self.fast_ingest.on_publish
        fast_path.parse_ttl = self._parse_ttl
        fast_path.on_store_error = self._reply_store_error
        fast_path.on_first_change = partial(self.group_commit.mark_dirty, self)
        fast_path.last_message_id = self._load_message_id(self.log.last_seq)
        return fast_path

    def subscribe(self) -> None:
        """Subscribe to the configured subjects."""
        self._subscribed_subjects = self.get_subjects()
        for subject in self._subscribed_subjects:
            self.jetstream.router.subscribe_internal(subject, self.fast_path)

    def unsubscribe(self) -> None:
        """Stop receiving messages."""
        for subject in self._subscribed_subjects:
            self.jetstream.router.unsubscribe_internal(subject, self.fast_path)
        self._subscribed_subjects = []

    def consumer_configs(self) -> list[tuple[str, ConsumerConfig]]:
        """Return its consumers by name."""
        return [(name, consumer.config) for name, consumer in sorted(self.consumers.items())]

    def get_subjects(self) -> list[bytes]:
        """Return the subjects that it subscribes to."""
        return [subject.encode() for subject in self.config.subjects]

    def close(self) -> None:
        """Stop: the stream is being deleted; group commit ignores it from now on."""
        self.closed = True
        self.unsubscribe()
        self.sourcing.close()
        self.consumer_set.close()
        self.atomic_batches.clear()
        self.fast_ingest.clear()
        if self.schedules is not None:
            self.schedules.delete_all()
        self.retention.stop()

    # Publishing

    def on_publish(
        self, session: Session, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        """Process a publish that needs checks: store or reject it; the reply waits for its frame."""
        try:
            ack = self.process_publish(subject, header, payload)
        except DuplicateMessage as duplicate:
            sometimes("a duplicate is answered")
            ack = b'%b%d,"duplicate": true}' % (self.pub_ack_prefix, duplicate.seq)
        except RequestError as api_error:
            ack = errors.encode_pub_ack_error(self.name, api_error)
        except StoreError as store_error:
            self._reply_store_error(reply, store_error)
            return
        finally:
            self.mark_dirty()
        if not reply or self.config.no_ack:
            return
        if self.config.persist_mode == "async":  # as configured, the reply does not wait for the disk
            self.jetstream.router.publish(reply, b"", b"", ack)
        else:
            self.group_commit.reply_after_commit(reply, b"", b"", ack)

    def _reply_store_error(self, reply: bytes, store_error: StoreError) -> None:
        """Reply with an error if the store accepts nothing."""
        if reply and not self.config.no_ack:
            sometimes("the store takes nothing")
            api_error = self.jetstream.to_api_error(store_error)
            self.group_commit.reply_error(reply, errors.encode_pub_ack_error(self.name, api_error))

    def _parse_ttl(self, text: bytes) -> int:
        """Return the seconds to live of a valid `Nats-TTL`, or -1 if the slow path has to decide."""
        kind, seconds = times.parse_ttl(text)
        if not self.config.allow_msg_ttl or kind not in (times.TTL_SECONDS, times.TTL_NEVER):
            return -1
        return (
            publish_checks.TTL_EXEMPT
            if kind == times.TTL_NEVER
            else min(seconds, publish_checks.TTL_SECONDS_MAX)
        )

    def _after_append(self, subject: bytes, seq: int, time_ns: int, ttl_s: int) -> None:
        """Track the age of a message and apply the limit per subject."""
        if self._expires_messages:
            self.retention.track_expiry(seq, time_ns, ttl_s)
        if self.config.max_msgs_per_subject > 0:
            self.retention.trim_subject(subject)

    def process_publish(self, subject: bytes, header: bytes, payload: bytes) -> bytes:
        """Check and store a message; return the reply or raise the error."""
        header_map = publish_checks.parse_nats_headers(header) if header else _NO_HEADERS
        subject = self.transform_subject(subject)
        if header_map and (name := get_batch_id(header_map)):
            return self.atomic_batches.on_member(BatchMember(subject, header, payload, header_map), name)
        seq = self._process_single(subject, header, payload, header_map)
        if self.config.allow_msg_counter:
            return counters.encode_pub_ack(self, seq)
        return b"%b%d}" % (self.pub_ack_prefix, seq)

    def process_fast_ingest(self, subject: bytes, header: bytes, payload: bytes) -> int:
        """Check and store a member of a fast-ingest batch like a single message; return its sequence."""
        fast_path = self.fast_path
        if fast_path.enabled and (
            not header or (b"Nats-" not in header and publish_checks.is_storable_header(header))
        ):
            now_ns = self.jetstream.now_ns()
            seq = self.log.append(subject, header, payload, now_ns)
            fast_path.last_message_id = b""
            if fast_path.after_append is not None:
                fast_path.after_append(subject, seq, now_ns, 0)
            return seq
        header_map = publish_checks.parse_nats_headers(header) if header else _NO_HEADERS
        return self._process_single(self.transform_subject(subject), header, payload, header_map)

    def transform_subject(self, subject: bytes) -> bytes:
        """Return the subject that a message is stored under."""
        return subject if self._transform is None else self._transform(subject) or subject

    def _process_single(
        self, subject: bytes, header: bytes, payload: bytes, header_map: Mapping[bytes, bytes]
    ) -> int:
        if self.config.sealed:
            raise ApiError.STREAM_SEALED()
        now_ns = self.jetstream.now_ns()
        if self._expires_messages:
            self.retention.expire_slice(now_ns)
        message_id = rollup = b""
        ttl_s = 0
        if header_map:
            cheap = header_map.keys() <= publish_checks.CHEAP_HEADERS
            if cheap:
                publish_checks.check_id_and_ttl(self, header_map)
            else:
                publish_checks.check_counter(self, header_map, payload)
                publish_checks.check_expectations(self, subject, header_map)
                if schedules.SCHEDULE in header:
                    header, header_map = schedules.check_schedule(self, subject, header, header_map)
            message_id = publish_checks.check_message_id(self, header_map, now_ns)
            rollup = b"" if cheap else publish_checks.check_rollup(self, header_map)
        if self.config.allow_msg_counter:
            header, payload = counters.apply_increment(self, subject, header, header_map)
        publish_checks.check_size(self, header, payload)
        if header_map:
            ttl_s = publish_checks.parse_ttl_header(self, header_map)
            header, ttl_s = publish_checks.apply_min_ttl(self, header, ttl_s)
        if not self.retention.has_interest(subject):
            return self.skip(subject, message_id, now_ns, rollup, header_map)
        if self.jetstream.has_quota(self.config.storage):
            publish_checks.check_account_quota(self, subject, header, payload)
        if self.config.discard == "new":
            publish_checks.check_discard_new(self, subject, header, payload, rollup)
        if header:
            header = publish_checks.strip_status(header)
        return self.store(subject, header, payload, now_ns, ttl_s, message_id, rollup)

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
        if self._expires_messages:
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

    def reserve_frame_space(self, size: int, count: int) -> None:
        """Make sure that this many bytes fit into the open frame; raise StoreFull if they do not."""
        if self.config.storage == "memory":
            return
        gate = self.jetstream.store.open_frame
        size += count * _RECORD_OVERHEAD_BYTES
        self.jetstream.store.check_large_space(size)
        if gate.closed or gate.pending_bytes + size > gate.max_bytes:
            self.jetstream.store.extend_frame(size)

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
        self.jetstream.server_quota.schedule_check(self.jetstream)
        if self.dedup is not None:
            self.dedup.save()
        self.consumer_set.persist_dirty()
        self.sourcing.prepare_commit()

    def on_committed(self) -> None:
        """Deliver: the newest changes are durable."""
        self.consumer_set.on_committed()

    def on_messages_removed(self, seqs: np.ndarray | Sequence[int]) -> None:
        """Notify consumers that messages were removed."""
        self.consumer_set.on_messages_removed(seqs)

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
