"""What a backup holds, on its way back into the store: state, consumers, messages, in this order.

Messages go straight into a new log, with their sequences and times. Invariant: until `complete` nobody sees anything
of it, and a fact marks the log as unfinished; the frame that makes the stream visible takes the mark away. So after a
crash the stream is wholly there, or absent once the server has started. Whatever is wrong is found before that frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from headrace.api import consumers, errors
from headrace.api.configs import ConsumerConfig, StreamConfig
from headrace.api.decode import decode_lenient
from headrace.api.requests import StreamState
from headrace.api.times import SECOND, TTL_INVALID, TTL_NEVER, parse_ttl
from headrace.broker import admission, consumer_facts, schedules
from headrace.broker.consumer import Consumer
from headrace.broker.positions import key_of as origins_key
from headrace.broker.positions import read_source
from headrace.broker.progress import Progress
from headrace.broker.progress_codec import Delta, pack_pairs, pack_set
from headrace.broker.progress_codec import encode as encode_delta
from headrace.broker.snapshots import CONSUMERS, STATE
from headrace.errors import ProtocolError, RequestError
from headrace.protocol import subjects
from headrace.protocol.archives import END, Entry
from headrace.protocol.bodies import UNREADABLE
from headrace.store import SEQ_MAX, Log

if TYPE_CHECKING:
    from headrace.broker.jetstream import JetStream
    from headrace.broker.stream import Stream

KEY = b"restoring/"
ENTRY_MAX = 64 * 1024 * 1024
_TIME_MAX = (1 << 63) - 1
_SUBJECT_MAX = 0xFFFF  # what a record can say
_NONE: Mapping[bytes, bytes] = {}


class SequencePair(msgspec.Struct):
    consumer_seq: int = 0
    stream_seq: int = 0


class Waiting(msgspec.Struct, rename={"seq": "Sequence", "time_ns": "Timestamp"}):
    """A message that waits for its acknowledgement: its consumer sequence, and when it was delivered."""

    seq: int = 0
    time_ns: int = 0


class Ahead(msgspec.Struct):
    """What is left of a start with the last message of each subject, and where to go on after it."""

    initial: list[int] = []
    resume: int = 0


class ConsumerState(msgspec.Struct):
    """How far a consumer was; the reference writes and reads all but `headrace`."""

    delivered: SequencePair = msgspec.field(default_factory=SequencePair)
    ack_floor: SequencePair = msgspec.field(default_factory=SequencePair)
    pending: dict[int, Waiting] = msgspec.field(default_factory=dict)
    redelivered: dict[int, int] = msgspec.field(default_factory=dict)
    headrace: Ahead | None = None


class ConsumerBackup(msgspec.Struct):
    config: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))
    state: ConsumerState = msgspec.field(default_factory=ConsumerState)


class Reader(NamedTuple):
    """A consumer that comes back with its stream."""

    config: ConsumerConfig
    progress: Progress


class Contents:
    """A backup as far as it has come."""

    def __init__(self, jetstream: JetStream, config: StreamConfig) -> None:
        self._jetstream = jetstream
        self._config = config
        self._state: StreamState | None = None
        self._log: Log | None = None
        self._room = self._left()
        self._readers: dict[str, Reader] = {}
        self._whole = False
        self._last_seq = self._last_ns = 0
        self._ids: list[tuple[bytes, int, int]] = []
        self._origins: dict[str, tuple[int, str]] = {}
        self._plans: dict[bytes, tuple[bytes, int, int]] = {}

    def take(self, entry: Entry) -> None:
        """The next entry; raises what is wrong with it."""
        if self._log is None or self._state is None:
            self._begin(entry)
        elif len(self._readers) < self._state.consumer_count:
            self._consumer(entry)
        elif entry == END:
            self._whole = True
        elif not self._whole:
            self._message(self._log, entry)

    def _left(self) -> int:
        """How many bytes the account, and the server, have left for it."""
        jetstream, storage = self._jetstream, self._config.storage
        cap, left = jetstream.cap(storage), jetstream.room.left(storage)
        return min(cap - jetstream.usage(storage)[0], left) if cap >= 0 else left

    def check_whole(self) -> None:
        if not self._whole:
            raise ProtocolError("backup was truncated")

    # What is in it

    def _begin(self, entry: Entry) -> None:
        if entry.name != STATE:
            raise ProtocolError("expected state.json first")
        state = _read(StreamState, entry)
        if max(state.first_seq, state.last_seq) > SEQ_MAX or state.consumer_count < 0:
            raise ProtocolError("error in state.json: out of range")
        store, config = self._jetstream.store, self._config
        self._log = store.create(
            config.name, memory=config.storage == "memory", first_seq=max(state.first_seq, 1)
        )
        self._state = state
        self._last_seq = self._log.last_seq
        if config.storage != "memory":
            store.facts.put(mark_of(self._log), config.name.encode())

    def _consumer(self, entry: Entry) -> None:
        name = entry.name.removeprefix(CONSUMERS).decode("utf-8", "replace")
        if not entry.name.startswith(CONSUMERS) or name in self._readers:
            raise ProtocolError(f"expected consumer, found {entry.name.decode('utf-8', 'replace')!r}")
        try:
            backup = msgspec.json.decode(entry.payload, type=ConsumerBackup)
        except UNREADABLE as problem:
            raise ProtocolError(f"failed to decode consumer {name!r} state: {problem}") from None
        config = decode_lenient(ConsumerConfig, bytes(backup.config))
        if name not in (config.name, config.durable_name):
            config.name = name
        others = {each: reader.config for each, reader in self._readers.items()}
        config = consumers.settle(config, self._config, others, limits=self._jetstream.limits)
        self._readers[name] = Reader(config, _progress(backup.state, config))

    def _message(self, log: Log, entry: Entry) -> None:
        seq, header = entry.seq, entry.header
        self._check(entry)
        time_ns = self._last_ns = max(entry.time_ns, self._last_ns)
        found = admission.nats_headers(header) if header else _NONE
        ttl_s = self._ttl(found)
        self._last_seq = seq
        if 0 < ttl_s < admission.NEVER and time_ns + ttl_s * SECOND <= self._jetstream.clock_ns():
            return
        if seq > log.last_seq + 1:
            log.advance(seq - 1)
        log.append(entry.name, header, entry.payload, time_ns, ttl_s)
        storage = self._config.storage
        if log.bytes > self._room or storage in self._jetstream.room.full:
            raise errors.error(10028 if storage == "memory" else 10047)
        if found:
            self._learn(entry, found, time_ns)
        elif self._plans:
            self._plans.pop(entry.name, None)

    def _check(self, entry: Entry) -> None:
        seq, size = entry.seq, len(entry.header) + len(entry.payload)
        if not self._last_seq < seq <= SEQ_MAX:
            raise ProtocolError(f"message sequence {seq} out of order")
        if 0 <= self._config.max_msg_size < size:
            raise ProtocolError(f"message sequence {seq} exceeds maximum message size")
        if len(entry.name) > _SUBJECT_MAX or not subjects.valid(entry.name):
            raise ProtocolError(f"failed to parse message sequence {seq}: invalid subject")
        if not 0 <= entry.time_ns <= _TIME_MAX:
            raise ProtocolError(f"failed to parse message sequence {seq}")
        if entry.header and not (admission.plain_block(entry.header) and entry.header.endswith(b"\r\n\r\n")):
            raise ProtocolError(f"failed to parse message sequence {seq}: invalid header")

    def _ttl(self, found: Mapping[bytes, bytes]) -> int:
        value = found.get(admission.TTL)
        if not value or not self._config.allow_msg_ttl:
            return 0
        kind, seconds = parse_ttl(value)
        if kind == TTL_INVALID:
            raise ProtocolError("failed to parse message TTL")
        return admission.NEVER if kind == TTL_NEVER else min(seconds, admission.TTL_SECONDS_MAX)

    def _learn(self, entry: Entry, found: Mapping[bytes, bytes], time_ns: int) -> None:
        """What a stream knows besides its messages is in their headers."""
        window_ns = self._config.duplicate_window
        message_id = found.get(admission.MSG_ID)
        if message_id and time_ns > self._jetstream.clock_ns() - window_ns:
            self._ids.append((message_id, entry.seq, time_ns))
        if copied := read_source(found.get(admission.STREAM_SOURCE, b"")):
            self._origins[copied[0]] = copied[1].seq, copied[1].identity
        if found.get(schedules.SCHEDULE):
            self._plans[entry.name] = entry.header, entry.seq, time_ns
        elif not found.get(schedules.SCHEDULER):
            self._plans.pop(entry.name, None)

    # The end

    def complete(self) -> Stream:
        """Make the stream, with all that belongs to it, in one frame."""
        jetstream, log, state = self._jetstream, self._log, self._state
        assert log is not None
        assert state is not None
        if state.last_seq > log.last_seq:
            log.advance(state.last_seq)
        if self._config.storage != "memory":
            jetstream.store.facts.delete(mark_of(log))
        self._log = None
        return jetstream.adopt_stream(self._config, log, self._equip)

    def _equip(self, stream: Stream) -> None:
        """Before it opens: its ids, positions, schedules and consumers."""
        if stream.duplicates is not None:
            for message_id, seq, time_ns in self._ids:
                stream.duplicates.add(message_id, seq, time_ns)
        for index, (seq, identity) in self._origins.items():
            stream.sourcing.positions.set(index, seq, identity)
        if stream.schedules is not None:
            for subject, (header, seq, time_ns) in self._plans.items():
                stream.schedules.learn(subject, header, seq, time_ns)
        for name, reader in self._readers.items():
            consumer = Consumer(stream, name, reader.config, stream.created_ns, reader.progress)
            stream.readers.add(consumer)
            consumer.keep()
            consumer.save()

    def discard(self) -> None:
        """Nothing of it stays."""
        if self._log is not None:
            discard(self._jetstream, self._log)
            self._log = None


def mark_of(log: Log) -> bytes:
    """The fact that says that a log is not finished."""
    return KEY + b"%d" % log.ident


def discard(jetstream: JetStream, log: Log) -> None:
    """Remove a log that was not finished, with everything that was noted for it."""
    facts, ident = jetstream.store.facts, log.ident
    keys = [mark_of(log), jetstream.config_key(ident), jetstream.duplicates_key(log), origins_key(ident)]
    for prefix in (consumer_facts.CONFIG_KEY, consumer_facts.PROGRESS_KEY, schedules.KEY):
        keys += facts.keys(prefix + b"%d/" % ident)
    for key in keys:
        if facts.get(key) is not None or facts.notes(key):
            facts.delete(key)
    jetstream.store.delete(log)
    jetstream.ticker.arm()


def _read(kind: type[StreamState], entry: Entry) -> StreamState:
    try:
        return decode_lenient(kind, entry.payload)
    except RequestError as problem:
        raise ProtocolError(f"error in state.json: {problem.description}") from None


def _progress(state: ConsumerState, config: ConsumerConfig) -> Progress:
    progress = Progress(1)
    try:
        progress.apply(_delta(state, config))
    except (ValueError, OverflowError) as problem:
        raise ProtocolError(f"failed to set consumer state: {problem}") from None
    progress.afresh = progress.changed = True  # all of it is to be written down
    return progress


def _delta(state: ConsumerState, config: ConsumerConfig) -> bytes:
    """The reference's record of a consumer as one of ours."""
    pending = sorted(state.pending.items())
    numbers = [state.delivered.consumer_seq, state.delivered.stream_seq, state.ack_floor.consumer_seq]
    numbers += [state.ack_floor.stream_seq, *state.pending, *(each.seq for each in state.pending.values())]
    ahead = state.headrace or Ahead()
    numbers += [ahead.resume, *ahead.initial, *state.redelivered, *state.redelivered.values()]
    if not all(0 <= number <= SEQ_MAX for number in numbers):
        raise ValueError("a sequence out of range")
    stream = np.array([seq for seq, _ in pending], dtype=np.uint64)
    consumer = np.array([each.seq for _, each in pending], dtype=np.uint64)
    added, offset, added_consumer = pack_pairs(stream, consumer)
    return encode_delta(
        Delta(
            state.delivered.consumer_seq,
            state.delivered.stream_seq,
            state.delivered.stream_seq + 1,
            state.ack_floor.consumer_seq,
            state.ack_floor.stream_seq,
            added=added,
            added_offset=offset,
            added_consumer=added_consumer,
            counts=sorted((seq, count) for seq, count in state.redelivered.items()),
            own=[(seq, each.time_ns + config.ack_wait) for seq, each in pending],
            initial=pack_set(np.array(sorted(set(ahead.initial)), dtype=np.uint64)),
            resume=ahead.resume,
            afresh=True,
        )
    )


__all__ = ["ENTRY_MAX", "Contents", "discard", "mark_of"]
