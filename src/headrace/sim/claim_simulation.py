"""Simulates claims from one seed: producers, consumers, collectors, a faulty object store, and a broker that crashes.

Owns the choice of options, events and faults. The claims and the client are the real ones, on an event loop with
virtual time; the broker is real, on a simulated disk. Invariant: the seed decides everything, so two runs give the same
digest. First faults occur, and no promise may break (`ClaimChecker`); then all faults end, time passes, and nothing may
be left.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from headrace.claims import ClaimConfig, Metrics
from headrace.sim.checkers.claim_checker import ClaimChecker
from headrace.sim.checkers.store_invariants import Violation, check_store
from headrace.sim.clock import SECOND_NS, SimClock
from headrace.sim.disk.crash_outcomes import OUTCOMES
from headrace.sim.event_loop import SimLoop, run_program
from headrace.sim.network.sim_transport import SimHost
from headrace.sim.object_store import ObjectFaults, SimBucket
from headrace.sim.workloads.claim_actors import (
    EXPECTED_ERRORS,
    ActorContext,
    ActorProcess,
    PublishPlan,
    SkewedClock,
)
from headrace.sim.workloads.claim_feature_actors import (
    ClaimFeatureActor,
    CopyActor,
    LargePayloadActor,
    ResetActor,
)
from headrace.sim.workloads.claim_lease_readers import LeaseActor
from headrace.sim.workloads.claim_sim_config import CONSUMERS, NAMESPACE, STREAMS, THRESHOLD, derive_options
from headrace.storage import StoreOptions

#: Objects that are not ours: of another namespace, or with unknown keys.
FOREIGN_KEYS = ("other/a/2026010100/x", "ns/readme", "ns/a/soon/x", "ns/a/2026010100/deep/x")
PROCESS_COUNTS = {"producer": 2, "consumer": 2, "collector": 2, "operator": 1}


class ClaimSimulation:
    """The run of one seed."""

    def __init__(self, seed: int, store: StoreOptions | None = None) -> None:
        self.seed = seed
        self.options = derive_options(seed, store or StoreOptions(), ACTIONS, FEATURE_ACTORS)
        self.rng = Random(f"claim world {seed}")
        #: Random generator of the features: simulations without features run as if there were none.
        self.feature_rng = Random(f"parts of claims {seed}")
        self.feature_actors = {name: FEATURE_ACTORS[name]() for name in self.options.features}
        random.seed(f"jitter {seed}")  # used by the broker itself
        self.clock = SimClock()
        self.host = SimHost(self.options.store, self.clock, Random(f"host {seed}"))
        self.bucket = SimBucket(self.clock, Random(f"objects {seed}"), ObjectFaults())
        self.config = ClaimConfig(
            NAMESPACE,
            threshold=THRESHOLD,
            backend="memory",
            compression=self.options.compression,
            audit=self.options.audit,
            clock_skew=self.options.skew_s,
            ttl=self.options.ttl,
        )
        self.claim_checker = ClaimChecker(
            self.host, self.bucket, self.config, 2 * self.options.skew_s * SECOND_NS
        )
        self.actor_context = ActorContext(
            self.host,
            self.bucket,
            self.claim_checker,
            self.config,
            Metrics(),
            self.rng,
            self.options.page_size,
            self.trace,
        )
        self.processes: dict[str, list[ActorProcess]] = {}
        #: All processes ever started: references to pending tasks, which would otherwise be garbage-collected.
        self._all_processes: list[ActorProcess] = []
        self.publish_plans: list[PublishPlan] = []
        self.crashes = 0
        self._started = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def __str__(self) -> str:
        return f"ClaimSimulation(seed={self.seed}): {self.options}"

    def run(self) -> str:
        """Run with faults, then heal; return a digest of everything that happened."""
        run_program(SimLoop(self.clock, self.host), self._run())
        return self._digest.hexdigest()

    def trace(self, *items: str) -> None:
        self._digest.update(f"{self.clock.now_ns()} {' '.join(items)}\n".encode())

    # Setup

    async def _run(self) -> None:
        await self._set_up()
        for _ in range(self.options.events):
            await self._run_event()
        await self._heal()

    async def _set_up(self) -> None:
        for kind, count in PROCESS_COUNTS.items():
            self.processes[kind] = [await self.start_process(kind) for _ in range(count)]
        operator = self.processes["operator"][0]
        await operator.claims.set_up()
        for name in self.options.streams:
            config = {"name": name, "subjects": [f"{name.lower()}.*"], **STREAMS[name]}
            config["duplicate_window"] = self.options.dedup_window_s * SECOND_NS
            await operator.jetstream.api_request(f"STREAM.CREATE.{name}", config)
            for consumer, settings in CONSUMERS[name]:
                await self.create_consumer(name, consumer, settings)
        for actor in self.feature_actors.values():
            await actor.set_up(self)
        for key in FOREIGN_KEYS:
            self.bucket.store(key, b"not ours")
        self.bucket.faults = self.options.faults
        self.host.stall_share = self.options.stall_share

    async def create_consumer(self, stream: str, name: str, settings: dict[str, Any]) -> None:
        body = {"durable_name": name, "ack_policy": "explicit", "ack_wait": 10 * SECOND_NS}
        await self.processes["operator"][0].jetstream.api_request(
            f"CONSUMER.DURABLE.CREATE.{stream}.{name}",
            {"stream_name": stream, "config": {**body, **settings}},
        )

    async def start_process(self, kind: str) -> ActorProcess:
        """Start a process; collectors use the server's clock."""
        self._started += 1
        skew_ns = self.rng.randint(-self.options.skew_s, self.options.skew_s) * SECOND_NS
        clock = None if kind == "collector" else SkewedClock(self.clock, skew_ns)
        process = ActorProcess(self.actor_context, kind, self._started, clock)
        self._all_processes.append(process)
        await process.connection.open()
        return process

    # Events

    async def _run_event(self) -> None:
        weights = [ACTIONS[name][1] for name in self.options.actions]
        (name,) = self.rng.choices(self.options.actions, weights)
        self.trace("do", name)
        await ACTIONS[name][0](self)
        for feature, actor in self.feature_actors.items():
            if self.feature_rng.random() < actor.share:
                self.trace("do", feature)
                await actor.act(self)
        await asyncio.sleep(self.rng.choice(self.options.pauses_s))
        await self._replace_dead()
        self._raise_failures()

    def _raise_failures(self) -> None:
        self.claim_checker.raise_first_violation()
        for process in self.list_processes():
            for error in process.failures:
                raise Violation(f"{process.name} failed with {error!r}") from error

    def list_processes(self) -> list[ActorProcess]:
        return [process for kind in self.processes.values() for process in kind]

    async def _replace_dead(self) -> None:
        for kind, processes in self.processes.items():
            for number, process in enumerate(processes):
                if not process.alive:
                    processes[number] = await self.start_process(kind)

    def pick_process(self, kind: str) -> ActorProcess:
        return self.rng.choice(self.processes[kind])

    def make_plan(self, *, has_msg_id: bool, stream: str = "") -> PublishPlan:
        """Plan a new publish, to a random stream if none is given; most payloads are large."""
        ident = self.next_ident()
        size = self.rng.randrange(self.options.payload_max)
        self.claim_checker.payloads[ident] = (f"{ident} ".encode() + self.rng.randbytes(16)) * (
            size // 20 + 1
        )
        stream = (stream or self.rng.choice(self.options.streams)).lower()
        subject = f"{stream}.{self.rng.randrange(3)}" if self.rng.random() < 0.97 else "nowhere"
        plan = PublishPlan(ident, subject, f"id {ident}" if has_msg_id else "")
        if has_msg_id:
            self.publish_plans.append(plan)
        return plan

    def next_ident(self) -> str:
        """Return an ident for the next payload."""
        return str(len(self.claim_checker.payloads) + 1)

    def get_claim_streams(self) -> list[tuple[str, Any]]:
        """Return the streams that may carry references, including copies."""
        streams = self.host.broker.jetstream.streams
        return [(name, streams[name]) for name in sorted(streams) if not name.startswith("CLAIMS")]

    async def crash(self, *, power: bool) -> None:
        """Crash the server and restart it a while later; then check its state."""
        self.crashes += 1
        disk = self.host.stop_server()
        outcome = self.rng.choice(OUTCOMES)
        found = disk.crash(outcome, self.rng.randrange(1 << 30)) if power else disk.kill()
        self.trace("crash", outcome.name if power else "kill")
        await asyncio.sleep(self.rng.choice((0.0, 2.0, 15.0)))
        self.host.start_server(found)
        await self.check()

    async def check(self) -> None:
        await self.claim_checker.check()
        check_store(self.host.broker.store)
        for claim_message in self.claim_checker.find_claim_messages():
            self.trace("carried", str(claim_message))

    # Healing

    async def _heal(self) -> None:
        """Stop all faults: pending work completes, then time passes until nothing is required any more."""
        self.bucket.heal()
        self.host.stall_share = 0
        for process in self.list_processes():
            await process.wait_until_idle()
        await asyncio.sleep(120)
        self._raise_failures()
        await self.check()
        ttl = self.options.ttl
        await self._collect()
        await asyncio.sleep(ttl.max_age + ttl.grace_period + 2 * 3600 + 3 * self.options.skew_s)
        for _ in range(3):
            await self._collect()
            await asyncio.sleep(90)
        for deletion in self.claim_checker.deletions:
            self.trace(*map(str, deletion))
        await self.check()
        self._raise_failures()
        self.claim_checker.check_end(set(FOREIGN_KEYS) - self.bucket.tampered)

    async def _collect(self) -> None:
        try:
            await self.processes["collector"][0].collect()
        except EXPECTED_ERRORS as error:
            raise Violation(f"C12: collecting failed without faults: {error!r}") from error


# Events


async def _publish(sim: ClaimSimulation) -> None:
    for _ in range(sim.rng.randrange(1, 4)):
        producer = sim.pick_process("producer")
        producer.start_task(producer.publish(sim.make_plan(has_msg_id=sim.rng.random() < 0.5)))


async def _publish_and_die(sim: ClaimSimulation) -> None:
    producer = sim.pick_process("producer")
    producer.start_task(
        producer.publish(sim.make_plan(has_msg_id=sim.rng.random() < 0.7), dies_after_upload=True)
    )


async def _publish_again(sim: ClaimSimulation) -> None:
    """Publish something again with the same id, whether or not the first attempt succeeded."""
    if sim.publish_plans:
        producer = sim.pick_process("producer")
        producer.start_task(producer.publish(sim.rng.choice(sim.publish_plans[-12:])))


async def _publish_at_once(sim: ClaimSimulation) -> None:
    """Publish the same payload with the same id from two processes at nearly the same time."""
    plan = sim.make_plan(has_msg_id=True)
    for producer in sim.processes["producer"]:
        producer.start_task(producer.publish(plan))
        await asyncio.sleep(sim.rng.choice((0.0, 0.005, 1.1)))


async def _consume(sim: ClaimSimulation) -> None:
    stream = sim.rng.choice(sim.options.streams)
    for consumer, _ in CONSUMERS[stream]:
        if sim.rng.random() < 0.7:
            process = sim.pick_process("consumer")
            process.start_task(process.consume(stream, consumer, sim.rng.randrange(1, 6)))


async def _collect(sim: ClaimSimulation) -> None:
    collector = sim.pick_process("collector")
    collector.start_task(collector.collect())


async def _collect_twice(sim: ClaimSimulation) -> None:
    """Run two collections at once, beside other work."""
    for collector in sim.processes["collector"]:
        collector.start_task(sim.rng.choice((collector.collect, collector.collect_due))())


async def _race(sim: ClaimSimulation) -> None:
    """Publish again what is about to be collected."""
    for collector in sim.processes["collector"]:
        collector.start_task(collector.collect())
    for plan in sim.publish_plans[-8:]:
        producer = sim.pick_process("producer")
        producer.start_task(producer.publish(plan))
        await asyncio.sleep(sim.rng.uniform(0, 0.03))


async def _delete(sim: ClaimSimulation) -> None:
    claim_messages = sim.claim_checker.find_claim_messages()
    if claim_messages:
        claim_message, operator = sim.rng.choice(claim_messages), sim.processes["operator"][0]
        operator.start_task(
            operator.jetstream.api_request(
                f"STREAM.MSG.DELETE.{claim_message.stream}", {"seq": claim_message.seq}
            )
        )


async def _purge(sim: ClaimSimulation) -> None:
    stream, operator = sim.rng.choice(sim.options.streams), sim.processes["operator"][0]
    body = sim.rng.choice(({}, {"keep": 3}, {"filter": f"{stream.lower()}.1"}))
    operator.start_task(operator.jetstream.api_request(f"STREAM.PURGE.{stream}", body))


async def _tamper(sim: ClaimSimulation) -> None:
    """Let a third party change the bucket."""
    ours = [key for key in sim.bucket.list_keys() if key not in FOREIGN_KEYS]
    if ours and sim.rng.random() < 0.5:
        key = sim.rng.choice(ours)
        sim.trace("tamper", key, sim.bucket.tamper(key))


async def _break_connection(sim: ClaimSimulation) -> None:
    sim.rng.choice(sim.list_processes()).connection.transport.disconnect()


async def _kill_process(sim: ClaimSimulation) -> None:
    sim.rng.choice(sim.list_processes()).kill()


async def _lose_power(sim: ClaimSimulation) -> None:
    await sim.crash(power=True)


async def _kill_server(sim: ClaimSimulation) -> None:
    await sim.crash(power=False)


async def _pass_time(sim: ClaimSimulation) -> None:
    """Let time pass, up to well beyond any claim's lifetime."""
    ttl = sim.options.ttl
    most = ttl.max_age + ttl.grace_period
    shares = (0.01, 0.05, 0.2, 0.5, 1.0) if sim.rng.random() < 0.7 else (1.2, 2.0)
    await asyncio.sleep(most * sim.rng.choice(shares) * sim.rng.random())


#: Features that only some simulations have.
FEATURE_ACTORS: dict[str, type[ClaimFeatureActor]] = {
    "lease": LeaseActor,
    "copy": CopyActor,
    "reset": ResetActor,
    "large": LargePayloadActor,
}

Action = Callable[[ClaimSimulation], Coroutine[Any, Any, None]]

#: Every kind of event that a seed can disable, and its weight.
ACTIONS: dict[str, tuple[Action, int]] = {
    "publish": (_publish, 20),
    "publish deadly": (_publish_and_die, 3),
    "publish again": (_publish_again, 8),
    "publish at once": (_publish_at_once, 4),
    "consume": (_consume, 25),
    "collect": (_collect, 8),
    "collect twice": (_collect_twice, 5),
    "race": (_race, 4),
    "delete": (_delete, 4),
    "purge": (_purge, 1),
    "tamper": (_tamper, 2),
    "break": (_break_connection, 4),
    "die": (_kill_process, 3),
    "power": (_lose_power, 2),
    "kill": (_kill_server, 1),
    "rest": (_pass_time, 8),
}
