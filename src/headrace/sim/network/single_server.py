"""One server alone, with the interface of a pair of servers, so that a simulation need not know which one it runs on.

Owns how a server restarts: sometimes its recovery fails, for lack of space or because a call fails, and is retried;
sometimes data has rotted meanwhile that recovery does not need.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from headrace.errors import StoreError
from headrace.sim.clock import SimClock
from headrace.sim.disk.crash_outcomes import OUTCOMES
from headrace.sim.disk.disk_faults import Fault
from headrace.sim.disk.sim_disk import SimDisk
from headrace.sim.sim_broker import NO_SERVER_LIMITS, SimBroker, SimServerLimits
from headrace.storage import StoreOptions


def apply_power_loss(disk: SimDisk, rng: Random) -> SimDisk:
    """Return the disk after a power loss."""
    return disk.crash(rng.choice(OUTCOMES), rng.randrange(1 << 30))


def reopen_server(
    disk: SimDisk, rng: Random, start: Callable[[SimDisk], SimBroker], stays_full: float = 0.0
) -> SimBroker:
    """Start a server on what a crash left, perhaps at the second attempt.

    `stays_full`: how often a full disk stays full.
    """
    roll = rng.random()
    if roll < 0.2:
        _corrupt_file(disk, rng)
    elif roll < 0.35:
        disk.capacity = disk.used() + rng.randrange(4_000)
    elif roll < 0.6:
        disk.faults.add(Fault(nth=rng.randrange(1, 40), lost=rng.choice(("no", "cached", "gone"))))
    try:
        broker = start(disk)
    except StoreError:
        disk.capacity = None
        return start(apply_power_loss(disk, rng) if rng.random() < 0.5 else disk.kill())
    if rng.random() >= stays_full:
        disk.capacity = None
    disk.faults.clear()
    return broker


def _corrupt_file(disk: SimDisk, rng: Random) -> None:
    """Flip a bit in a file that can be rebuilt, or in one of two copies."""
    paths = [path for path in disk.walk() if path.endswith((".col", ".a", ".b")) or "/subjects." in path]
    path = rng.choice(paths) if paths else ""
    content = bytearray(disk.read(path, 0, disk.size(path))) if path else bytearray()
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        disk.corrupt(path, bytes(content))


class SingleServer:
    """Nothing happens by itself: `step` does one thing, `advance` lets time pass."""

    stays_full = 0.0

    def __init__(
        self, seed: int | str, options: StoreOptions, server_limits: SimServerLimits = NO_SERVER_LIMITS
    ) -> None:
        self.rng = Random(seed)
        self._options, self._server_limits = options, server_limits
        self.clock = SimClock()
        self.local = reopen_server(SimDisk(self.rng.randrange(1 << 30)), self.rng, self._start_broker)

    def _start_broker(self, disk: SimDisk) -> SimBroker:
        broker = SimBroker(
            disk, self._options, self.clock, name="NEAR", domain="NEAR", server_limits=self._server_limits
        )
        broker.start()
        return broker

    def crash_local(self) -> None:
        """Lose power and restart."""
        self.local = reopen_server(
            apply_power_loss(self.local.disk, self.rng), self.rng, self._start_broker, self.stays_full
        )

    def kill_local(self) -> None:
        """Kill the process and restart it."""
        self.local = reopen_server(self.local.disk.kill(), self.rng, self._start_broker, self.stays_full)

    def step(self) -> bool:
        return self.local.step()

    def run_until_idle(self) -> None:
        self.local.run_until_idle()

    def advance(self, duration_ns: int) -> None:
        self.local.advance(duration_ns)

    def pass_time(self, duration_ns: int) -> None:
        """Let time pass while work is in progress."""
        self.clock.advance(duration_ns)
        self.local.timers.run_due()

    def call(self, broker: SimBroker, endpoint: str, **body: Any) -> Any:
        return broker.call(endpoint, **body)
