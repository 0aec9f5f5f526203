"""A stream: its configuration, its log, and the way of a message into it.

Invariant: whatever a publisher is told waits, through the ticker, for the frame that holds the facts it speaks of.
It knows no sockets and no JSON; the API's handlers call its methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from headrace.api import errors, times
from headrace.api.configs import ConsumerConfig, StreamConfig
from headrace.broker import admission, counters, schedules
from headrace.broker.admission import Duplicate
from headrace.broker.batches import Batches, Member, batch_id
from headrace.broker.consumer import Consumer
from headrace.broker.duplicates import DuplicateWindow
from headrace.broker.fast_batches import FastBatches
from headrace.broker.mappings import mapping
from headrace.broker.readers import Readers
from headrace.broker.republish import Republisher
from headrace.broker.retention import Retention
from headrace.broker.schedules import Schedules
from headrace.broker.sourcing import Sourcing
from headrace.errors import Corrupt, RequestError, StoreError
from headrace.kernel import Lane
from headrace.probes import probe
from headrace.protocol import headers
from headrace.store import Facts, Log

if TYPE_CHECKING:
    from headrace.broker.jetstream import JetStream
    from headrace.broker.session import Session


_NONE: Mapping[bytes, bytes] = {}
#: What a record costs besides its contents.
_RECORD_BYTES = 64


class Stream:
    """One stream of the server."""

    __slots__ = (
        "_ages",
        "_bound",
        "_republish",
        "_transform",
        "ack_prefix",
        "batches",
        "closed",
        "config",
        "consumers",
        "created_ns",
        "duplicates",
        "fast",
        "jetstream",
        "lane",
        "log",
        "name",
        "name_bytes",
        "readers",
        "retention",
        "schedules",
        "sourcing",
        "ticker",
    )

    def __init__(self, jetstream: JetStream, config: StreamConfig, created_ns: int, log: Log) -> None:
        self.jetstream = jetstream
        self.ticker = jetstream.ticker
        self.name = config.name
        self.name_bytes = config.name.encode()
        self.created_ns = created_ns
        self.log = log
        self.fast = FastBatches(self, jetstream.fast_room)
        self.lane = self._make_lane()
        self.duplicates: DuplicateWindow | None = None
        self.schedules: Schedules | None = None
        self.consumers: dict[str, Consumer] = {}
        self.batches = Batches(self, jetstream.staging)
        self.retention = Retention(self)
        self.lane.note, self.lane.expire = self.retention.note, self.retention.expire_slice
        self.readers = Readers(self)
        self._bound: list[bytes] = []
        self.closed = False
        self.configure(config)
        self.sourcing = Sourcing(self)

    # Configuration

    def configure(self, config: StreamConfig) -> None:
        """Take a validated configuration; what was derived from the old one is derived anew."""
        self.config = config
        domain = self.jetstream.domain
        place = f'"domain":"{domain}",' if domain else ""
        self.ack_prefix = self.lane.ack_prefix = f'{{"stream":"{self.name}",{place}"seq":'.encode()
        transform, republish = config.subject_transform, config.republish
        self._transform = mapping(transform.src, transform.dest) if transform else None
        self._republish = Republisher(self.name_bytes, republish, self.ticker) if republish else None
        if not config.allow_atomic:
            self.batches.clear()
        if not config.allow_batched:
            self.fast.clear()
        self._ages = bool(config.max_age or config.allow_msg_ttl)
        self.choose_lane()
        self.lane.acks = not config.no_ack
        self.lane.follow = self._follow if config.max_age or config.max_msgs_per_subject > 0 else None
        self.lane.forget_lifetime()
        self._configure_duplicates(config.duplicate_window)
        self.retention.configure(config)
        if config.allow_msg_schedules and self.schedules is None:
            self.schedules = Schedules(self, self._facts(), self.jetstream.schedules_key(self.log))

    def choose_lane(self) -> None:
        """Let messages that need no decision take the short way."""
        self.lane.open = not admission.needs_care(self.jetstream, self.config)

    def _facts(self) -> Facts | None:
        """Where it keeps what has to survive; None for a stream in memory."""
        return None if self.config.storage == "memory" else self.jetstream.store.facts

    def _configure_duplicates(self, window_ns: int) -> None:
        if window_ns <= 0:
            self.duplicates = None
        elif self.duplicates is None:
            self.duplicates = DuplicateWindow(
                self._facts(), self.jetstream.duplicates_key(self.log), window_ns
            )
        else:
            self.duplicates.window_ns = window_ns
        self.lane.window = self.duplicates

    def _make_lane(self) -> Lane:
        lane = Lane(self.ticker.outbox)
        lane.append = self.log.append
        lane.now_ns = self.jetstream.now_ns
        lane.slow = self.offer
        lane.fast = self.fast.offer
        lane.lifetime = self._lifetime
        lane.refuse = self._refuse
        lane.touch = partial(self.ticker.touch, self)
        lane.last_message_id = self._stored_id(self.log.last_seq)
        return lane

    def listen(self) -> None:
        """Bind to the configured subjects."""
        self._bound = self.subjects()
        for subject in self._bound:
            self.jetstream.hub.subscribe_internal(subject, self.lane)

    def unlisten(self) -> None:
        """Take no more messages."""
        for subject in self._bound:
            self.jetstream.hub.unsubscribe_internal(subject, self.lane)
        self._bound = []

    def consumer_configs(self) -> list[tuple[str, ConsumerConfig]]:
        """Its consumers by name."""
        return [(name, consumer.config) for name, consumer in sorted(self.consumers.items())]

    def subjects(self) -> list[bytes]:
        """What it listens to."""
        return [subject.encode() for subject in self.config.subjects]

    def close(self) -> None:
        """It is being deleted; what the tick still wants of it is nothing."""
        self.closed = True
        self.unlisten()
        self.sourcing.close()
        self.readers.close()
        self.batches.clear()
        self.fast.clear()
        if self.schedules is not None:
            self.schedules.forget()
        self.retention.stop()

    # The way of a message

    def offer(self, session: Session, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """A publish that needs a decision: admit it or refuse it; the answer waits for its frame."""
        try:
            ack = self.admit(subject, header, payload)
        except Duplicate as duplicate:
            probe("a duplicate is answered")
            ack = b'%b%d,"duplicate": true}' % (self.ack_prefix, duplicate.seq)
        except RequestError as refusal:
            ack = errors.pub_ack_error(self.name, refusal)
        except StoreError as failure:
            self._refuse(reply, failure)
            return
        finally:
            self.changed()
        if not reply or self.config.no_ack:
            return
        if self.config.persist_mode == "async":  # asked for: the answer does not wait for the disk
            self.jetstream.hub.publish(reply, b"", b"", ack)
        else:
            self.ticker.hold(reply, b"", b"", ack)

    def _refuse(self, reply: bytes, failure: StoreError) -> None:
        """The store takes nothing."""
        if reply and not self.config.no_ack:
            probe("the store takes nothing")
            refusal = self.jetstream.store_refusal(failure)
            self.ticker.refuse(reply, errors.pub_ack_error(self.name, refusal))

    def _lifetime(self, text: bytes) -> int:
        """Seconds to live where a `Nats-TTL` is in order, -1 where it needs a decision."""
        kind, seconds = times.parse_ttl(text)
        if not self.config.allow_msg_ttl or kind not in (times.TTL_SECONDS, times.TTL_NEVER):
            return -1
        return admission.NEVER if kind == times.TTL_NEVER else min(seconds, admission.TTL_SECONDS_MAX)

    def _follow(self, subject: bytes, seq: int, time_ns: int, ttl_s: int) -> None:
        """What a message brings with it on a stream with an age or a limit a subject."""
        if self._ages:
            self.retention.note(seq, time_ns, ttl_s)
        if self.config.max_msgs_per_subject > 0:
            self.retention.trim_subject(subject)

    def admit(self, subject: bytes, header: bytes, payload: bytes) -> bytes:
        """All checks, then the store; returns the answer or raises it."""
        found = admission.nats_headers(header) if header else _NONE
        subject = self.renamed(subject)
        if found and (name := batch_id(found)):
            return self.batches.offer(Member(subject, header, payload, found), name)
        seq = self._admit_single(subject, header, payload, found)
        if self.config.allow_msg_counter:
            return counters.answer(self, seq)
        return b"%b%d}" % (self.ack_prefix, seq)

    def admit_member(self, subject: bytes, header: bytes, payload: bytes) -> int:
        """A member of a fast batch: checked and stored like a message of its own; its sequence."""
        lane = self.lane
        if lane.open and (not header or (b"Nats-" not in header and admission.plain_block(header))):
            now_ns = self.jetstream.now_ns()
            seq = self.log.append(subject, header, payload, now_ns)
            lane.last_message_id = b""
            if lane.follow is not None:
                lane.follow(subject, seq, now_ns, 0)
            return seq
        found = admission.nats_headers(header) if header else _NONE
        return self._admit_single(self.renamed(subject), header, payload, found)

    def renamed(self, subject: bytes) -> bytes:
        """The subject that a message is stored under."""
        return subject if self._transform is None else self._transform(subject) or subject

    def _admit_single(
        self, subject: bytes, header: bytes, payload: bytes, found: Mapping[bytes, bytes]
    ) -> int:
        if self.config.sealed:
            raise errors.error(10109)
        now_ns = self.jetstream.now_ns()
        if self._ages:
            self.retention.expire_slice(now_ns)
        message_id = rollup = b""
        ttl_s = 0
        if found:
            light = found.keys() <= admission.LIGHT
            if light:
                admission.check_light(self, found)
            else:
                admission.check_counter(self, found, payload)
                admission.check_expectations(self, subject, found)
                if schedules.SCHEDULE in header:
                    header, found = schedules.check(self, subject, header, found)
            message_id = admission.check_identity(self, found, now_ns)
            rollup = b"" if light else admission.check_rollup(self, found)
        if self.config.allow_msg_counter:
            header, payload = counters.raised(self, subject, header, found)
        admission.check_size(self, header, payload)
        if found:
            ttl_s = admission.read_ttl(self, found)
            header, ttl_s = admission.raise_ttl(self, header, ttl_s)
        if not self.retention.wanted(subject):
            return self.pass_over(subject, message_id, now_ns, rollup, found)
        if self.jetstream.bounded(self.config.storage):
            admission.check_account(self, subject, header, payload)
        if self.config.discard == "new":
            admission.check_room(self, subject, header, payload, rollup)
        if header:
            header = admission.strip_status(header)
        return self.keep(subject, header, payload, now_ns, ttl_s, message_id, rollup)

    def keep(
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
        """Store a message that passed its checks, with all that follows from it.

        `forced` is for what the server itself has to say, into the space that is always reserved.
        """
        log = self.log
        previous = log.last_of(subject) if self._republish is not None else 0
        store = log.put if forced else log.append
        seq = store(subject, header, payload, time_ns, ttl_s)
        if self._ages:
            self.retention.note(seq, time_ns, ttl_s)
        self._remember(message_id, seq, time_ns)
        if rollup:
            self.retention.roll_up(subject, seq, everything=rollup == b"all")
        elif self.config.max_msgs_per_subject > 0:
            self.retention.trim_subject(subject)
        if self._republish is not None:
            self._republish.send(subject, header, payload, seq, time_ns, previous)
        if self.schedules is not None:
            self.schedules.stored(subject, header, seq, time_ns)
        return seq

    def reserve(self, size: int, count: int) -> None:
        """Make sure that all of this fits into the frame under construction; raises Full if it does not."""
        if self.config.storage == "memory":
            return
        gate = self.jetstream.store.gate
        size += count * _RECORD_BYTES
        self.jetstream.store.shelf.check_space(size)
        if gate.closed or gate.pending + size > gate.limit:
            self.jetstream.store.make_room(size)

    def pass_over(
        self, subject: bytes, message_id: bytes, now_ns: int, rollup: bytes, found: Mapping[bytes, bytes]
    ) -> int:
        """Nobody wants it: the sequence is used up, nothing is stored; what it asks for happens all the same."""
        seq = self.log.last_seq + 1
        self.log.advance(seq)
        self._remember(message_id, seq, now_ns)
        self.heed(subject, rollup, found)
        return seq

    def heed(self, subject: bytes, rollup: bytes, found: Mapping[bytes, bytes]) -> None:
        """Do what a message that is not stored asks for: what it was to replace goes, and the schedule that it ends."""
        log = self.log
        if rollup == b"all":
            self.retention.drop_below(log.last_seq + 1)
        elif rollup:
            self.retention.drop(log.seqs(log.filter((subject,)), log.first_seq, log.last_seq))
        if found.get(schedules.NEXT) == schedules.PURGE:
            self.retention.purge(found[schedules.SCHEDULER], 0, 0)

    def _remember(self, message_id: bytes, seq: int, time_ns: int) -> None:
        self.lane.last_message_id = message_id
        if message_id and self.duplicates is not None:
            self.duplicates.add(message_id, seq, time_ns)

    # The tick

    def changed(self) -> None:
        """Something changed the stream: see that the frame gets sealed."""
        if not self.lane.touched:
            self.lane.touched = True
            self.ticker.touch(self)

    def settle(self) -> None:
        """Limits that are kept once a tick, and ids that have to be durable with their messages."""
        self.lane.touched = False
        if self.closed:
            return
        self.retention.make_room()
        self.jetstream.room.changed(self.jetstream)
        if self.duplicates is not None:
            self.duplicates.save()
        self.readers.save_all()
        self.sourcing.settle()

    def committed(self) -> None:
        """The newest changes are durable."""
        self.readers.committed()

    def forget(self, seqs: np.ndarray | Sequence[int]) -> None:
        """These messages are gone; whoever still counts on them has to know."""
        self.readers.forget(seqs)

    # Looking

    def last_matching(self, subject: bytes) -> int:
        """The newest sequence on a subject, which may have wildcards; 0 for none."""
        log = self.log
        if b"*" in subject or b">" in subject:
            return log.prev(log.filter((subject,)), log.last_seq)
        return log.last_of(subject)

    def _stored_id(self, seq: int) -> bytes:
        try:
            message = self.log.get(seq) if seq else None
        except Corrupt:  # the store reports it; the next message has an id of its own
            return b""
        return (headers.get(message[2], admission.MSG_ID) or b"") if message else b""

    def stored_size(self, subject: bytes, header: bytes, payload: bytes) -> int:
        """What a message counts against `max_bytes`, by the reference's formula."""
        if self.config.storage == "memory":
            return 16 + len(subject) + len(header) + len(payload)
        return 30 + len(subject) + len(payload) + (4 + len(header) if header else 0)

    def size_of(self, seq: int) -> int:
        """The same for a stored message."""
        message = self.log.get(seq)
        return self.stored_size(message[1], message[2], message[3]) if message else 0
