"""Crashes on a disk that is full, or nearly so: a store starts again in the space it had.

A workload is run on a disk of limited size. After a crash the disk has either the same limit or, as if other files had
filled it, no free byte. The guarantees: the store opens, it has everything acknowledged, recoveries that are killed one
after another do not use more and more space, and a purge is durable and frees the files.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice, product
from random import Random

from headrace.errors import StoreError, StoreFull
from headrace.sim import OUTCOMES, OUTCOMES_BY_NAME, DiskSnapshot, SimClock, SimDisk
from headrace.sim.checkers.store_invariants import Violation, require
from headrace.sim.checkers.store_model import StoreState
from headrace.sim.clock import EPOCH_NS, SECOND_NS
from headrace.sim.workloads.store_driver import StoreDriver
from headrace.storage import StoreOptions

from .crash_points import KILL, Point, Trace, demand_sound
from .store_sizes import KIB, TINY
from .workloads import SCRIPTED, Workload, prepare, spell, words

#: Bytes kept free beyond what is waiting to be written: plenty; just a journal file and a checkpoint; and none, so
#: that the disk is filled to the last byte. Then metadata can use up the journal, and a purge waits until there is
#: space.
HEADROOMS = (64 * KIB, 24 * KIB, 0)
#: How full the disk gets, as a fraction of what the workload uses at most on a large one.
LEVELS = (0.35, 0.5, 0.65, 0.8, 0.9, 1.0)
#: A campaign checks every n-th point of a workload.
STRIDE = 7
#: Recoveries killed in a row.
KILLS = 5


class CrampedDriver(StoreDriver):
    """Continues on a full disk: a refused message is in neither the store nor the model."""

    refused = 0

    def append(
        self, name: str, subject: bytes = b"a", size: int = 20, header: bytes = b"", ttl_s: int = 0
    ) -> int:
        try:
            return super().append(name, subject, size, header, ttl_s)
        except StoreFull:
            self.refused += 1
            return 0

    def replace(self, name: str, subject: bytes, size: int = 20) -> int:
        before = self.refused
        log, model = self.log(name), self.model.logs[name]
        older = [seq for seq, message in model.messages.items() if message[1] == subject]
        seq = self.append(name, subject, size)
        if self.refused == before:
            log.remove_many(older)
            for gone in older:
                model.remove(gone)
        return seq


def replay(label: str) -> None:
    """Repeat one crash, with a label such as "grow/0@65536@0.5:75:kill:none"."""
    name, number, outcome, spare = label.split(":")
    workload, headroom, level = name.split("@")
    FullChecker(record(workload, int(headroom), float(level))).check(int(number), outcome, spare)


def largest(story: Workload, seed: str, options: StoreOptions) -> tuple[int, int]:
    """Return the bytes in use by a new store, and the maximum while a workload runs on a large disk."""
    disk = SimDisk(0)
    driver = CrampedDriver(disk, options)
    driver.run_until_idle()
    first = most = disk.used()

    def look(op: tuple) -> None:
        nonlocal most
        most = max(most, disk.used())

    disk.before_op = look
    story(driver, Random(seed))
    return first, most


def grow(driver: StoreDriver, rng: Random) -> None:
    """Publish until the disk is full, with removals, deletions and large messages in between."""
    for name in "ABC":
        driver.create(name)
    for number in range(60):
        name = rng.choice("AAB")
        driver.append(name, rng.choice((b"a", b"b.c", b"d")), rng.choice((40, 300, 900, 5_000)))
        if rng.random() < 0.2 and driver.get_model(name).messages:
            driver.remove(name, rng.choice(sorted(driver.get_model(name).messages)))
        if rng.random() < 0.1:
            driver.put(b"k%d" % rng.randrange(4), b"v" * rng.randrange(60))
        if number == 40:
            driver.remove_below("B", driver.get_model("B").last_seq)
        driver.commit_and_wait() if rng.random() < 0.7 else driver.commit()
    driver.run_until_idle()


def acknowledge(driver: StoreDriver, rng: Random) -> None:
    """Fill the disk, then write only metadata, as acks do."""
    driver.create("A")
    for _ in range(30):
        driver.append("A", b"a", rng.choice((300, 900)))
        driver.commit_and_wait()
    for number in range(60):
        driver.merge(b"ack%d" % (number % 3), b"x" * 200)
        driver.commit_and_wait()
    driver.run_until_idle()


STORIES: dict[str, Workload] = {**SCRIPTED, "grow": grow, "acknowledge": acknowledge}


def run_word(word: str, driver: StoreDriver, rng: Random) -> None:
    """Run a small workload on the disk that `prepare` left."""
    prepare(driver)
    spell(driver, word)


def record(label: str, headroom: int, level: float) -> Trace:
    """Run a workload on a limited disk; it ends early if a frame finds no space."""
    name, _, seed = label.partition("/")
    options = replace(TINY, headroom_bytes=headroom)
    story = partial(run_word, seed) if name == "small" else STORIES[name]
    first, most = largest(story, label, options)
    disk = SimDisk(0)
    points: list[Point] = []
    driver: CrampedDriver | None = None

    def before(op: tuple) -> None:
        history = driver.history if driver else None
        acked, admitted = (history.acked_index, history.newest_index) if history else (0, 0)
        points.append(Point(disk.snapshot(), acked, admitted, op[:2]))

    driver = CrampedDriver(disk, options)
    driver.run_until_idle()
    disk.capacity = first + int((most - first) * level) + headroom // 2
    disk.before_op = before
    try:
        story(driver, Random(label))
    except (StoreError, IndexError):
        pass  # a frame or a pin finds no space, or there is no message to choose from
    before(("end",))
    disk.before_op = None
    name = f"{label}@{headroom}@{level}"
    return Trace(name, driver.history.states, points, options, disk.capacity)


@dataclass
class Filled:
    """Counts of the trials."""

    points: int = 0
    in_place: int = 0
    kills: int = 0
    purges: int = 0
    exhausted: int = 0  # the journal had no space left for a purge
    seconds: float = 0.0

    def add(self, other: Filled) -> None:
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __str__(self) -> str:
        return (
            f"{self.points:,} crashes on a full disk ({self.in_place:,} opened in place, {self.kills:,} killed "
            f"recoveries, {self.purges:,} purges, {self.exhausted:,} of them waited for space) "
            f"in {self.seconds:.1f} s of CPU"
        )


class FullChecker:
    """Checks crashes at the points of a trace on a limited disk."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.capacity = trace.capacity
        self.tally = Filled()

    def run(self, stride: int = 1, offset: int = 0) -> Filled:
        """Check each `stride`-th point after a kill and one kind of power loss, with the limit and with no free byte."""
        started = time.process_time()
        for number in range(offset, len(self.trace.points), stride):
            outcome = OUTCOMES[number // stride % len(OUTCOMES)].name
            for how in (KILL, outcome):
                for spare in ("limit", "none"):
                    self.check(number, how, spare)
        self.tally.seconds += time.process_time() - started
        return self.tally

    def check(self, number: int, outcome: str, spare: str) -> None:
        label = f"{self.trace.label}:{number}:{outcome}:{spare}"
        point = self.trace.points[number]
        after = point.snapshot
        if outcome in OUTCOMES_BY_NAME:
            after = after.power_loss(OUTCOMES_BY_NAME[outcome], Random(label))
        self.tally.points += 1
        try:
            self._trial(point, after, spare, Random(label))
        except Exception as error:
            replay = f"python -m tests.crash.enumerate_crash_points --full '{label}'"
            raise Violation(
                f"{type(error).__name__}: {error}\nbefore {point.op} at {label}\nreplay: {replay}"
            ) from error

    def _trial(self, point: Point, after: DiskSnapshot, spare: str, rng: Random) -> None:
        disk = self._disk(after, spare, rng)
        if rng.random() < 0.3:
            disk = self._kill_recoveries(disk, point, rng)
        driver, found = self._recover(disk, point)
        if rng.random() < 0.5:
            how = rng.choice(("kill", *(outcome.name for outcome in OUTCOMES)))
            snapshot = disk.snapshot()
            if how != "kill":
                snapshot = snapshot.power_loss(OUTCOMES_BY_NAME[how], Random(rng.random()))
            self._recover(self._disk(snapshot, spare, rng), point, found)
        if rng.random() < 0.3:
            self._relieve(driver, rng)
        else:
            self._purge(driver, rng)

    def _relieve(self, driver: CrampedDriver, rng: Random) -> None:
        """Free space: the store must accept messages again, and be complete after another crash."""
        driver.disk.capacity = None
        driver.store.on_idle()
        self._rest(driver)
        require(not driver.store.full, "there is space, and the store is full")
        for name in sorted(driver.model.logs):
            driver.append(name)
        self._rest(driver)
        if rng.random() < 0.5:
            driver.checkpoint()
        require(not driver.refused, "there is space, and a message was refused")
        self._demand_found(driver.disk, driver.model.to_state(), rng)

    def _demand_found(self, disk: SimDisk, expected: StoreState, rng: Random) -> None:
        """Check that the store has this state after another crash and reports no damage."""
        snapshot = disk.snapshot()
        if rng.random() < 0.5:
            snapshot = snapshot.power_loss(rng.choice(OUTCOMES), Random(rng.random()))
        again = SimDisk(rng.randrange(1 << 30), snapshot=snapshot)
        again.capacity = disk.capacity
        driver = CrampedDriver(again, self.trace.options)
        require(driver.history.states[0] == expected, "not what was acknowledged")
        demand_sound(driver)

    def _disk(self, snapshot: DiskSnapshot, spare: str, rng: Random) -> SimDisk:
        disk = SimDisk(rng.randrange(1 << 30), snapshot=snapshot)
        disk.capacity = disk.used() if spare == "none" else self.capacity
        return disk

    def _recover(self, disk: SimDisk, point: Point, found: int | None = None) -> tuple[CrampedDriver, int]:
        driver = CrampedDriver(disk, self.trace.options, SimClock(EPOCH_NS + 1_000 * SECOND_NS))
        state: StoreState = driver.history.states[0]
        low, high = (point.acked, point.admitted) if found is None else (found, found)
        for index in range(high, low - 1, -1):
            if self.trace.states[index] == state:
                demand_sound(driver)
                self.tally.in_place += driver.store.checkpointer.durable_number > 0
                return driver, index
        raise Violation("neither the acknowledged state nor a later one")

    def _kill_recoveries(self, disk: SimDisk, point: Point, rng: Random) -> SimDisk:
        """Kill recoveries at some operation, one after another: the space in use must not grow."""
        allowed, used = max(disk.capacity or 0, disk.used()), []
        for _ in range(KILLS):
            taken: list[DiskSnapshot] = []
            disk.before_op = lambda op, disk=disk, taken=taken: taken.append(disk.snapshot())
            self._recover(disk, point)
            taken.append(disk.snapshot())
            capacity = disk.capacity
            disk = SimDisk(rng.randrange(1 << 30), snapshot=rng.choice(taken[len(taken) // 2 :]))
            disk.capacity = capacity
            used.append(disk.used())
            self.tally.kills += 1
        require(max(used) <= allowed, f"recoveries use more space than allowed: {used}")
        return disk

    def _rest(self, driver: CrampedDriver) -> None:
        """Run everything that the store can do now, like a broker that calls `on_idle` every second."""
        for _ in range(4):
            driver.run_until_idle()
            driver.store.on_idle()
        driver.run_until_idle()

    def _purge(self, driver: CrampedDriver, rng: Random) -> None:
        """Purge or delete everything: that must be durable and remove the files."""
        self.tally.purges += 1
        disk = driver.disk
        for name in sorted(driver.model.logs):
            if rng.random() < 0.2:
                driver.delete(name)
            elif rng.random() < 0.2:
                for seq in sorted(driver.get_model(name).messages):
                    driver.remove(name, seq)
            else:
                driver.remove_below(name, driver.get_model(name).last_seq + 1)
        expected = driver.model.to_state()
        try:
            self._rest(driver)
        except StoreFull:
            require(not self.trace.options.headroom_bytes, "the journal has no room for a purge")
            self.tally.exhausted += 1
            disk.capacity = disk.used() + 4 * TINY.journal_bytes
            driver.store.on_idle()
            self._rest(driver)
        require(driver.store.poisoned is None, "the store is poisoned")
        left = [path for path in disk.walk("streams") if path.endswith(".seg") and disk.size(path)]
        held = {
            segment.path
            for log in driver.store.iter_file_logs()
            for segment in log.list_segments()
            if segment.columns.alive or not driver.store.full
        }
        require(not driver.store.full or set(left) <= held, f"files are left after a purge: {left}")
        self._demand_found(disk, expected, rng)


def campaign(seconds: int, start: int) -> int:
    """Run workload after workload at every level and headroom, for some seconds of CPU time; print a line for each."""
    total, failures = Filled(), 0
    spelled = words()
    for seed in count(start):
        labels = [f"{name}/{seed}" for name in STORIES] + [f"small/{word}" for word in islice(spelled, 10)]
        for label in labels:
            for headroom, level in product(HEADROOMS, LEVELS):
                checker = FullChecker(record(label, headroom, level))
                try:
                    checker.run(STRIDE, Random(f"{label}{headroom}{level}").randrange(STRIDE))
                except Violation as error:
                    failures += 1
                    print(f"FAILED {error}", flush=True)
                total.add(checker.tally)
            print(f"{label}: {total}; {failures} failures", flush=True)
            if time.process_time() > seconds:
                return 1 if failures else 0
    return 0
