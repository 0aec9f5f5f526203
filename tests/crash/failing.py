"""Runs of small workloads on a disk that fails, and what must hold then: what was acknowledged survives."""

from __future__ import annotations

from random import Random

from headrace.errors import StoreError
from headrace.sim import BY_NAME, Fault, SimDisk
from headrace.sim.checks import Violation, audit, demand, difference
from headrace.sim.driver import Driver
from headrace.sim.model import State

from .options import TINY
from .points import prepared
from .workloads import spell

DROP = BY_NAME["drop"]


class Outcome:
    """What a run came to: its driver, and the error that ended it."""

    def __init__(self, driver: Driver | None, error: Exception | None, disk: SimDisk) -> None:
        self.driver = driver
        self.error = error
        self.disk = disk

    @property
    def allowed(self) -> list[State]:
        if self.driver is None:
            return [prepared().state]
        return self.driver.history.states[self.driver.history.acked :]


def run(word: str, fault: Fault | None, seed: int = 0) -> Outcome:
    """A small workload on the prepared disk, with a fault in force from the start of recovery on."""
    disk = SimDisk(seed, snapshot=prepared().snapshot)
    if fault is not None:
        disk.faults.add(fault)
    driver = None
    try:
        driver = Driver(disk, TINY)
        spell(driver, word)
    except (StoreError, OSError) as error:
        return Outcome(driver, error, disk)
    return Outcome(driver, None, disk)


def calls(word: str, kinds: tuple[str, ...]) -> int:
    """How many calls of these kinds a workload makes on a good disk."""
    disk = SimDisk(0, snapshot=prepared().snapshot)
    counter = Fault(nth=1 << 60, kinds=kinds)
    disk.faults.add(counter)
    spell(Driver(disk, TINY), word)
    return disk.faults.seen(counter)


def survives(outcome: Outcome, rng: Random) -> None:
    """Started again after a kill or a power loss, the store holds what was acknowledged."""
    for after in (
        outcome.disk.kill(),
        outcome.disk.crash(DROP),
        outcome.disk.crash(BY_NAME["mixed"], rng.random()),
    ):
        driver = Driver(after, TINY)
        found = driver.history.states[0]
        demand(found in outcome.allowed, f"after the fault: {difference(found, outcome.allowed[0])}")
        audit(driver.store)
        driver.create("AFTER")
        driver.tick()


def goes_silent(outcome: Outcome) -> None:
    """After a failed sync nothing is acknowledged any more, and the store says why."""
    driver = outcome.driver
    if driver is None:
        return
    while driver.step():
        pass
    demand(driver.store.poisoned is not None, "a sync failed, yet the store is not poisoned")
    acked = driver.history.acked
    try:
        for _ in range(3):
            driver.append("A")
            driver.tick()
    except (StoreError, OSError):
        pass
    else:
        raise Violation("a poisoned store took messages and committed them")
    while driver.step():
        pass
    demand(driver.history.acked == acked, "a poisoned store acknowledged a frame")


def goes_on(outcome: Outcome) -> None:
    """Once there is room again, what waited for it becomes durable, and more is taken."""
    driver = outcome.driver
    outcome.disk.faults.clear()
    if driver is None:
        return
    driver.store.idle()
    while driver.step():
        pass
    demand(driver.store.poisoned is None, "no room, and the store is poisoned")
    driver.settle()
    for _ in range(3):
        driver.append("A")
        driver.tick()
    driver.settle()
    demand(driver.history.acked == driver.history.admitted, "what waited for room is still not durable")
    demand(not driver.store.full, "there is room, and the store is full")
