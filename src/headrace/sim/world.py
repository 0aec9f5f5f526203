"""A whole run of a whole broker from one seed: clients, streams, consumers, batches, lifetimes, copies to another server.

Owns the choice of options, of events and of faults. Invariant: the seed decides everything, so two runs give the same
digest. Swarm testing: each seed switches some kinds of event off, because a run with everything on rarely goes deep
anywhere. First come faults, and nothing that was promised may break (`Ledger`); then everything is healed, and all that
waits must come to its end.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from headrace.sim.broker import SimBroker
from headrace.sim.checks import Violation, audit
from headrace.sim.clients import SimClient
from headrace.sim.clock import SECOND_NS
from headrace.sim.faults import Fault
from headrace.sim.ledger import WINDOW_NS, Ledger, Rules, ident_of
from headrace.sim.pair import SimPair
from headrace.sim.reading import Reader
from headrace.sim.site import LoneSite
from headrace.store import StoreOptions

#: Shorter lives are raised to it.
MARKER_TTL_S = 5
HEAL_NS = 90 * SECOND_NS
STREAMS: dict[str, tuple[Rules, dict[str, Any]]] = {
    "P": (Rules(), {"subjects": ["p.>"], "allow_atomic": True, "duplicate_window": WINDOW_NS}),
    "K": (Rules(per_subject=True), {"subjects": ["k.>"], "max_msgs_per_subject": 1, "allow_atomic": True}),
    "T": (
        Rules(ttl=True),
        {"subjects": ["t.>"], "allow_msg_ttl": True, "subject_delete_marker_ttl": MARKER_TTL_S * SECOND_NS},
    ),
    "W": (Rules(queue=True), {"subjects": ["w.>"], "retention": "workqueue"}),
    "L": (Rules(messages_max=20), {"subjects": ["l.>"], "max_msgs": 20}),
    "Q": (Rules(moved=True), {"subjects": ["q.>"], "retention": "workqueue"}),
}
#: Consumers by stream; the push one gets what it is sent, the others ask.
CONSUMERS: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "P": (
        ("pull", {"ack_policy": "explicit", "ack_wait": 4 * SECOND_NS}),
        ("push", {"ack_policy": "explicit", "ack_wait": 3 * SECOND_NS, "deliver_subject": "d.push"}),
        ("some", {"ack_policy": "explicit", "ack_wait": 2 * SECOND_NS, "filter_subject": "p.1"}),
    ),
    "W": (("worker", {"ack_policy": "explicit", "ack_wait": 3 * SECOND_NS}),),
}
SUBJECTS = 4


@dataclass(frozen=True, slots=True)
class WorldOptions:
    """What a seed decides before anything happens."""

    events: int
    actions: tuple[str, ...]
    clients: int
    steps_max: int
    crash_share: float
    payload_max: int
    pair: bool
    store: StoreOptions

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in asdict(self).items())


def derive(seed: int, store: StoreOptions) -> WorldOptions:
    """The options of a seed."""
    rng = Random(f"options {seed}")
    chosen = tuple(name for name in ACTIONS if name in ("publish", "pull") or rng.random() < 0.7)
    return WorldOptions(
        events=rng.randrange(120, 400),
        actions=chosen,
        clients=rng.randrange(1, 5),
        steps_max=rng.choice((2, 8, 30, 100)),
        crash_share=rng.choice((0.0, 0.01, 0.03)),
        payload_max=rng.choice((20, 20, 400, 6_000)),
        pair=rng.random() < 0.3,
        store=store,
    )


class World:
    """One seed's run."""

    def __init__(self, seed: int, store: StoreOptions | None = None) -> None:
        self.seed = seed
        self.options = derive(seed, store or StoreOptions())
        self.rng = Random(f"world {seed}")
        random.seed(f"jitter {seed}")  # the broker's own
        self.ledger = Ledger({name: rules for name, (rules, _) in STREAMS.items()})
        self.reader = Reader(self.ledger, self.rng)
        kind = SimPair if self.options.pair else LoneSite
        self.site: SimPair | LoneSite = kind(f"site {seed}", self.options.store)
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
        for name, (_, config) in STREAMS.items():
            if name != "Q" or self.options.pair:
                self.call(self.near, f"STREAM.CREATE.{name}", name=name, **config)
        for stream, consumers in CONSUMERS.items():
            for name, config in consumers:
                body = {"stream_name": stream, "config": {"durable_name": name, **config}}
                self.call(self.near, f"CONSUMER.CREATE.{stream}.{name}", **body)
        if isinstance(self.site, SimPair):
            external = {"api": "$JS.NEAR.API", "deliver": ""}
            mirror = {"name": "P", "external": external}
            self.call(self.site.far, "STREAM.CREATE.M", name="M", mirror=mirror)
            durable = {"name": "D", "server_managed": True}
            source = {"name": "Q", "external": external, "consumer": durable}
            self.call(self.site.far, "STREAM.CREATE.S", name="S", sources=[source])
        self.gather()

    def call(self, broker: SimBroker, endpoint: str, **body: Any) -> Any:
        answer = self.site.call(broker, endpoint, **body)
        if "error" in answer:
            raise Violation(f"{endpoint} is refused: {answer['error']}")
        return answer

    def connect(self) -> SimClient:
        """A new client; somewhere among them one listens for what the push consumer sends."""
        self._cids += 1
        client = SimClient(self.near, self._cids, self.rng)
        if not any(other.open and other.pushed for other in self.clients):
            client.pushed = True
            client.listen(lambda arrival: self.reader.heard(client, "push", arrival), b"d.push")
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
            self.crash()
            return
        name = self.rng.choice(self.options.actions)
        self._note("do", name)
        ACTIONS[name](self)
        for _ in range(self.rng.randrange(self.options.steps_max)):
            self.step()
        if self.near.store.poisoned is not None:
            self.crash()

    def step(self) -> bool:
        """One thing moves, somewhere; False when all is quiet."""
        acts: list[Callable[[], bool]] = [client.step for client in self.clients]
        acts += [self.site.step]
        self.rng.shuffle(acts)
        return any(act() for act in acts)

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

    def crash(self) -> None:
        """The near server dies; connections go with it. What comes back is judged."""
        self.crashes += 1
        self.part()
        self.near.disk.capacity = None
        self.site.crash_near()
        self.site.settle()
        self.gather()
        self.judge("crash", calm=False)

    def client(self) -> SimClient:
        return self.rng.choice(self.clients)

    def judge(self, when: str, *, calm: bool) -> None:
        """Hold every stream against the ledger."""
        for name in STREAMS:
            stream = self.near.jetstream.streams.get(name)
            if stream is not None:
                self.ledger.judge(name, stream.log, self.now_ns, calm=calm)
                self._note(when, name, repr(_contents(stream.log)))
        audit(self.near.store)

    # The end

    def heal(self) -> None:
        """No more faults: everything that waits comes to its end, and everything is where it belongs."""
        self.near.disk.faults.clear()
        self.near.disk.capacity = None
        self.settle()
        if self.near.store.poisoned is not None:
            self.crash()
        if isinstance(self.site, SimPair) and not self.site.joined:
            self.site.join()
        self.part()
        self.clients = [self.connect()]
        self.advance(HEAL_NS)
        for stream, consumers in CONSUMERS.items():
            for name, _ in consumers:
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
        lost = [m.ident for m in self.ledger.by_stream["Q"] if m.seq and m.ident not in set(sourced)]
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


# What can happen


def _publish(world: World, stream: str, **header: str) -> None:
    _send(world, world.client(), stream, f"{stream.lower()}.{world.rng.randrange(SUBJECTS)}", header)


def _send(world: World, client: SimClient, stream: str, subject: str, header: dict[str, str]) -> None:
    ledger = world.ledger
    message = ledger.send(stream, subject.encode(), client.cid, world.now_ns)
    message.filler = world.rng.randrange(world.options.payload_max)
    message.message_id = header.get("Nats-Msg-Id", "")
    ttl_s = int(header.get("Nats-TTL", "0").rstrip("s"))
    message.ttl_ns = max(ttl_s, MARKER_TTL_S) * SECOND_NS if ttl_s else 0
    client.request(subject, message.payload, world.reader.published(message, world), header)


def _plain(world: World) -> None:
    for _ in range(world.rng.randrange(1, 8)):
        _publish(world, world.rng.choice("PPKWL" + ("Q" if world.options.pair else "")))


def _with_id(world: World) -> None:
    number = max(world.ledger.order - world.rng.choice((0, 0, 3, 10)), 0) // 4
    header = {"Nats-Msg-Id": f"m{number}"}
    _send(world, world.client(), "P", f"p.{world.rng.randrange(SUBJECTS)}", header)


def _expecting(world: World) -> None:
    """A put that hopes to know the last sequence of its key; it may be wrong."""
    log = world.near.jetstream.streams["K"].log
    key = f"k.{world.rng.randrange(SUBJECTS)}"
    guess = log.last_of(key.encode()) - world.rng.choice((0, 0, 1))
    header = {"Nats-Expected-Last-Subject-Sequence": str(max(guess, 0))}
    _send(world, world.client(), "K", key, header)


def _with_ttl(world: World) -> None:
    for _ in range(world.rng.randrange(1, 5)):
        header = {"Nats-TTL": f"{world.rng.choice((1, 2, 5, 30))}s"}
        _send(world, world.client(), "T", f"t.{world.rng.randrange(SUBJECTS)}", header)


def _batch(world: World) -> None:
    """A batch, perhaps never finished."""
    rng, ledger, client = world.rng, world.ledger, world.client()
    stream, size = rng.choice("PK"), rng.randrange(1, 9)
    finished = rng.random() < 0.8
    name = f"b{ledger.order}"
    members = []
    for position in range(1, size + 1):
        subject = f"{stream.lower()}.{position}" if stream == "K" else f"p.{rng.randrange(SUBJECTS)}"
        member = ledger.send(stream, subject.encode(), client.cid, world.now_ns)
        member.batch, member.filler = name.encode(), rng.randrange(world.options.payload_max)
        members.append(member)
        header = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(position)}
        if position == size and finished:
            header["Nats-Batch-Commit"] = "1"
            client.request(subject, member.payload, world.reader.committed(members, world), header)
        else:
            client.publish(subject, member.payload, header)
        if rng.random() < 0.3:
            world.step()


def _pull(world: World) -> None:
    stream = world.rng.choice(list(CONSUMERS))
    names = [name for name, config in CONSUMERS[stream] if "deliver_subject" not in config]
    consumer = world.rng.choice(names)
    world.reader.pull(world.user(consumer), stream, consumer, world.rng.randrange(1, 8))


def _delete(world: World) -> None:
    stream = world.rng.choice("PKTL")
    seqs = [seq for (name, seq) in world.ledger.given if name == stream]
    if seqs:
        seq = world.rng.choice(seqs)
        world.ledger.removals[stream].deleted.add(seq)
        body = b'{"seq":%d}' % seq
        answered = world.reader.removed(stream, {seq})
        world.client().request(f"$JS.API.STREAM.MSG.DELETE.{stream}", body, answered)


def _purge(world: World) -> None:
    if world.rng.random() < 0.3:
        stream = world.rng.choice("PKTWL")
        pattern = world.rng.choice(("", f"{stream.lower()}.1"))
        client = world.client()
        purge = world.ledger.purge(stream, pattern.encode(), client.cid)
        body = b'{"filter":"%b"}' % pattern.encode() if pattern else b""
        client.request(
            f"$JS.API.STREAM.PURGE.{stream}", body, world.reader.removed(stream, purge.doomed, purge)
        )


def _reset(world: World) -> None:
    """Somebody sends a consumer back: what it confirmed may come again."""
    if world.rng.random() < 0.3:
        world.reader.reset(world.user("pull"), "P", "pull")


def _look(world: World) -> None:
    stream = world.rng.choice([name for name in STREAMS if name in world.near.jetstream.streams])
    world.client().request(f"$JS.API.STREAM.INFO.{stream}", b"", world.reader.informed(stream))


def _time(world: World) -> None:
    world.site.pass_time(world.rng.choice((SECOND_NS // 100, SECOND_NS // 2, 3 * SECOND_NS)))


def _rest(world: World) -> None:
    world.settle()
    world.site.advance(world.rng.randrange(2 * SECOND_NS))
    world.settle()
    if world.near.store.poisoned is None:
        world.judge("rest", calm=False)


def _clock(world: World) -> None:
    """Somebody sets the clock while nothing is under way."""
    if world.rng.random() < 0.1:
        world.settle()
        world.ledger.latest_ns = max(world.ledger.latest_ns, world.now_ns)
        world.near.clock.set_by(world.rng.choice((-20, -2, 5, 40)) * SECOND_NS)


def _reconnect(world: World) -> None:
    client = world.client()
    world.part(client)
    world.clients[world.clients.index(client)] = world.connect()


def _stall(world: World) -> None:
    client = world.client()
    client.stalled = not client.stalled


def _fail(world: World) -> None:
    """A call of the disk fails, once; a failing sync poisons."""
    if world.rng.random() < 0.2:
        kinds = world.rng.choice((("sync",), ("write",), ("create",), ()))
        lost = world.rng.choice(("no", "cached", "gone"))
        world.near.disk.faults.add(Fault(kinds=kinds, nth=world.rng.randrange(1, 9), lost=lost))


def _fill(world: World) -> None:
    """The disk is full for a while."""
    disk = world.near.disk
    disk.capacity = None if disk.capacity is not None else disk.used() + world.rng.randrange(20_000)


def _kill(world: World) -> None:
    if world.rng.random() < 0.2:
        world.part()
        world.near.disk.capacity = None
        world.site.kill_near()
        world.site.settle()
        world.gather()
        world.judge("kill", calm=False)


def _leaf(world: World) -> None:
    """The connection between the servers breaks or comes back, or the other server dies."""
    site, luck = world.site, world.rng.random()
    if isinstance(site, SimPair):
        if luck < 0.2:
            site.crash_far()
        elif site.joined and luck < 0.6:
            site.cut()
        else:
            site.join()


#: Every kind of event that can be switched off.
ACTIONS: dict[str, Callable[[World], None]] = {
    "publish": _plain,
    "id": _with_id,
    "expect": _expecting,
    "ttl": _with_ttl,
    "batch": _batch,
    "pull": _pull,
    "delete": _delete,
    "purge": _purge,
    "reset": _reset,
    "look": _look,
    "time": _time,
    "rest": _rest,
    "clock": _clock,
    "reconnect": _reconnect,
    "stall": _stall,
    "fail": _fail,
    "fill": _fill,
    "kill": _kill,
    "leaf": _leaf,
}
