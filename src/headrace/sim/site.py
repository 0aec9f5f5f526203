"""One server alone, with the handles that a pair of servers has, so that a world need not know which it lives in."""

from __future__ import annotations

from random import Random
from typing import Any

from headrace.sim.broker import SimBroker
from headrace.sim.clock import SimClock
from headrace.sim.disk import SimDisk
from headrace.sim.outcome import OUTCOMES
from headrace.store import StoreOptions


class LoneSite:
    """Nothing happens by itself: `step` does one thing, `advance` lets time pass."""

    def __init__(self, seed: int | str, options: StoreOptions) -> None:
        self.rng = Random(seed)
        self._options = options
        self.clock = SimClock()
        self.near = self._open(SimDisk(self.rng.randrange(1 << 30)))

    def _open(self, disk: SimDisk) -> SimBroker:
        broker = SimBroker(disk, self._options, self.clock, name="NEAR", domain="NEAR")
        broker.start()
        return broker

    def crash_near(self) -> None:
        """It loses power and comes back."""
        outcome = self.rng.choice(OUTCOMES)
        self.near = self._open(self.near.disk.crash(outcome, self.rng.randrange(1 << 30)))

    def kill_near(self) -> None:
        """Its process is killed and started again."""
        self.near = self._open(self.near.disk.kill())

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
