"""A whole run of a whole broker from one seed: clients, streams, consumers, batches, lifetimes, copies to another server.

Owns the course of it: what there is says `setting`, what can happen `events`. Invariant: the seed decides everything, so
two runs give the same digest. Swarm testing: each seed switches some kinds of event off, because a run with everything on
rarely goes deep anywhere. First come faults, and nothing that was promised may break (`Ledger`); then everything is
healed, and all that waits must come to its end.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from random import Random
from typing import Any

from headrace.sim.broker import SimBroker
from headrace.sim.checks import Violation, audit
from headrace.sim.clients import ANYBODY, SimClient
from headrace.sim.clock import SECOND_NS
from headrace.sim.crowd import Crowd, Extra
from headrace.sim.events import ACTIONS, FURTHER, worker
from headrace.sim.ledger import Ledger, ident_of
from headrace.sim.pair import SimPair
from headrace.sim.parts import PARTS
from headrace.sim.reading import Reader
from headrace.sim.setting import CONSUMERS, EXTRA, GUEST, HEEDED, STREAMS, derive
from headrace.sim.site import LoneSite
from headrace.store import StoreOptions

HEAL_NS = 90 * SECOND_NS


class World:
    """One seed's run."""

    def __init__(self, seed: int, store: StoreOptions | None = None) -> None:
        self.seed = seed
        self.options = derive(seed, store or StoreOptions(), ACTIONS)
        self.rng = Random(f"world {seed}")
        random.seed(f"jitter {seed}")  # the broker's own
        self.ledger = Ledger({name: rules for name, (rules, _) in STREAMS.items()})
        self.reader = Reader(self.ledger, self.rng)
        self.crowd, self.extra = Crowd(), Extra()
        self.parts = {name: PARTS[name]() for name in self.options.parts if name in PARTS}
        kind = SimPair if self.options.pair else LoneSite
        self.site: SimPair | LoneSite = kind(f"site {seed}", self.options.store, self.options.bounds)
        self.site.stays_full = 0.5
        self.clients: list[SimClient] = []
        self.crashes = 0
        self._cids = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._found()

    def __str__(self) -> str:
        return f"World({self.seed}): {self.options}"

    @property
    def near(self) -> SimBroker:
        return self.site.near

    @property
    def now_ns(self) -> int:
        return self.near.clock.now_ns()

    def run(self) -> str:
        """Faults, then healing; the digest of all that happened."""
        for _ in range(self.options.events):
            self.event()
        self.heal()
        return self._digest.hexdigest()

    # The beginning

    def _found(self) -> None:
        if isinstance(self.site, SimPair):
            self.site.join()
            self.site.settle()
        for name in self.options.streams:
            self.call(self.near, f"STREAM.CREATE.{name}", name=name, **STREAMS[name][1])
        for part in self.parts.values():
            self.call(self.near, f"STREAM.CREATE.{part.config['name']}", **part.config)
        for stream, name, config in self._consumers():
            body = {"stream_name": stream, "config": {"durable_name": name, **config}}
            self.call(self.near, f"CONSUMER.CREATE.{stream}.{name}", **body)
        if isinstance(self.site, SimPair):
            external = {"api": "$JS.NEAR.API", "deliver": ""}
            mirror = {"name": "P", "external": external}
            self.call(self.site.far, "STREAM.CREATE.M", name="M", mirror=mirror)
            durable = {"name": "D", "server_managed": True}
            source = {"name": "Q", "external": external, "consumer": durable}
            self.call(self.site.far, "STREAM.CREATE.S", name="S", sources=[source], allow_atomic=True)
            if self.options.lossy:
                self.site.losing = lambda *_: self.rng.random() < 0.1
        self.gather()

    def _consumers(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        for stream in self.options.streams:
            for name, config in CONSUMERS.get(stream, ()):
                yield stream, name, config

    def call(self, broker: SimBroker, endpoint: str, **body: Any) -> Any:
        answer = self.site.call(broker, endpoint, **body)
        if "error" in answer:
            raise Violation(f"{endpoint} is refused: {answer['error']}")
        return answer

    def connect(self, *, guest: bool | None = None) -> SimClient:
        """A new client; somewhere among them one listens for what the push consumer sends, and that is no guest."""
        self._cids += 1
        pushed = not any(other.open and other.pushed for other in self.clients)
        if guest is None:
            guest = self.options.guests and not pushed and self.rng.random() < 0.5
        client = SimClient(self.near, self._cids, self.rng, GUEST if guest else ANYBODY)
        if pushed and not guest:
            client.pushed = True
            client.listen(lambda arrival: self.reader.heard(client, "push", arrival), b"d.push")
        if self.options.guests:
            self.crowd.enter(client)
        return client

    def gather(self) -> None:
        """All clients anew."""
        self.part()
        for _ in range(self.options.clients):
            self.clients.append(self.connect())

    def part(self, client: SimClient | None = None) -> None:
        """One connection breaks, or all do."""
        for each in [client] if client is not None else list(self.clients):
            each.cut()
            self.ledger.leave(each.cid)
            if each is self.user("pull"):
                self.reader.gone()
        if client is None:
            self.clients = []

    def user(self, consumer: str) -> SimClient:
        """Who reads from a consumer: always the same client, so that what was confirmed to it comes after all
        that was delivered before."""
        return self.clients[len(consumer) % len(self.clients)]

    # The middle

    def event(self) -> None:
        """One thing happens, perhaps a crash."""
        if self.rng.random() < self.options.crash_share:
            if self.rng.random() < 0.5:
                self._fly()
            self.crash()
            return
        name = self.rng.choice(self.options.actions)
        self._note("do", name)
        (ACTIONS.get(name) or FURTHER[name])(self)
        for _ in range(self.rng.randrange(self.options.steps_max)):
            if not self.step():
                break
        if self.near.store.poisoned is not None:
            self.crash()

    def _fly(self) -> None:
        """Have a frame on its way to the disk."""
        ACTIONS["publish"](self)
        for _ in range(60):
            if self.near.store.in_flight:
                break
            self.step()
        for _ in range(self.rng.randrange(4)):
            self.near.disk.step()

    def step(self) -> bool:
        """One thing moves, somewhere; False when all is quiet."""
        clients = self.clients
        most = len(clients)
        first = at = int(self.rng.random() * (most + 1))
        while True:
            if clients[at].step() if at < most else self.site.step():
                return True
            at = at + 1 if at < most else 0
            if at == first:
                return False

    def settle(self) -> None:
        """Until nothing is left to do at this moment."""
        for _ in range(200_000):
            if not self.step():
                return
        raise Violation("C11: the world does not come to rest")

    def advance(self, duration_ns: int) -> None:
        """Let time pass for everybody; clients go on meanwhile."""
        end_ns = self.now_ns + duration_ns
        while self.now_ns < end_ns:
            self.settle()
            self.site.advance(min(SECOND_NS // 2, end_ns - self.now_ns))
        self.settle()

    def crash(self, *, killed: bool = False) -> None:
        """The near server dies, with the power or alone; connections go with it. What comes back is judged."""
        self.crashes += 1
        self.part()
        if self.rng.random() < 0.5:
            self.near.disk.capacity = None
        if killed:
            self.site.kill_near()
        else:
            self.site.crash_near()
        self.site.settle()
        self.gather()
        self.judge("kill" if killed else "crash", calm=False)

    def client(self) -> SimClient:
        return self.rng.choice(self.clients)

    def seqs(self, stream: str) -> list[int]:
        """Every sequence that was ever seen to belong to a message."""
        return [seq for name, seq in self.ledger.given if name == stream]

    def judge(self, when: str, *, calm: bool) -> None:
        """Hold every stream against the ledger."""
        for name in STREAMS:
            stream = self.near.jetstream.streams.get(name)
            if stream is not None:
                self.ledger.judge(name, stream.log, self.now_ns, calm=calm)
                self._note(when, name, repr(_contents(stream.log)))
        if EXTRA in self.near.jetstream.streams:
            self.extra.judge(self.near.jetstream.streams[EXTRA].log)
        for part in self.parts.values():
            part.judge(self, self.near.jetstream.streams[part.config["name"]].log, calm=calm)
        self._judge_limits()
        audit(self.near.store)

    def _judge_limits(self) -> None:
        """The account keeps no more than it may, save for what the server itself has to say of lives that ended."""
        limits, jetstream = self.options.bounds.account, self.near.jetstream
        if 0 <= limits.max_streams < len(jetstream.streams):
            raise Violation(f"limits: there are {len(jetstream.streams)} streams")
        used = jetstream.usage("file")[0] - jetstream.streams["T"].log.bytes
        if 0 <= limits.max_storage < used:
            raise Violation(f"limits: {used} bytes are kept of {limits.max_storage}")

    # The end

    def heal(self) -> None:
        """No more faults: everything that waits comes to its end, and everything is where it belongs."""
        self.near.disk.faults.clear()
        self.near.disk.capacity = None
        self.settle()
        if self.near.store.poisoned is not None:
            self.crash()
        if isinstance(self.site, SimPair):
            self.site.far.disk.capacity = None
            if self.site.losing is not None or not self.site.joined:
                self.site.losing = None
                self.site.join()
        self.part()
        self.clients = [self.connect()]
        self.advance(HEAL_NS)
        if self.options.guests:
            self.crowd.judge(self)
        if "rearrange" in self.options.parts:
            self.call(self.near, "CONSUMER.CREATE.W.worker", **json.loads(worker(["w.>"])))
            self.call(self.near, "CONSUMER.RESET.W.worker", seq=1)
        if HEEDED in self.options.streams:
            for name in list(self.near.jetstream.streams[HEEDED].consumers):
                if name.startswith("passing"):
                    self.call(self.near, f"CONSUMER.DELETE.{HEEDED}.{name}")
        for stream, name, _ in self._consumers():
            self._drain(stream, name)
        self.advance(10 * SECOND_NS)
        if any(client.waiting for client in self.clients):
            raise Violation(f"C11: {[client.waiting for client in self.clients]} requests are not answered")
        self.judge("end", calm=True)
        self.reader.judge(self.near)
        if isinstance(self.site, SimPair):
            self._judge_copies(self.site.far)
        self._judge_reopening()

    def _drain(self, stream: str, consumer: str) -> None:
        """Read everything that is left, and acknowledge it."""
        self.reader.diligent = True
        for _ in range(400):
            info = self.call(self.near, f"CONSUMER.INFO.{stream}.{consumer}")
            if not info["num_pending"] and not info["num_ack_pending"]:
                return
            if consumer != "push":
                self.reader.pull(self.clients[0], stream, consumer, 50)
            self.advance(SECOND_NS // 2)
        state = {
            key: value for key, value in info.items() if key.startswith(("num_", "delivered", "ack_floor"))
        }
        raise Violation(f"C11: {consumer} of {stream} does not come to its end: {state}")

    def _judge_copies(self, far: SimBroker) -> None:
        origin, mirror = self.near.jetstream.streams["P"].log, far.jetstream.streams["M"].log
        copied = dict(_contents(mirror))
        for seq, ident in copied.items():
            self.ledger.give("P", seq, ident, "mirrored")
        missing = [seq for seq, _ in _contents(origin) if seq not in copied]
        if missing:
            raise Violation(f"C1: the mirror lacks {missing[:9]}")
        sourced = [ident for _, ident in _contents(far.jetstream.streams["S"].log)]
        if len(set(sourced)) != len(sourced):
            raise Violation("C2: the sourced stream holds something twice")
        orders = [self.ledger.sent[ident].order for ident in sourced if ident in self.ledger.sent]
        if len(orders) != len(sourced):
            raise Violation("C2: the sourced stream holds what nobody sent")
        gone = self.ledger.removals["Q"].deleted
        moved = (m for m in self.ledger.by_stream["Q"] if m.seq and m.seq not in gone)
        lost = [m.ident for m in moved if m.ident not in set(sourced)]
        if lost or self.near.jetstream.streams["Q"].log.messages:
            left = self.near.jetstream.streams["Q"].log.messages
            raise Violation(f"C1: {lost[:9]} were not sourced, {left} are left at their origin")

    def _judge_reopening(self) -> None:
        """C10: another start finds the same, and so does one more."""
        before = {name: _contents(stream.log) for name, stream in self.near.jetstream.streams.items()}
        for _ in range(2):
            self.part()
            self.site.kill_near()
            self.site.settle()
            after = {name: _contents(stream.log) for name, stream in self.near.jetstream.streams.items()}
            if after != before:
                raise Violation("C10: another start finds something else")
            audit(self.near.store)

    def _note(self, *words: str) -> None:
        self._digest.update("\0".join(words).encode() + b"\n")


def _contents(log: Any) -> list[tuple[int, bytes]]:
    found = ((seq, log.get(seq)) for seq in log.seqs(None, log.first_seq, log.last_seq).tolist())
    return [(seq, ident_of(message[3])) for seq, message in found if message is not None]
