"""Simulates one consumer that keeps order per key: workers that ack, nak, stall and crash, and a server that crashes.

Owns the course of a run; `keyed_config` decides what exists, `keyed_actions` what happens, `KeyOrderChecker` is the
model. The same seed gives the same run. First faults occur; then workers acknowledge everything, and nothing may be
left.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from headrace._native import split_ack_subject
from headrace.protocol import dead_letter_headers as dead
from headrace.protocol import headers
from headrace.sim.checkers.dead_letter_checker import DeadLetterChecker
from headrace.sim.checkers.key_order_checker import KeyOrderChecker
from headrace.sim.checkers.store_invariants import Violation
from headrace.sim.clock import SECOND_NS
from headrace.sim.network.sim_client import ReceivedMsg, SimClient
from headrace.sim.network.single_server import SingleServer
from headrace.sim.sim_broker import SimBroker
from headrace.sim.workloads.keyed_actions import ACTIONS, pull
from headrace.sim.workloads.keyed_config import (
    CONSUMER,
    DEAD_LETTERS,
    OTHER,
    PUSH_SUBJECT,
    STREAM,
    derive_keyed_options,
    find_key,
)
from headrace.storage import StoreOptions

_HEAL_ROUNDS = 1000


@dataclass
class Worker:
    """A client that receives messages; `received` are those it has not settled, with their delivery counts."""

    client: SimClient
    inbox: bytes
    received: list[tuple[int, int, bytes]] = field(default_factory=list)
    receives_push: bool = False


class KeyedSimulation:
    """The run of one seed."""

    def __init__(self, seed: int, store: StoreOptions) -> None:
        self.seed = seed
        self.options = derive_keyed_options(seed, tuple(ACTIONS))
        self.rng = Random(f"keyed {seed}")
        random.seed(f"keyed jitter {seed}")  # used by the broker itself
        self.servers = SingleServer(f"keyed {seed}", store)
        self.config = dict(self.options.consumer)
        self.checker = KeyOrderChecker(
            self.config["max_ack_pending_per_subject"],
            self.config.get("max_deliver", -1),
            lambda subject: find_key(self.config, subject),
            self._is_given_up,
        )
        self.published: dict[int, tuple[str, bool]] = {}  # request -> subject, whether the consumer needs it
        self.stored: dict[int, str] = {}  # sequence -> subject, of confirmed publishes
        self.workers: list[Worker] = []
        self.trace: list[str] = []
        self._cids = 0
        self.dead_letters = DeadLetterChecker()
        self.last_number = 0
        self._set_up()

    @property
    def broker(self) -> SimBroker:
        return self.servers.local

    @property
    def stream(self) -> Any:
        return self.broker.jetstream.streams[STREAM]

    @property
    def consumer(self) -> Any:
        return self.stream.consumers[CONSUMER]

    def _is_given_up(self, seq: int) -> bool:
        """Return whether the server stopped to deliver a message; a late ack may have removed its count since."""
        ack_state, limit = self.consumer.ack_state, self.config.get("max_deliver", -1)
        last = self.checker.delivered.get(seq)
        deliveries = max(ack_state.delivery_counts.get(seq, 0), last.deliveries if last is not None else 0)
        return 0 < limit <= deliveries and seq not in ack_state.pending

    # Set-up

    def _set_up(self) -> None:
        self.call(f"STREAM.CREATE.{STREAM}", **self.options.stream)
        self.call(f"STREAM.CREATE.{DEAD_LETTERS}", **self.options.dead_letters)
        if self.options.stream["retention"] != "interest":
            for _ in range(self.rng.randrange(12)):
                ACTIONS["publish"](self)
            self.servers.run_until_idle()
        self.create_consumer()
        self._create_other()
        self.note_stored()
        self.checker.start_seq = self.config.get("opt_start_seq", 0)
        self.checker.skipped = self._find_skipped_at_start()
        self.connect_all()

    def _create_other(self) -> None:
        if self.options.has_other_consumer:
            other = {"durable_name": OTHER, "ack_policy": "explicit"}
            self.call(f"CONSUMER.CREATE.{STREAM}.{OTHER}", stream_name=STREAM, config=other)

    def create_consumer(self) -> None:
        """Create the consumer, or update it."""
        self.call(f"CONSUMER.CREATE.{STREAM}.{CONSUMER}", stream_name=STREAM, config=self.config)

    def _find_skipped_at_start(self) -> set[int]:
        live = self.checker.live
        if self.config.get("deliver_policy") == "last_per_subject":
            lasts: dict[str, int] = {}
            for seq in sorted(live):
                lasts[self.checker.subjects[seq]] = seq
            return live - set(lasts.values())
        return set()

    def call(self, endpoint: str, **body: Any) -> Any:
        """Call the API; the response must not be an error."""
        response = self.broker.call(endpoint, **body)
        if "error" in response:
            raise Violation(f"{endpoint} was rejected: {response['error']}")
        return response

    def connect_all(self) -> None:
        """Connect all workers again; what they had is lost."""
        for worker in self.workers:
            worker.client.disconnect()
        self.workers = []
        for _ in range(self.options.workers):
            self.workers.append(self.connect())

    def connect(self) -> Worker:
        """Connect a worker."""
        self._cids += 1
        client = SimClient(self.broker, self._cids, self.rng)
        worker = Worker(client, b"")
        worker.receives_push = not any(other.client.open and other.receives_push for other in self.workers)
        is_pushed = "deliver_subject" in self.config and worker.receives_push
        subject = PUSH_SUBJECT.encode() if is_pushed else b""
        worker.inbox = client.subscribe(lambda msg: self.on_message(worker, msg), subject)
        return worker

    # Messages

    def on_message(self, worker: Worker, msg: ReceivedMsg) -> None:
        """Check a delivery, and give it to the worker."""
        parts = split_ack_subject(msg.reply)
        if parts is None:
            return  # the status of a pull request
        _, count, seq, _ = parts
        self.trace.append(f"deliver {seq} {msg.subject.decode()} #{count} to {worker.client.cid}")
        self.note_stored()
        self.checker.on_delivery(seq, msg.subject.decode(), count)
        self.dead_letters.on_delivery(seq, count, self.checker.epoch)
        worker.received.append((seq, count, msg.reply))

    def note_stored(self) -> None:
        """Tell the model what the stream contains, and which publishes were confirmed."""
        log = self.stream.log
        index = log.subject_index
        seqs, subject_ids = log.get_subject_ids(np.arange(log.first_seq, log.last_seq + 1, dtype=np.uint64))
        names = [index.name(sid).decode() for sid in subject_ids.tolist()]
        self.checker.on_stored(dict(zip(seqs.tolist(), names, strict=True)))
        self._note_dead_letters()
        replies = self.broker.replies
        for request in [each for each in self.published if each in replies]:
            body, (subject, is_needed) = replies.pop(request).json, self.published.pop(request)
            if "error" not in body:
                self.stored[body["seq"]] = subject
                if not is_needed or body["seq"] < self.checker.start_seq:
                    self.checker.removable.add(body["seq"])

    def _note_dead_letters(self) -> None:
        found = {}
        for at, message in self.read(DEAD_LETTERS).items():
            own = dict(headers.parse_pairs(message[2]))
            if own.get(b"Own", b"kept") != b"kept" or b"Nats-Msg-Id" in own:
                raise Violation(f"dead letter {at} has wrong headers: {own}")
            found[at] = int(own[dead.SEQ]), int(own[dead.DELIVERIES])
        self.dead_letters.on_stored(found, self.checker.epoch)
        self.checker.done |= {seq for seq, _ in found.values() if self.dead_letters.is_dead(seq)}

    def read(self, name: str) -> dict[int, Any]:
        """Return the messages of a stream by sequence; none if it does not exist."""
        stream = self.broker.jetstream.streams.get(name)
        if stream is None:
            return {}
        seqs = stream.log.find_seqs(None, stream.log.first_seq, stream.log.last_seq).tolist()
        return {seq: stream.log.get(seq) for seq in seqs}

    def count_payload(self, payload: bytes) -> int:
        """Count the messages with a payload in the consumer's stream."""
        return sum(message[3] == payload for message in self.read(STREAM).values())

    # The run

    def run(self) -> None:
        """Run with faults, then heal."""
        for _ in range(self.options.events):
            self.run_event()
        self.heal()

    def run_event(self) -> None:
        """Run one event, perhaps a crash."""
        if self.rng.random() < self.options.crash_share:
            self.crash()
            return
        name = self.rng.choice(self.options.actions)
        self.trace.append(name)
        ACTIONS[name](self)
        for _ in range(self.rng.randrange(self.options.steps_max)):
            if not self.step():
                break
        self.check()

    def step(self) -> bool:
        """Do one step, somewhere; return False if there is nothing to do."""
        clients = [worker.client for worker in self.workers if worker.client.open]
        self.rng.shuffle(clients)
        if self.rng.random() < 0.5 and self.servers.step():
            return True
        return any(client.step() for client in clients) or self.servers.step()

    def run_until_idle(self) -> None:
        """Run until nothing is left to do at this moment."""
        while self.step():
            pass

    def crash(self) -> None:
        """Lose power or kill the process, and restart."""
        self.note_stored()
        is_kill = self.rng.random() < 0.5
        self.trace.append("kill" if is_kill else "power loss")
        (self.servers.kill_local if is_kill else self.servers.crash_local)()
        self.published.clear()
        if STREAM not in self.broker.jetstream.streams:
            self._start_again()
        self.checker.on_crash(self.stream.log.last_seq)
        self.dead_letters.on_crash(self.broker.jetstream.streams[DEAD_LETTERS].log.last_seq)
        self.note_stored()
        self.connect_all()
        self.check()

    def _start_again(self) -> None:
        """Create a stream in memory again, of which a crash leaves nothing."""
        self.stored.clear()
        self.checker.on_crash(0)
        self.dead_letters.on_reset(0)
        self.dead_letters.acked.clear()
        self.call(f"STREAM.CREATE.{STREAM}", **self.options.stream)
        self.create_consumer()
        self._create_other()

    # Checks

    def check(self) -> None:
        """Check the state of the consumer against the log."""
        self.note_stored()
        ack_state = self.consumer.ack_state
        key_order = ack_state.key_order
        if key_order is None:
            return
        passed = [
            seq
            for seq, subject in sorted(self.checker.subjects.items())
            if seq in self.checker.live
            and seq < ack_state.next_seq
            and self._is_passed(key_order, seq, subject)
        ]
        if len(passed) != key_order.passed:
            raise Violation(f"{passed} were passed over, but the consumer counts {key_order.passed}")
        after = [
            seq
            for seq in self.checker.live
            if seq >= ack_state.next_seq and find_key(self.config, self.checker.subjects[seq]) is not None
        ]
        expected = len(after) + len(passed)
        if not len(ack_state.last_per_subject_queue) and self.consumer.num_pending() != expected:
            raise Violation(f"num_pending is {self.consumer.num_pending()}, not {expected}")
        lowest = min([*ack_state.pending, *passed], default=0)
        if lowest and ack_state.get_ack_floor()[1] >= lowest:
            raise Violation(f"the ack floor is {ack_state.get_ack_floor()}, but {lowest} is open")
        if not self.options.has_limits:
            self.checker.check_removed(self.stored)

    def _is_passed(self, key_order: Any, seq: int, subject: str) -> bool:
        key = find_key(self.config, subject)
        firsts = dict(key_order.list_all())
        return key is not None and 0 < firsts.get(key.encode(), 0) <= seq

    # The end

    def heal(self) -> None:
        """Let workers acknowledge everything, then check that nothing is left."""
        self.trace.append("heal")
        self.note_stored()
        self.call(f"STREAM.PURGE.{DEAD_LETTERS}")
        self.broker.disk.faults.clear()
        for _ in range(_HEAL_ROUNDS):
            self._work_off()
            self.note_stored()
            self.call(f"STREAM.PURGE.{DEAD_LETTERS}")
            if self.is_done():
                break
        self.note_stored()
        left = self.checker.find_open()
        if left:
            raise Violation(f"{left} were never acknowledged")
        self.check()
        wanted = self.config.get("dead_letter", {}).get("on", ())
        given_up = {
            seq for seq in self.checker.live if self._is_given_up(seq) and not self.checker.is_skipped(seq)
        }
        self.dead_letters.check_complete(given_up if "max_deliver" in wanted else set())

    def _work_off(self) -> None:
        for worker in self.workers:
            if not worker.client.open:
                self.workers[self.workers.index(worker)] = self.connect()
        for worker in self.workers:
            pull(self, worker)
        self.run_until_idle()
        for worker in self.workers:
            for seq, count, reply in worker.received:
                self.checker.on_ack(seq, count)
                self.dead_letters.acked.add(seq)
                worker.client.publish(reply.decode())
            worker.received.clear()
        self.run_until_idle()
        self.servers.advance(SECOND_NS)
        self.run_until_idle()

    def is_done(self) -> bool:
        """Return whether the consumer has nothing left to deliver or to wait for."""
        self.note_stored()
        return not (
            self.consumer.ack_state.pending or self.consumer.num_pending() or self.checker.find_open()
        )
