"""A whole run of a store from one seed. Owns the choice of options, of events and of crashes.

Invariant: the seed decides everything, so `StoreWorld(seed).run()` twice gives the same digest. Swarm testing:
each seed switches some kinds of event off, because a run with everything on rarely goes deep anywhere. It
must not know what a test expects beyond the promises in `checks`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random

from headrace.sim.checks import MEMORY, Violation, audit, difference
from headrace.sim.clock import SimClock
from headrace.sim.disk import SimDisk
from headrace.sim.driver import Driver
from headrace.sim.outcome import OUTCOMES
from headrace.store import StoreOptions

NAMES = ("A", "B", "C", MEMORY)
SUBJECTS = (b"a", b"a.b", b"orders.eu.1", b"orders.us.2", b"x.y.z")
HEADER = b"NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n"
#: Instead of a few sequences, so many are skipped in worlds where they are far apart.
FAR = {5: 1 << 31, 6: (1 << 32) - 3, 7: 1 << 32, 8: (1 << 32) + 1, 9: 1 << 40}

Action = Callable[["StoreWorld"], None]


@dataclass(frozen=True, slots=True)
class StoreWorldOptions:
    """What a seed decides before anything happens."""

    events: int
    actions: tuple[str, ...]
    crash_share: float
    kill_share: float
    seal_share: float
    delete_share: float
    steps_max: int
    patient: bool
    payload_max: int
    far: bool  # sequences are skipped by more than a segment can hold
    store: StoreOptions

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in asdict(self).items())


def derive(seed: int, store: StoreOptions) -> StoreWorldOptions:
    """The options of a seed."""
    rng = Random(f"options {seed}")
    chosen = tuple(name for name in ACTIONS if name in ("append", "create") or rng.random() < 0.7)
    return StoreWorldOptions(
        events=rng.randrange(100, 400),
        actions=chosen,
        crash_share=rng.choice((0.0, 0.01, 0.03, 0.1)),
        kill_share=rng.choice((0.0, 0.01, 0.05)),
        seal_share=rng.choice((0.1, 0.4, 0.8)),
        delete_share=rng.choice((0.1, 0.5)),
        steps_max=rng.choice((2, 4, 12)),
        patient=rng.random() < 0.3,
        payload_max=rng.choice((40, 40, 1_000, 8_000, 80_000)),
        far=Random(f"far {seed}").random() < 0.2,
        store=store,
    )


class StoreWorld:
    """One seed's run: a store on a simulated disk, changed, crashed and checked."""

    def __init__(self, seed: int, store: StoreOptions | None = None) -> None:
        self.seed = seed
        self.options = derive(seed, store or StoreOptions())
        self.rng = Random(f"world {seed}")
        self.clock = SimClock()
        self.driver = Driver(SimDisk(seed), self.options.store, self.clock)
        self.crashes = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def __str__(self) -> str:
        return f"StoreWorld({self.seed}): {self.options}"

    def run(self) -> str:
        """Events and crashes, then all comes to rest and must be whole. Returns the run's digest."""
        for _ in range(self.options.events):
            self.event()
        self.driver.settle()
        audit(self.driver.store)
        self.restart(self.driver.disk.kill(), "end")
        self._note("end", repr(self.driver.history.states[0]))
        return self._digest.hexdigest()

    def event(self) -> None:
        """One thing happens, perhaps a crash."""
        luck = self.rng.random()
        if luck < self.options.crash_share:
            outcome = self.rng.choice(OUTCOMES)
            self.restart(self.driver.disk.crash(outcome, self.rng.randrange(1 << 30)), outcome.name)
            return
        if luck < self.options.crash_share + self.options.kill_share:
            self.restart(self.driver.disk.kill(), "kill")
            return
        name = self.rng.choice(self.options.actions)
        self._note("do", name)
        ACTIONS[name](self)
        if self.rng.random() < self.options.seal_share:
            self.driver.seal()
        for _ in range(self.rng.randrange(self.options.steps_max)):
            self.driver.step()

    def restart(self, disk: SimDisk, how: str) -> None:
        """Recovers on what a crash left, and holds the store to its promises."""
        history = self.driver.history
        self.crashes += 1
        self.driver = Driver(disk, self.options.store, self.clock)
        found = self.driver.history.states[0]
        self._note(how, repr(found))
        if found not in history.states[history.acked :]:
            text = difference(found, history.states[history.acked])
            raise Violation(f"crash {self.crashes} ({how}) of {self}: {text}")
        audit(self.driver.store)

    def _note(self, *words: str) -> None:
        self._digest.update("\0".join(words).encode() + b"\n")

    # Choices that actions make

    def stream(self) -> str:
        """A stream that exists; one is made if there is none."""
        names = sorted(self.driver.model.logs)
        if not names:
            self.driver.create("A")
            return "A"
        return self.rng.choice(names)

    def live(self, name: str) -> list[int]:
        return sorted(self.driver.modelled(name).messages)


def _append(world: StoreWorld) -> None:
    name, rng = world.stream(), world.rng
    for _ in range(rng.randrange(1, 6)):
        header = HEADER if rng.random() < 0.2 else b""
        size = rng.randrange(world.options.payload_max)
        subject = rng.choice(SUBJECTS) if rng.random() < 0.7 else b"once.%d" % rng.randrange(1000)
        world.driver.append(name, subject, size, header, rng.choice((0, 0, 90)))


def _create(world: StoreWorld) -> None:
    name = world.rng.choice(NAMES)
    if name not in world.driver.model.logs:
        world.driver.create(name, first_seq=world.rng.choice((1, 1, 100)))


def _delete(world: StoreWorld) -> None:
    if world.driver.model.logs and world.rng.random() < world.options.delete_share:
        world.driver.delete(world.stream())


def _remove(world: StoreWorld) -> None:
    name = world.stream()
    for seq in world.rng.sample(world.live(name), min(len(world.live(name)), world.rng.randrange(6))):
        world.driver.remove(name, seq)


def _remove_below(world: StoreWorld) -> None:
    name = world.stream()
    model = world.driver.modelled(name)
    seq = world.rng.randrange(model.first_seq, model.last_seq + 4)
    if world.options.far and model.messages:
        seq = min(model.messages, key=lambda each: abs(each - seq))
    world.driver.remove_below(name, seq)


def _replace(world: StoreWorld) -> None:
    world.driver.replace(world.stream(), world.rng.choice(SUBJECTS))


def _advance(world: StoreWorld) -> None:
    name, skipped = world.stream(), world.rng.randrange(10)
    if world.options.far:
        skipped = FAR.get(skipped, skipped)
    world.driver.advance(name, world.driver.modelled(name).last_seq + skipped)


def _facts(world: StoreWorld) -> None:
    key, rng = b"k/%d" % world.rng.randrange(4), world.rng
    if key not in world.driver.model.facts or rng.random() < 0.3:
        world.driver.put(key, rng.randbytes(rng.randrange(20)))
    elif rng.random() < 0.2:
        world.driver.drop(key)
    else:
        world.driver.note(key, rng.randbytes(3))


def _checkpoint(world: StoreWorld) -> None:
    """Patient worlds wait for its end; in others it goes on while more happens, or a crash."""
    if world.options.patient:
        world.driver.checkpoint()
    else:
        world.driver.begin_checkpoint()


def _compact(world: StoreWorld) -> None:
    world.driver.compact()


def _shutdown(world: StoreWorld) -> None:
    world.driver.restart()


def _settle(world: StoreWorld) -> None:
    world.driver.settle()


#: Every kind of event that can be switched off.
ACTIONS: dict[str, Action] = {
    "append": _append,
    "create": _create,
    "delete": _delete,
    "remove": _remove,
    "remove_below": _remove_below,
    "replace": _replace,
    "advance": _advance,
    "facts": _facts,
    "checkpoint": _checkpoint,
    "compact": _compact,
    "shutdown": _shutdown,
    "settle": _settle,
}
