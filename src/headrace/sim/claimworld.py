"""A whole run of claims from one seed: producers, consumers, collectors, an object store on bad days, a broker that dies.

Owns the choice of options, of events and of faults. The claims and the client are the real ones, on a loop of virtual
time; the broker is real on a simulated disk. Invariant: the seed decides everything, so two runs give the same digest.
First come faults, and nothing that was promised may break (`ClaimLedger`); then everything is healed, time passes, and
nothing may be left.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from headrace.claims import ClaimConfig, Metrics
from headrace.sim.checks import Violation, audit
from headrace.sim.claimactors import TROUBLE, Parcel, Process, SkewedClock, Surroundings
from headrace.sim.claimledger import ClaimLedger
from headrace.sim.claimoptions import CONSUMERS, NAMESPACE, STREAMS, THRESHOLD, derive
from headrace.sim.claimparts import ClaimPart, Copying, Parting, Resetting
from headrace.sim.claimreaders import Leasing
from headrace.sim.clock import SECOND_NS, SimClock
from headrace.sim.host import SimHost
from headrace.sim.loop import SimLoop, run
from headrace.sim.objects import ObjectFaults, SimObjects
from headrace.sim.outcome import OUTCOMES
from headrace.store import StoreOptions

#: Objects that are not ours: of another namespace, or of no shape that we know.
FOREIGN = ("other/a/2026010100/x", "ns/readme", "ns/a/soon/x", "ns/a/2026010100/deep/x")
KINDS = {"producer": 2, "consumer": 2, "collector": 2, "operator": 1}


class ClaimWorld:
    """One seed's run."""

    def __init__(self, seed: int, store: StoreOptions | None = None) -> None:
        self.seed = seed
        self.options = derive(seed, store or StoreOptions(), ACTIONS, PARTS)
        self.rng = Random(f"claim world {seed}")
        #: What parts decide by: worlds without any are what they would be if there were none.
        self.chance = Random(f"parts of claims {seed}")
        self.parts = {name: PARTS[name]() for name in self.options.parts}
        random.seed(f"jitter {seed}")  # the broker's own
        self.clock = SimClock()
        self.host = SimHost(self.options.store, self.clock, Random(f"host {seed}"))
        self.objects = SimObjects(self.clock, Random(f"objects {seed}"), ObjectFaults())
        self.config = ClaimConfig(
            NAMESPACE,
            threshold=THRESHOLD,
            backend="memory",
            compression=self.options.compression,
            audit=self.options.audit,
            clock_skew=self.options.skew_s,
            ttl=self.options.ttl,
        )
        self.ledger = ClaimLedger(self.host, self.objects, self.config, 2 * self.options.skew_s * SECOND_NS)
        self.around = Surroundings(
            self.host,
            self.objects,
            self.ledger,
            self.config,
            Metrics(),
            self.rng,
            self.options.page,
            self.note,
        )
        self.processes: dict[str, list[Process]] = {}
        #: All that ever were: what waits for ever is kept from being swept away while it waits.
        self._known: list[Process] = []
        self.parcels: list[Parcel] = []
        self.crashes = 0
        self._started = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def __str__(self) -> str:
        return f"ClaimWorld({self.seed}): {self.options}"

    def run(self) -> str:
        """Faults, then healing; the digest of all that happened."""
        run(SimLoop(self.clock, self.host), self._live())
        return self._digest.hexdigest()

    def note(self, *words: str) -> None:
        self._digest.update(f"{self.clock.now_ns()} {' '.join(words)}\n".encode())

    # The beginning

    async def _live(self) -> None:
        await self._found()
        for _ in range(self.options.events):
            await self._event()
        await self._heal()

    async def _found(self) -> None:
        for kind, count in KINDS.items():
            self.processes[kind] = [await self.start(kind) for _ in range(count)]
        operator = self.processes["operator"][0]
        await operator.claims.set_up()
        for name in self.options.streams:
            config = {"name": name, "subjects": [f"{name.lower()}.*"], **STREAMS[name]}
            config["duplicate_window"] = self.options.window_s * SECOND_NS
            await operator.wire.api(f"STREAM.CREATE.{name}", config)
            for consumer, settings in CONSUMERS[name]:
                await self.consumer(name, consumer, settings)
        for part in self.parts.values():
            await part.found(self)
        for key in FOREIGN:
            self.objects.store(key, b"not ours")
        self.objects.faults = self.options.faults
        self.host.stall_share = self.options.stall_share

    async def consumer(self, stream: str, name: str, settings: dict[str, Any]) -> None:
        body = {"durable_name": name, "ack_policy": "explicit", "ack_wait": 10 * SECOND_NS}
        await self.processes["operator"][0].wire.api(
            f"CONSUMER.DURABLE.CREATE.{stream}.{name}",
            {"stream_name": stream, "config": {**body, **settings}},
        )

    async def start(self, kind: str) -> Process:
        """A new process; collectors go by the server's clock."""
        self._started += 1
        skew_ns = self.rng.randint(-self.options.skew_s, self.options.skew_s) * SECOND_NS
        clock = None if kind == "collector" else SkewedClock(self.clock, skew_ns)
        process = Process(self.around, kind, self._started, clock)
        self._known.append(process)
        await process.connection.open()
        return process

    # The middle

    async def _event(self) -> None:
        weights = [ACTIONS[name][1] for name in self.options.actions]
        (name,) = self.rng.choices(self.options.actions, weights)
        self.note("do", name)
        await ACTIONS[name][0](self)
        for title, part in self.parts.items():
            if self.chance.random() < part.share:
                self.note("do", title)
                await part.act(self)
        await asyncio.sleep(self.rng.choice(self.options.pauses_s))
        await self._replace_the_dead()
        self._look()

    def _look(self) -> None:
        self.ledger.raise_first()
        for process in self.everybody():
            for error in process.failures:
                raise Violation(f"{process.name} fails with {error!r}") from error

    def everybody(self) -> list[Process]:
        return [process for kind in self.processes.values() for process in kind]

    async def _replace_the_dead(self) -> None:
        for kind, processes in self.processes.items():
            for number, process in enumerate(processes):
                if not process.alive:
                    processes[number] = await self.start(kind)

    def some(self, kind: str) -> Process:
        return self.rng.choice(self.processes[kind])

    def parcel(self, *, named: bool, stream: str = "") -> Parcel:
        """Something new to publish, to any stream if none is given; most of it is large."""
        ident = self.ident()
        size = self.rng.randrange(self.options.payload_max)
        self.ledger.payloads[ident] = (f"{ident} ".encode() + self.rng.randbytes(16)) * (size // 20 + 1)
        stream = (stream or self.rng.choice(self.options.streams)).lower()
        subject = f"{stream}.{self.rng.randrange(3)}" if self.rng.random() < 0.97 else "nowhere"
        parcel = Parcel(ident, subject, f"id {ident}" if named else "")
        if named:
            self.parcels.append(parcel)
        return parcel

    def ident(self) -> str:
        """A name for the next payload."""
        return str(len(self.ledger.payloads) + 1)

    def carriers(self) -> list[tuple[str, Any]]:
        """The streams that may carry references, copies too."""
        streams = self.host.broker.jetstream.streams
        return [(name, streams[name]) for name in sorted(streams) if not name.startswith("CLAIMS")]

    async def crash(self, *, power: bool) -> None:
        """The server dies and comes back a while later. What is found then is judged."""
        self.crashes += 1
        disk = self.host.fall()
        outcome = self.rng.choice(OUTCOMES)
        found = disk.crash(outcome, self.rng.randrange(1 << 30)) if power else disk.kill()
        self.note("crash", outcome.name if power else "kill")
        await asyncio.sleep(self.rng.choice((0.0, 2.0, 15.0)))
        self.host.boot(found)
        await self.judge()

    async def judge(self) -> None:
        await self.ledger.judge()
        audit(self.host.broker.store)
        for each in self.ledger.carried():
            self.note("carried", str(each))

    # The end

    async def _heal(self) -> None:
        """No more faults: what waits comes to its end, then time passes until nothing is owed to anybody."""
        self.objects.heal()
        self.host.stall_share = 0
        for process in self.everybody():
            await process.idle()
        await asyncio.sleep(120)
        self._look()
        await self.judge()
        ttl = self.options.ttl
        await self._collect()
        await asyncio.sleep(ttl.max_age + ttl.grace_period + 2 * 3600 + 3 * self.options.skew_s)
        for _ in range(3):
            await self._collect()
            await asyncio.sleep(90)
        for removal in self.ledger.removals:
            self.note(*map(str, removal))
        await self.judge()
        self._look()
        self.ledger.judge_end(set(FOREIGN) - self.objects.tampered)

    async def _collect(self) -> None:
        try:
            await self.processes["collector"][0].collect()
        except TROUBLE as error:
            raise Violation(f"C12: with everything healed, collecting fails: {error!r}") from error


# What can happen


async def _publish(world: ClaimWorld) -> None:
    for _ in range(world.rng.randrange(1, 4)):
        producer = world.some("producer")
        producer.do(producer.publish(world.parcel(named=world.rng.random() < 0.5)))


async def _publish_deadly(world: ClaimWorld) -> None:
    producer = world.some("producer")
    producer.do(producer.publish(world.parcel(named=world.rng.random() < 0.7), deadly=True))


async def _publish_again(world: ClaimWorld) -> None:
    """Something that was published, or perhaps not, is published once more under the same id."""
    if world.parcels:
        producer = world.some("producer")
        producer.do(producer.publish(world.rng.choice(world.parcels[-12:])))


async def _publish_at_once(world: ClaimWorld) -> None:
    """Two publish the same under the same id, at nearly the same time."""
    parcel = world.parcel(named=True)
    for producer in world.processes["producer"]:
        producer.do(producer.publish(parcel))
        await asyncio.sleep(world.rng.choice((0.0, 0.005, 1.1)))


async def _consume(world: ClaimWorld) -> None:
    stream = world.rng.choice(world.options.streams)
    for consumer, _ in CONSUMERS[stream]:
        if world.rng.random() < 0.7:
            process = world.some("consumer")
            process.do(process.consume(stream, consumer, world.rng.randrange(1, 6)))


async def _collect(world: ClaimWorld) -> None:
    collector = world.some("collector")
    collector.do(collector.collect())


async def _collect_twice(world: ClaimWorld) -> None:
    """Both at once, with whatever else is under way."""
    for collector in world.processes["collector"]:
        collector.do(world.rng.choice((collector.collect, collector.collect_due))())


async def _race(world: ClaimWorld) -> None:
    """What is about to be collected is published once more."""
    for collector in world.processes["collector"]:
        collector.do(collector.collect())
    for parcel in world.parcels[-8:]:
        producer = world.some("producer")
        producer.do(producer.publish(parcel))
        await asyncio.sleep(world.rng.uniform(0, 0.03))


async def _delete(world: ClaimWorld) -> None:
    carried = world.ledger.carried()
    if carried:
        each, operator = world.rng.choice(carried), world.processes["operator"][0]
        operator.do(operator.wire.api(f"STREAM.MSG.DELETE.{each.stream}", {"seq": each.seq}))


async def _purge(world: ClaimWorld) -> None:
    stream, operator = world.rng.choice(world.options.streams), world.processes["operator"][0]
    body = world.rng.choice(({}, {"keep": 3}, {"filter": f"{stream.lower()}.1"}))
    operator.do(operator.wire.api(f"STREAM.PURGE.{stream}", body))


async def _tamper(world: ClaimWorld) -> None:
    """A stranger has access to the bucket."""
    ours = [key for key in world.objects.stored() if key not in FOREIGN]
    if ours and world.rng.random() < 0.5:
        key = world.rng.choice(ours)
        world.note("tamper", key, world.objects.tamper(key))


async def _break(world: ClaimWorld) -> None:
    world.rng.choice(world.everybody()).connection.transport.break_off()


async def _die(world: ClaimWorld) -> None:
    world.rng.choice(world.everybody()).die()


async def _power(world: ClaimWorld) -> None:
    await world.crash(power=True)


async def _kill(world: ClaimWorld) -> None:
    await world.crash(power=False)


async def _rest(world: ClaimWorld) -> None:
    """Time passes, up to well beyond what any claim is given."""
    ttl = world.options.ttl
    most = ttl.max_age + ttl.grace_period
    shares = (0.01, 0.05, 0.2, 0.5, 1.0) if world.rng.random() < 0.7 else (1.2, 2.0)
    await asyncio.sleep(most * world.rng.choice(shares) * world.rng.random())


#: What only some worlds have.
PARTS: dict[str, type[ClaimPart]] = {
    "lease": Leasing,
    "copy": Copying,
    "reset": Resetting,
    "large": Parting,
}

Action = Callable[[ClaimWorld], Coroutine[Any, Any, None]]

#: Every kind of event that can be switched off, and how often it happens.
ACTIONS: dict[str, tuple[Action, int]] = {
    "publish": (_publish, 20),
    "publish deadly": (_publish_deadly, 3),
    "publish again": (_publish_again, 8),
    "publish at once": (_publish_at_once, 4),
    "consume": (_consume, 25),
    "collect": (_collect, 8),
    "collect twice": (_collect_twice, 5),
    "race": (_race, 4),
    "delete": (_delete, 4),
    "purge": (_purge, 1),
    "tamper": (_tamper, 2),
    "break": (_break, 4),
    "die": (_die, 3),
    "power": (_power, 2),
    "kill": (_kill, 1),
    "rest": (_rest, 8),
}
