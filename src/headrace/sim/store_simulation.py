"""Simulates a store from one seed. Owns the choice of options, events and crashes.

Invariant: the seed decides everything, so `StoreSimulation(seed).run()` twice gives the same digest. Swarm testing:
each seed disables some kinds of event, because a run with everything enabled rarely goes deep anywhere. Must not know
what a test expects beyond the promises in `store_invariants`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random

from headrace.sim.checkers.store_invariants import MEMORY_PREFIX, Violation, check_store, describe_difference
from headrace.sim.clock import SimClock
from headrace.sim.disk.crash_outcomes import OUTCOMES
from headrace.sim.disk.sim_disk import SimDisk
from headrace.sim.workloads.store_driver import StoreDriver
from headrace.storage import StoreOptions

STREAM_NAMES = ("A", "B", "C", MEMORY_PREFIX)
SUBJECTS = (b"a", b"a.b", b"orders.eu.1", b"orders.us.2", b"x.y.z")
HEADER = b"NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n"
#: Number of sequences skipped, instead of a few, in simulations with large gaps.
LARGE_GAPS = {5: 1 << 31, 6: (1 << 32) - 3, 7: 1 << 32, 8: (1 << 32) + 1, 9: 1 << 40}

Action = Callable[["StoreSimulation"], None]


@dataclass(frozen=True, slots=True)
class StoreSimulationOptions:
    """What a seed decides before the run."""

    events: int
    actions: tuple[str, ...]
    crash_share: float
    kill_share: float
    commit_share: float
    delete_share: float
    steps_max: int
    waits_for_checkpoints: bool
    payload_max: int
    large_gaps: bool  # sequences are skipped by more than a segment can span
    store: StoreOptions

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in asdict(self).items())


def derive_options(seed: int, store: StoreOptions) -> StoreSimulationOptions:
    """Return the options of a seed."""
    rng = Random(f"options {seed}")
    chosen = tuple(name for name in ACTIONS if name in ("append", "create") or rng.random() < 0.7)
    return StoreSimulationOptions(
        events=rng.randrange(100, 400),
        actions=chosen,
        crash_share=rng.choice((0.0, 0.01, 0.03, 0.1)),
        kill_share=rng.choice((0.0, 0.01, 0.05)),
        commit_share=rng.choice((0.1, 0.4, 0.8)),
        delete_share=rng.choice((0.1, 0.5)),
        steps_max=rng.choice((2, 4, 12)),
        waits_for_checkpoints=rng.random() < 0.3,
        payload_max=rng.choice((40, 40, 1_000, 8_000, 80_000)),
        large_gaps=Random(f"far {seed}").random() < 0.2,
        store=store,
    )


class StoreSimulation:
    """The run of one seed: a store on a simulated disk, changed, crashed and checked."""

    def __init__(self, seed: int, store: StoreOptions | None = None) -> None:
        self.seed = seed
        self.options = derive_options(seed, store or StoreOptions())
        self.rng = Random(f"world {seed}")
        self.clock = SimClock()
        self.driver = StoreDriver(SimDisk(seed), self.options.store, self.clock)
        self.crashes = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def __str__(self) -> str:
        return f"StoreSimulation(seed={self.seed}): {self.options}"

    def run(self) -> str:
        """Run events and crashes, then let all work finish and check the store. Returns the run's digest."""
        for _ in range(self.options.events):
            self.run_event()
        self.driver.run_until_idle()
        check_store(self.driver.store)
        self.restart(self.driver.disk.kill(), "end")
        self._trace("end", repr(self.driver.history.states[0]))
        return self._digest.hexdigest()

    def run_event(self) -> None:
        """Run one event, perhaps a crash."""
        roll = self.rng.random()
        if roll < self.options.crash_share:
            outcome = self.rng.choice(OUTCOMES)
            self.restart(self.driver.disk.crash(outcome, self.rng.randrange(1 << 30)), outcome.name)
            return
        if roll < self.options.crash_share + self.options.kill_share:
            self.restart(self.driver.disk.kill(), "kill")
            return
        name = self.rng.choice(self.options.actions)
        self._trace("do", name)
        ACTIONS[name](self)
        if self.rng.random() < self.options.commit_share:
            self.driver.commit()
        for _ in range(self.rng.randrange(self.options.steps_max)):
            self.driver.step()

    def restart(self, disk: SimDisk, how: str) -> None:
        """Recover on what a crash left, and check the store's promises."""
        history = self.driver.history
        self.crashes += 1
        self.driver = StoreDriver(disk, self.options.store, self.clock)
        found = self.driver.history.states[0]
        self._trace(how, repr(found))
        if found not in history.states[history.acked_index :]:
            text = describe_difference(found, history.states[history.acked_index])
            raise Violation(f"crash {self.crashes} ({how}) of {self}: {text}")
        check_store(self.driver.store)

    def _trace(self, *items: str) -> None:
        self._digest.update("\0".join(items).encode() + b"\n")

    # Choices for actions

    def pick_stream(self) -> str:
        """Return a stream that exists; create one if there is none."""
        names = sorted(self.driver.model.logs)
        if not names:
            self.driver.create("A")
            return "A"
        return self.rng.choice(names)

    def get_live_seqs(self, name: str) -> list[int]:
        return sorted(self.driver.get_model(name).messages)


def _append(sim: StoreSimulation) -> None:
    name, rng = sim.pick_stream(), sim.rng
    for _ in range(rng.randrange(1, 6)):
        header = HEADER if rng.random() < 0.2 else b""
        size = rng.randrange(sim.options.payload_max)
        subject = rng.choice(SUBJECTS) if rng.random() < 0.7 else b"once.%d" % rng.randrange(1000)
        sim.driver.append(name, subject, size, header, rng.choice((0, 0, 90)))


def _create(sim: StoreSimulation) -> None:
    name = sim.rng.choice(STREAM_NAMES)
    if name not in sim.driver.model.logs:
        sim.driver.create(name, first_seq=sim.rng.choice((1, 1, 100)))


def _delete(sim: StoreSimulation) -> None:
    if sim.driver.model.logs and sim.rng.random() < sim.options.delete_share:
        sim.driver.delete(sim.pick_stream())


def _remove(sim: StoreSimulation) -> None:
    name = sim.pick_stream()
    for seq in sim.rng.sample(
        sim.get_live_seqs(name), min(len(sim.get_live_seqs(name)), sim.rng.randrange(6))
    ):
        sim.driver.remove(name, seq)


def _remove_below(sim: StoreSimulation) -> None:
    name = sim.pick_stream()
    model = sim.driver.get_model(name)
    seq = sim.rng.randrange(model.first_seq, model.last_seq + 4)
    if sim.options.large_gaps and model.messages:
        seq = min(model.messages, key=lambda each: abs(each - seq))
    sim.driver.remove_below(name, seq)


def _replace(sim: StoreSimulation) -> None:
    sim.driver.replace(sim.pick_stream(), sim.rng.choice(SUBJECTS))


def _advance(sim: StoreSimulation) -> None:
    name, skipped = sim.pick_stream(), sim.rng.randrange(10)
    if sim.options.large_gaps:
        skipped = LARGE_GAPS.get(skipped, skipped)
    sim.driver.advance(name, sim.driver.get_model(name).last_seq + skipped)


def _change_metadata(sim: StoreSimulation) -> None:
    key, rng = b"k/%d" % sim.rng.randrange(4), sim.rng
    if key not in sim.driver.model.metadata or rng.random() < 0.3:
        sim.driver.put(key, rng.randbytes(rng.randrange(20)))
    elif rng.random() < 0.2:
        sim.driver.delete_key(key)
    else:
        sim.driver.merge(key, rng.randbytes(3))


def _checkpoint(sim: StoreSimulation) -> None:
    """Take a checkpoint; some simulations wait for its end, others continue, perhaps with a crash."""
    if sim.options.waits_for_checkpoints:
        sim.driver.checkpoint()
    else:
        sim.driver.start_checkpoint()


def _compact(sim: StoreSimulation) -> None:
    sim.driver.compact()


def _shutdown(sim: StoreSimulation) -> None:
    sim.driver.restart()


def _run_until_idle(sim: StoreSimulation) -> None:
    sim.driver.run_until_idle()


#: Every kind of event that a seed can disable.
ACTIONS: dict[str, Action] = {
    "append": _append,
    "create": _create,
    "delete": _delete,
    "remove": _remove,
    "remove_below": _remove_below,
    "replace": _replace,
    "advance": _advance,
    "facts": _change_metadata,
    "checkpoint": _checkpoint,
    "compact": _compact,
    "shutdown": _shutdown,
    "settle": _run_until_idle,
}
