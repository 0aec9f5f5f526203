"""Crash points: runs a workload once, copies the disk before each operation, and starts every crash from there.

A point is checked by a power loss with some outcome, recovery, and these guarantees: the store equals a state between
the newest acknowledged one and the newest sealed one; its index equals a scan. Then follows one of the further trials,
in turn: a kill and another start, a power loss right after recovery, further changes and another crash, a crash during
recovery (and during the recovery from that).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import NamedTuple

from headrace.sim import OUTCOMES, OUTCOMES_BY_NAME, DiskSnapshot, SimClock, SimDisk
from headrace.sim.checkers.store_invariants import (
    Violation,
    check_store,
    describe_difference,
    read_log_state,
    require,
)
from headrace.sim.checkers.store_model import StoreState
from headrace.sim.clock import EPOCH_NS, SECOND_NS
from headrace.sim.workloads.store_driver import StoreDriver
from headrace.storage import StoreOptions

from .store_sizes import TINY
from .workloads import SCRIPTED, prepare, spell

DROP = OUTCOMES_BY_NAME["drop"]
#: A kill, not a power loss: the pages stay in the cache until the power fails after recovery.
KILL = "kill"
#: The same in the middle of a write, of which any prefix is in the cache.
KILL_IN_WRITE = "kill in a write"


#: How many operations of a recovery are chosen for a crash, besides its end.
NESTED = 4


class Point(NamedTuple):
    """The disk before an operation, and the states that are allowed after a power loss there."""

    snapshot: DiskSnapshot
    acked: int
    admitted: int
    op: tuple


@dataclass
class Trace:
    """The recording of a workload: its points and its states."""

    label: str
    states: list[StoreState]
    points: list[Point]
    options: StoreOptions = TINY
    capacity: int | None = None


@dataclass
class Tally:
    """Counts of the trials."""

    points: int = 0
    nested: int = 0
    again: int = 0
    seconds: float = 0.0
    by_outcome: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.points + self.nested + self.again

    def add(self, other: Tally) -> None:
        self.points += other.points
        self.nested += other.nested
        self.again += other.again
        self.seconds += other.seconds
        for name, count in other.by_outcome.items():
            self.by_outcome[name] = self.by_outcome.get(name, 0) + count

    def __str__(self) -> str:
        rate = self.total / self.seconds if self.seconds else 0
        return (
            f"{self.total:,} crash points ({self.points:,} first crashes, {self.again:,} second ones, "
            f"{self.nested:,} inside recovery) in {self.seconds:.1f} s of CPU, {rate:,.0f}/s"
        )


def record(
    label: str, story: Callable[[StoreDriver], None], disk: SimDisk, options: StoreOptions = TINY
) -> Trace:
    """Run a workload; record the disk before each of its operations, and at its end."""
    points: list[Point] = []
    driver: StoreDriver | None = None

    def before(op: tuple) -> None:
        if op[0] == "write":  # its buffers may be used again
            op = (*op[:3], b"".join(op[3]) if isinstance(op[3], list) else bytes(op[3]))
        history = driver.history if driver else None
        acked, admitted = (history.acked_index, history.newest_index) if history else (0, 0)
        points.append(Point(disk.snapshot(), acked, admitted, op))

    disk.before_op = before
    driver = StoreDriver(disk, options)
    story(driver)
    before(("end",))
    disk.before_op = None
    demand_equal(driver)
    return Trace(label, driver.history.states, points, options)


def scripted(name: str, seed: int) -> Trace:
    """Run a scripted workload with one order of its disk queues."""
    rng = Random(f"{name}/{seed}")
    return record(f"{name}/{seed}", lambda driver: SCRIPTED[name](driver, rng), SimDisk(seed))


class Prepared(NamedTuple):
    """The disk that small workloads start from, and its content."""

    snapshot: DiskSnapshot
    state: StoreState


@cache
def prepared() -> Prepared:
    disk = SimDisk()
    driver = StoreDriver(disk, TINY)
    prepare(driver)
    return Prepared(disk.snapshot(), driver.model.to_state())


def small(word: str) -> Trace:
    """Run a small workload on the disk that `prepare` left."""
    disk = SimDisk(len(word), snapshot=prepared().snapshot)
    return record(f"small/{word}", lambda driver: spell(driver, word), disk)


def trace_of(label: str) -> Trace:
    """Return the trace of a label such as "append/0" or "small/alc"."""
    name, _, rest = label.partition("/")
    return small(rest) if name == "small" else scripted(name, int(rest))


class Checker:
    """Checks crashes at the points of one trace."""

    def __init__(self, trace: Trace, *, deep: int = 4) -> None:
        self.trace = trace
        #: Every `deep`-th point gets a crash inside recovery; the others one of the cheaper trials.
        self.deep = deep
        self.tally = Tally()
        self._seen: set[tuple[int, int]] = set()

    def run(self, stride: int = 1, offset: int = 0) -> Tally:
        """Check all points, or each `stride`-th, each with every outcome."""
        started = time.process_time()
        for number in range(offset, len(self.trace.points), stride):
            for outcome in (KILL, *(outcome.name for outcome in OUTCOMES)):
                self.check(number, outcome)
            if self.trace.points[number].op[0] == "write":
                self.check(number, KILL_IN_WRITE)
        self.tally.seconds += time.process_time() - started
        return self.tally

    def check(self, number: int, outcome: str) -> None:
        """Check one point with one outcome, unless the same disk was checked at this point already."""
        label = f"{self.trace.label}:{number}:{outcome}"
        after = self.trace.points[number].snapshot
        if outcome in OUTCOMES_BY_NAME:
            after = after.power_loss(OUTCOMES_BY_NAME[outcome], Random(label))
            if (number, after.signature) in self._seen:
                return
            self._seen.add((number, after.signature))
        self.tally.points += 1
        self.tally.by_outcome[outcome] = self.tally.by_outcome.get(outcome, 0) + 1
        try:
            self._trial(number, after, label)
        except Exception as error:
            op = self.trace.points[number].op[:2]
            replay = f"python -m tests.crash.enumerate_crash_points --replay '{label}'"
            raise Violation(
                f"{type(error).__name__}: {error}\nbefore {op} at {label}\nreplay: {replay}"
            ) from error

    def _trial(self, number: int, after: DiskSnapshot, label: str) -> None:
        point = self.trace.points[number]
        rng = Random(label + "!")
        killed = label.rpartition(":")[2].startswith(KILL)
        turn = LOSE_POWER if killed else rng.randrange(self.deep + 3)
        disk = SimDisk(rng.randrange(1 << 30), snapshot=after)
        if label.endswith(KILL_IN_WRITE):
            kind, path, offset, data = point.op
            disk.run([(kind, path, offset, data[: rng.randrange(len(data) + 1)])])
        if turn > 3:
            driver, _ = self._recover(disk, point.acked, point.admitted)
        elif turn == 3:
            self._crash_in_recovery(disk, point.acked, point.admitted, rng, depth=2)
        else:
            driver, found = self._recover(disk, point.acked, point.admitted)
            TRIALS[turn](self, driver, found, rng)

    def _recover(self, disk: SimDisk, acked: int, admitted: int) -> tuple[StoreDriver, int]:
        """Open the store; return which of the allowed states it has."""
        driver = StoreDriver(disk, self.trace.options, SimClock(EPOCH_NS + 1_000 * SECOND_NS))
        found = driver.history.states[0]
        for index in range(admitted, acked - 1, -1):
            if self.trace.states[index] == found:
                demand_sound(driver)
                return driver, index
        wanted = self.trace.states[acked]
        raise Violation(
            f"neither the acknowledged state nor a later one: {describe_difference(found, wanted)}"
        )

    def _kill(self, driver: StoreDriver, found: int, rng: Random) -> None:
        """Check that recovery is idempotent."""
        self.tally.again += 1
        self._recover(driver.disk.kill(), found, found)

    def _lose_power(self, driver: StoreDriver, found: int, rng: Random) -> None:
        """Check that everything is durable after recovery, by a power loss right after it."""
        for outcome in (DROP, rng.choice(OUTCOMES)):
            self.tally.again += 1
            self._recover(driver.disk.crash(outcome, rng.randrange(1 << 30)), found, found)

    def _go_on(self, driver: StoreDriver, found: int, rng: Random) -> None:
        """Continue to use the store; after another crash, nothing from before the first crash may reappear."""
        trace = Trace(self.trace.label + "+", [], [], self.trace.options)
        self._extend(driver)
        driver.commit_and_wait()
        self._extend(driver)
        driver.commit()
        for _ in range(rng.randrange(4)):
            driver.step()
        trace.states = driver.history.states
        self.tally.again += 1
        after = driver.disk.crash(rng.choice(OUTCOMES), rng.randrange(1 << 30))
        Checker(trace)._recover(after, driver.history.acked_index, driver.history.newest_index)

    def _extend(self, driver: StoreDriver) -> None:
        for name in sorted(driver.model.logs):
            driver.append(name, b"after")
        if not driver.model.logs:
            driver.create("AFTER")

    def _crash_in_recovery(self, disk: SimDisk, acked: int, admitted: int, rng: Random, depth: int) -> None:
        """Crash at some operations of the recovery, and of the recovery after one of these crashes."""
        taken: list[DiskSnapshot] = []
        disk.before_op = lambda op: taken.append(disk.snapshot())
        driver, found = self._recover(disk, acked, admitted)
        taken.append(driver.disk.snapshot())
        served = len(taken) - 1
        places = {served, *(rng.randrange(len(taken)) for _ in range(NESTED))}
        deeper = rng.choice(sorted(places))
        for place in sorted(places):
            snapshot, outcome = taken[place], rng.choice(OUTCOMES)
            after = SimDisk(snapshot=snapshot.power_loss(outcome, Random(rng.random())))
            low, high = (found, found) if place == served else (acked, admitted)
            self.tally.nested += 1
            if depth > 1 and place == deeper:
                self._crash_in_recovery(after, low, high, rng, depth - 1)
            else:
                self._recover(after, low, high)


TRIALS = (Checker._kill, Checker._lose_power, Checker._go_on)
LOSE_POWER = 1


def demand_equal(driver: StoreDriver) -> None:
    """Check that the running store equals the model, memory streams included."""
    for name, log in driver.store.logs.items():
        require(read_log_state(log) == driver.get_model(name).to_state(), f"{name} differs from the model")
    check_store(driver.store)


def demand_sound(driver: StoreDriver) -> None:
    """Check that the index equals a scan, and that a power loss alone is not reported as damage."""
    check_store(driver.store)
    report = driver.store.report()
    for log in driver.store.logs.values():
        require(log.committed_seq == log.last_seq, f"{log.name}: committed up to {log.committed_seq}")
    require(not report.damage, f"damage was reported after a power loss: {report.damage}")


def labels(seeds: int) -> Iterator[str]:
    for seed in range(seeds):
        for name in SCRIPTED:
            yield f"{name}/{seed}"
