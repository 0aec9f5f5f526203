"""Writes the contents of a backup to the store: state, consumers, messages, in this order.

Messages go straight into a new log, with their sequences and times. Invariant: until `complete` nothing of it is
visible, and a metadata key marks the log as unfinished; the frame that makes the stream visible removes the mark. So
after a crash the stream is either complete, or absent once the server has started. All errors are found before that
frame. See ADR 43.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from headrace.broker.consumers import consumer_storage
from headrace.broker.consumers.ack_state import AckState
from headrace.broker.consumers.ack_state_codec import AckStateDelta, pack_pairs, pack_set
from headrace.broker.consumers.ack_state_codec import encode_delta as encode_delta
from headrace.broker.consumers.consumer import Consumer
from headrace.broker.handlers.backup_reader import CONSUMERS_PREFIX, STATE_ENTRY
from headrace.broker.sourcing.source_positions import make_key as origins_key
from headrace.broker.sourcing.source_positions import parse_source_header
from headrace.broker.streams import publish_checks, schedules
from headrace.broker.streams.dedup import DEDUP_KEY, dedup_key, dedup_range_key
from headrace.broker.streams.stream_metadata import config_key
from headrace.errors import ProtocolError, RequestError
from headrace.jetstream_api.configs import ConsumerConfig, StreamConfig
from headrace.jetstream_api.decode import decode_lenient
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.requests import StreamState
from headrace.jetstream_api.times import SECOND_NS, TTL_INVALID, TTL_NEVER, parse_ttl
from headrace.jetstream_api.validation import consumers
from headrace.protocol import subjects
from headrace.protocol.backup_archive import END_ENTRY, BackupEntry
from headrace.protocol.json_exceptions import JSON_ERRORS
from headrace.storage import SEQ_MAX, StreamLog

if TYPE_CHECKING:
    from headrace.broker.handlers.api_context import ApiContext
    from headrace.broker.stream import Stream

UNFINISHED_KEY = b"restoring/"
ENTRY_MAX = 64 * 1024 * 1024
_TIME_MAX = (1 << 63) - 1
_SUBJECT_MAX = 0xFFFF  # the longest that a record can store
_NONE: Mapping[bytes, bytes] = {}


class SequencePair(msgspec.Struct):
    consumer_seq: int = 0
    stream_seq: int = 0


class BackupPending(msgspec.Struct, rename={"seq": "Sequence", "time_ns": "Timestamp"}):
    """A pending message: its consumer sequence, and when it was delivered."""

    seq: int = 0
    time_ns: int = 0


class HeadraceBackupState(msgspec.Struct):
    """What only Headrace knows of a consumer.

    `initial` is what is left of the initial last message of each subject, `resume` where to continue after that. `passed`
    has the blocked keys, each with its first passed-over sequence, and then the others replace those of the record.
    """

    initial: list[int] = []
    resume: int = 0
    delivered: SequencePair = msgspec.field(default_factory=SequencePair)
    pending: dict[int, BackupPending] = msgspec.field(default_factory=dict)
    redelivered: dict[int, int] = msgspec.field(default_factory=dict)
    next: int = 0
    passed: list[tuple[bytes, int]] = []


class ConsumerBackupState(msgspec.Struct):
    """The state of a consumer; nats-server writes and reads all but `headrace`."""

    delivered: SequencePair = msgspec.field(default_factory=SequencePair)
    ack_floor: SequencePair = msgspec.field(default_factory=SequencePair)
    pending: dict[int, BackupPending] = msgspec.field(default_factory=dict)
    redelivered: dict[int, int] = msgspec.field(default_factory=dict)
    headrace: HeadraceBackupState = msgspec.field(default_factory=HeadraceBackupState)


class ConsumerBackup(msgspec.Struct):
    config: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    state: ConsumerBackupState = msgspec.field(default_factory=ConsumerBackupState)


class RestoredConsumer(NamedTuple):
    """A consumer that is restored with its stream."""

    config: ConsumerConfig
    ack_state: AckState


class RestoreWriter:
    """A backup that is being restored."""

    def __init__(self, jetstream: ApiContext, config: StreamConfig) -> None:
        self._jetstream = jetstream
        self._store = jetstream.store
        self._metadata = jetstream.store.metadata
        self._quota = jetstream.quota
        self._clock = jetstream.clock
        self._registry = jetstream.registry
        self._config = config
        self._state: StreamState | None = None
        self._log: StreamLog | None = None
        self._bytes_left = self._quota.get_remaining(config.storage)
        self._consumers: dict[str, RestoredConsumer] = {}
        self._end_seen = False
        self._last_seq = self._last_ns = 0
        self._ids: list[tuple[bytes, int, int]] = []
        self._source_positions: dict[str, tuple[int, str]] = {}
        self._schedules: dict[bytes, tuple[bytes, int, int]] = {}

    def write(self, entry: BackupEntry) -> None:
        """Store the next entry; raise if it is invalid."""
        if self._log is None or self._state is None:
            self._start(entry)
        elif len(self._consumers) < self._state.consumer_count:
            self._add_consumer(entry)
        elif entry == END_ENTRY:
            self._end_seen = True
        elif not self._end_seen:
            self._append_message(self._log, entry)

    def check_complete(self) -> None:
        if not self._end_seen:
            raise ProtocolError("backup was truncated")

    # Contents

    def _start(self, entry: BackupEntry) -> None:
        if entry.name != STATE_ENTRY:
            raise ProtocolError("expected state.json first")
        state = _decode_state(StreamState, entry)
        if max(state.first_seq, state.last_seq) > SEQ_MAX or state.consumer_count < 0:
            raise ProtocolError("error in state.json: out of range")
        config = self._config
        self._log = self._store.create(
            config.name, memory=config.storage == "memory", first_seq=max(state.first_seq, 1)
        )
        self._log.set_compression(config.compression == "s2")
        self._state = state
        self._last_seq = self._log.last_seq
        if config.storage != "memory":
            self._metadata.put(unfinished_key_for(self._log), config.name.encode())

    def _add_consumer(self, entry: BackupEntry) -> None:
        name = entry.name.removeprefix(CONSUMERS_PREFIX).decode("utf-8", "replace")
        if not entry.name.startswith(CONSUMERS_PREFIX) or name in self._consumers:
            raise ProtocolError(f"expected consumer, found {entry.name.decode('utf-8', 'replace')!r}")
        try:
            backup = msgspec.json.decode(entry.payload, type=ConsumerBackup)
        except JSON_ERRORS as problem:
            raise ProtocolError(f"failed to decode consumer {name!r} state: {problem}") from None
        config = decode_lenient(ConsumerConfig, bytes(backup.config))
        if name not in (config.name, config.durable_name):
            config.name = name
        others = {each: restored.config for each, restored in self._consumers.items()}
        config = consumers.validate(config, self._config, others, limits=self._quota.limits)
        self._consumers[name] = RestoredConsumer(config, _make_ack_state(backup.state, config))

    def _append_message(self, log: StreamLog, entry: BackupEntry) -> None:
        seq, header = entry.seq, entry.header
        self._check(entry)
        time_ns = self._last_ns = max(entry.time_ns, self._last_ns)
        found = publish_checks.parse_nats_headers(header) if header else _NONE
        ttl_s = self._parse_ttl(found)
        self._last_seq = seq
        if (
            self._config.allow_msg_ttl
            and 0 < ttl_s < publish_checks.TTL_EXEMPT
            and time_ns + ttl_s * SECOND_NS <= self._clock.wall_ns()
        ):
            return
        if seq > log.last_seq + 1:
            log.advance(seq - 1)
        log.append(entry.name, header, entry.payload, time_ns, ttl_s)
        storage = self._config.storage
        if log.bytes > self._bytes_left or self._quota.is_server_full(storage):
            api_error = (
                ApiError.MEMORY_RESOURCES_EXCEEDED
                if storage == "memory"
                else ApiError.STORAGE_RESOURCES_EXCEEDED
            )
            raise api_error()
        if found:
            self._index_headers(entry, found, time_ns)
        elif self._schedules:
            self._schedules.pop(entry.name, None)

    def _check(self, entry: BackupEntry) -> None:
        seq, size = entry.seq, len(entry.header) + len(entry.payload)
        if not self._last_seq < seq <= SEQ_MAX:
            raise ProtocolError(f"message sequence {seq} out of order")
        if 0 <= self._config.max_msg_size < size:
            raise ProtocolError(f"message sequence {seq} exceeds maximum message size")
        if len(entry.name) > _SUBJECT_MAX or not subjects.is_valid(entry.name):
            raise ProtocolError(f"failed to parse message sequence {seq}: invalid subject")
        if not 0 <= entry.time_ns <= _TIME_MAX:
            raise ProtocolError(f"failed to parse message sequence {seq}")
        if entry.header and not (
            publish_checks.is_storable_header(entry.header) and entry.header.endswith(b"\r\n\r\n")
        ):
            raise ProtocolError(f"failed to parse message sequence {seq}: invalid header")

    def _parse_ttl(self, found: Mapping[bytes, bytes]) -> int:
        """Return the seconds to live; if TTLs are disabled they are stored for when they are enabled."""
        value = found.get(publish_checks.TTL)
        if not value:
            return 0
        kind, seconds = parse_ttl(value)
        if kind == TTL_INVALID:
            if not self._config.allow_msg_ttl:
                return 0
            raise ProtocolError("failed to parse message TTL")
        return (
            publish_checks.TTL_EXEMPT if kind == TTL_NEVER else min(seconds, publish_checks.TTL_SECONDS_MAX)
        )

    def _index_headers(self, entry: BackupEntry, found: Mapping[bytes, bytes], time_ns: int) -> None:
        """Collect what a stream stores besides its messages: ids, source positions and schedules, from the headers."""
        window_ns = self._config.duplicate_window
        message_id = found.get(publish_checks.MSG_ID)
        if message_id and time_ns > self._clock.wall_ns() - window_ns:
            self._ids.append((message_id, entry.seq, time_ns))
        if copied := parse_source_header(found.get(publish_checks.STREAM_SOURCE, b"")):
            self._source_positions[copied[0]] = copied[1].seq, copied[1].identity
        if found.get(schedules.SCHEDULE):
            self._schedules[entry.name] = entry.header, entry.seq, time_ns
        elif not found.get(schedules.SCHEDULER):
            self._schedules.pop(entry.name, None)

    # Completion

    def complete(self) -> Stream:
        """Create the stream, with everything that belongs to it, in one frame."""
        log, state = self._log, self._state
        assert log is not None
        assert state is not None
        if state.last_seq > log.last_seq:
            log.advance(state.last_seq)
        if self._config.storage != "memory":
            self._metadata.delete(unfinished_key_for(log))
        self._log = None
        return self._registry.register_stream(self._config, log, self._restore_state)

    def _restore_state(self, stream: Stream) -> None:
        """Restore ids, positions, schedules and consumers before the stream opens."""
        if stream.dedup is not None:
            for message_id, seq, time_ns in self._ids:
                stream.dedup.add(message_id, seq, time_ns)
        for index, (seq, identity) in self._source_positions.items():
            stream.sourcing.restore_position(index, seq, identity)
        if stream.schedules is not None:
            for subject, (header, seq, time_ns) in self._schedules.items():
                stream.schedules.update_from_message(subject, header, seq, time_ns)
        for name, restored in self._consumers.items():
            consumer = Consumer(stream, name, restored.config, stream.created_ns, restored.ack_state)
            stream.consumer_set.add(consumer)
            consumer.persist_config()
            consumer.persist_state()

    def discard(self) -> None:
        """Remove everything restored so far."""
        if self._log is not None:
            discard(self._jetstream, self._log)
            self._log = None


def unfinished_key_for(log: StreamLog) -> bytes:
    """Return the metadata key that marks a log as unfinished."""
    return UNFINISHED_KEY + b"%d" % log.ident


def discard(jetstream: ApiContext, log: StreamLog) -> None:
    """Remove an unfinished log and all its metadata."""
    metadata, ident = jetstream.store.metadata, log.ident
    keys = [
        unfinished_key_for(log),
        config_key(ident),
        dedup_key(ident),
        dedup_range_key(ident),
        origins_key(ident),
    ]
    for prefix in (DEDUP_KEY, consumer_storage.CONFIG_KEY, consumer_storage.ACK_STATE_KEY, schedules.KEY):
        keys += metadata.keys(prefix + b"%d/" % ident)
    for key in keys:
        if metadata.get(key) is not None or metadata.get_operands(key):
            metadata.delete(key)
    jetstream.store.delete(log)
    jetstream.group_commit.schedule()


def _decode_state(kind: type[StreamState], entry: BackupEntry) -> StreamState:
    try:
        return decode_lenient(kind, entry.payload)
    except RequestError as problem:
        raise ProtocolError(f"error in state.json: {problem.description}") from None


def _make_ack_state(state: ConsumerBackupState, config: ConsumerConfig) -> AckState:
    ack_state = AckState(1)
    try:
        ack_state.apply_delta(_encode_delta(state, config))
    except (ValueError, OverflowError) as problem:
        raise ProtocolError(f"failed to set consumer state: {problem}") from None
    ack_state.needs_snapshot = ack_state.dirty = True  # persist all of it
    return ack_state


def _encode_delta(state: ConsumerBackupState, config: ConsumerConfig) -> bytes:
    """Convert a record of a consumer to an ack state delta."""
    own = state.headrace
    keyed = own.passed or config.max_ack_pending_per_subject
    found = own if own.passed else state
    _check_sequences(state, own)
    # By consumer sequence with order per key, otherwise by stream sequence: see `AckState`.
    pending = sorted(found.pending.items(), key=lambda item: item[1].seq if keyed else item[0])
    stream = np.array([seq for seq, _ in pending], dtype=np.uint64)
    consumer = np.array([each.seq for _, each in pending], dtype=np.uint64)
    added, offset, added_consumer = pack_pairs(stream, consumer)
    return encode_delta(
        AckStateDelta(
            found.delivered.consumer_seq,
            found.delivered.stream_seq,
            own.next if own.passed else state.delivered.stream_seq + 1,
            state.ack_floor.consumer_seq,
            state.ack_floor.stream_seq,
            added=added,
            added_offset=offset,
            added_consumer=added_consumer,
            delivery_counts=sorted((seq, count) for seq, count in found.redelivered.items()),
            individual_deadlines=[(seq, each.time_ns + config.ack_wait) for seq, each in pending],
            last_per_subject_queue=pack_set(np.array(sorted(set(own.initial)), dtype=np.uint64)),
            resume_seq=own.resume,
            is_snapshot=True,
            passed_keys=own.passed,
        )
    )


def _check_sequences(state: ConsumerBackupState, own: HeadraceBackupState) -> None:
    """Raise ValueError if a number of a record cannot be a sequence."""
    pairs = (state.delivered, state.ack_floor, own.delivered)
    numbers = [number for pair in pairs for number in (pair.consumer_seq, pair.stream_seq)]
    for pending in (state.pending, own.pending):
        numbers += [*pending, *(each.seq for each in pending.values())]
    for counts in (state.redelivered, own.redelivered):
        numbers += [*counts, *counts.values()]
    numbers += [own.next, own.resume, *own.initial, *(first for _, first in own.passed)]
    if not all(0 <= number <= SEQ_MAX for number in numbers):
        raise ValueError("sequence out of range")


__all__ = ["ENTRY_MAX", "RestoreWriter", "discard", "unfinished_key_for"]
