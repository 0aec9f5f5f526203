"""One server alone, with the handles that a pair of servers has, so that a world need not know which it lives in.

Owns how a server comes back: now and then its recovery fails, for want of room or because a call does, and is begun anew;
now and then something has rotted meanwhile that recovery can do without.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from headrace.errors import StoreError
from headrace.sim.broker import NO_BOUNDS, Bounds, SimBroker
from headrace.sim.clock import SimClock
from headrace.sim.disk import SimDisk
from headrace.sim.faults import Fault
from headrace.sim.outcome import OUTCOMES
from headrace.store import StoreOptions


def power_loss(disk: SimDisk, rng: Random) -> SimDisk:
    """What a power loss leaves."""
    return disk.crash(rng.choice(OUTCOMES), rng.randrange(1 << 30))


def reopened(
    disk: SimDisk, rng: Random, start: Callable[[SimDisk], SimBroker], stays_full: float = 0.0
) -> SimBroker:
    """A server on what a crash left, perhaps at the second attempt. `stays_full`: how often a full disk still is so."""
    luck = rng.random()
    if luck < 0.2:
        _rot(disk, rng)
    elif luck < 0.35:
        disk.capacity = disk.used() + rng.randrange(4_000)
    elif luck < 0.6:
        disk.faults.add(Fault(nth=rng.randrange(1, 40), lost=rng.choice(("no", "cached", "gone"))))
    try:
        broker = start(disk)
    except StoreError:
        disk.capacity = None
        return start(power_loss(disk, rng) if rng.random() < 0.5 else disk.kill())
    if rng.random() >= stays_full:
        disk.capacity = None
    disk.faults.clear()
    return broker


def _rot(disk: SimDisk, rng: Random) -> None:
    """A bit flips in what can be made anew, or in one copy of what there are two of."""
    paths = [path for path in disk.walk() if path.endswith((".col", ".a", ".b")) or "/subjects." in path]
    path = rng.choice(paths) if paths else ""
    content = bytearray(disk.read(path, 0, disk.size(path))) if path else bytearray()
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        disk.rot(path, bytes(content))


class LoneSite:
    """Nothing happens by itself: `step` does one thing, `advance` lets time pass."""

    stays_full = 0.0

    def __init__(self, seed: int | str, options: StoreOptions, bounds: Bounds = NO_BOUNDS) -> None:
        self.rng = Random(seed)
        self._options, self._bounds = options, bounds
        self.clock = SimClock()
        self.near = reopened(SimDisk(self.rng.randrange(1 << 30)), self.rng, self._open)

    def _open(self, disk: SimDisk) -> SimBroker:
        broker = SimBroker(disk, self._options, self.clock, name="NEAR", domain="NEAR", bounds=self._bounds)
        broker.start()
        return broker

    def crash_near(self) -> None:
        """It loses power and comes back."""
        self.near = reopened(power_loss(self.near.disk, self.rng), self.rng, self._open, self.stays_full)

    def kill_near(self) -> None:
        """Its process is killed and started again."""
        self.near = reopened(self.near.disk.kill(), self.rng, self._open, self.stays_full)

    def step(self) -> bool:
        return self.near.step()

    def settle(self) -> None:
        self.near.settle()

    def advance(self, duration_ns: int) -> None:
        self.near.advance(duration_ns)

    def pass_time(self, duration_ns: int) -> None:
        """Let time pass while things are under way."""
        self.clock.advance(duration_ns)
        self.near.timers.run_due()

    def call(self, broker: SimBroker, endpoint: str, **body: Any) -> Any:
        return broker.call(endpoint, **body)
