"""Runs small workloads on a failing disk, and checks that everything acknowledged survives."""

from __future__ import annotations

from random import Random

from headrace.errors import StoreError
from headrace.sim import OUTCOMES_BY_NAME, Fault, SimDisk
from headrace.sim.checkers.store_invariants import Violation, check_store, describe_difference, require
from headrace.sim.checkers.store_model import StoreState
from headrace.sim.workloads.store_driver import StoreDriver

from .crash_points import prepared
from .store_sizes import TINY
from .workloads import spell

DROP = OUTCOMES_BY_NAME["drop"]


class Outcome:
    """The result of a run: its driver, and the error that ended it."""

    def __init__(self, driver: StoreDriver | None, error: Exception | None, disk: SimDisk) -> None:
        self.driver = driver
        self.error = error
        self.disk = disk

    @property
    def allowed(self) -> list[StoreState]:
        if self.driver is None:
            return [prepared().state]
        return self.driver.history.states[self.driver.history.acked_index :]


def run(word: str, fault: Fault | None, seed: int = 0) -> Outcome:
    """Run a small workload on the prepared disk, with a fault that is active from the start of recovery."""
    disk = SimDisk(seed, snapshot=prepared().snapshot)
    if fault is not None:
        disk.faults.add(fault)
    driver = None
    try:
        driver = StoreDriver(disk, TINY)
        spell(driver, word)
    except (StoreError, OSError) as error:
        return Outcome(driver, error, disk)
    return Outcome(driver, None, disk)


def calls(word: str, kinds: tuple[str, ...]) -> int:
    """Return how many calls of these kinds a workload makes on a disk without faults."""
    disk = SimDisk(0, snapshot=prepared().snapshot)
    counter = Fault(nth=1 << 60, kinds=kinds)
    disk.faults.add(counter)
    spell(StoreDriver(disk, TINY), word)
    return disk.faults.get_call_count(counter)


def survives(outcome: Outcome, rng: Random) -> None:
    """Check that the store has everything acknowledged after a kill or a power loss."""
    for after in (
        outcome.disk.kill(),
        outcome.disk.crash(DROP),
        outcome.disk.crash(OUTCOMES_BY_NAME["mixed"], rng.random()),
    ):
        driver = StoreDriver(after, TINY)
        found = driver.history.states[0]
        require(
            found in outcome.allowed, f"after the fault: {describe_difference(found, outcome.allowed[0])}"
        )
        check_store(driver.store)
        driver.create("AFTER")
        driver.commit_and_wait()


def goes_silent(outcome: Outcome) -> None:
    """Check that nothing is acknowledged after a failed sync, and that the store reports why."""
    driver = outcome.driver
    if driver is None:
        return
    while driver.step():
        pass
    require(driver.store.poisoned is not None, "a sync failed, yet the store is not poisoned")
    acked = driver.history.acked_index
    try:
        for _ in range(3):
            driver.append("A")
            driver.commit_and_wait()
    except (StoreError, OSError):
        pass
    else:
        raise Violation("a poisoned store took messages and committed them")
    while driver.step():
        pass
    require(driver.history.acked_index == acked, "a poisoned store acknowledged a frame")


def goes_on(outcome: Outcome) -> None:
    """Check that pending changes become durable, and new ones are accepted, when there is space again."""
    driver = outcome.driver
    outcome.disk.faults.clear()
    if driver is None:
        return
    driver.store.on_idle()
    while driver.step():
        pass
    require(driver.store.poisoned is None, "no room, and the store is poisoned")
    driver.run_until_idle()
    for _ in range(3):
        driver.append("A")
        driver.commit_and_wait()
    driver.run_until_idle()
    require(
        driver.history.acked_index == driver.history.newest_index, "what waited for room is still not durable"
    )
    require(not driver.store.full, "there is room, and the store is full")
