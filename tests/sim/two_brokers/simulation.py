"""Simulates two brokers over one archive from one seed.

Each of two machines runs processes that serve or stand by, with real brokers, stores and archivers; the object store
delays requests, executes them twice or late, loses replies and hides new objects from lists. Processes are suspended in the
middle of a group, killed, lose power, and are cut off from the object store. Clients record everything that any broker
sends to them. Invariant: the seed decides everything, so that two runs give the same digest.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from random import Random
from typing import Any

from headrace.archive.archive_restore import RestorePoint
from headrace.archive.group_log import GroupLog
from headrace.backup.target import BackupTarget
from headrace.broker.consumers.consumer_flush import FLUSH_INTERVAL_NS
from headrace.errors import ArchiveError
from headrace.sim.checkers.store_invariants import Violation, check_store, describe_difference
from headrace.sim.clock import SECOND_NS, SimClock
from headrace.sim.disk.sim_disk import SimDisk
from headrace.sim.event_loop import SimLoop, run_program
from headrace.sim.sim_broker import SimBroker

from .bucket import NO_FAULTS, BucketClient, SimArchiveBucket, StoredObject
from .checker import PREFIX, FactChecker, LogChecker
from .clients import Client, Consumer, Operator, Publisher
from .logical_state import read_consumers, read_logical_state
from .machine import Machine
from .options import derive_options
from .process import SimProcess
from .server import SERVER, LeaderServer
from .standby import restore_disk

HEAL_S = 90.0
#: Ack states that no reply waits for are in a frame after this time.
FLUSHED_NS = 3 * FLUSH_INTERVAL_NS
DRILLS_MAX = 4
MAX_EPOCH = 1 << 62
#: The consumers of work queues: what they acknowledge is removed.
WORK_CONSUMERS = {"W": "CW"}


class NoDeadlines:
    """Nothing happens outside of the coroutines."""

    def next_deadline(self) -> int | None:
        return None

    def run_due(self) -> None:
        """Do nothing."""


class TwoBrokerSimulation:
    """The run of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.options = derive_options(seed)
        self.rng = self.make_rng("simulation")
        random.seed(f"jitter {seed}")  # used by the broker itself
        self.clock = SimClock()
        self.bucket = SimArchiveBucket(self.clock, self.make_rng("bucket"), self.options.faults)
        self.bucket.observe = self._on_change
        self.bucket.keeps_numbers = self.options.keeps_numbers
        self.log = LogChecker()
        self.checker = FactChecker(self.log, self.options)
        self.streams = ("S", "W")
        self.machines: list[Machine] = []
        self.is_ending = self.has_ended = False
        self.starts = self.drills = self.compared = self.fenced = self.returned = 0
        self.violation: BaseException | None = None
        self.errors: dict[str, int] = {}
        self._suspend_at_create = False
        self._disks: dict[int, SimDisk] = {}  # of the leader, when it had created a group
        self._digest = hashlib.blake2b(digest_size=16)
        self._tasks: list[asyncio.Task[Any]] = []
        self._publishing: list[asyncio.Task[Any]] = []
        self._missing = ""

    def __str__(self) -> str:
        return f"TwoBrokerSimulation(seed={self.seed}): {self.options}"

    def make_rng(self, name: str) -> Random:
        return Random(f"two brokers {self.seed} {name}")

    def trace(self, *items: str) -> None:
        self._digest.update(f"{self.clock.now_ns()} {' '.join(items)}\n".encode())

    @property
    def digest(self) -> str:
        """A digest of everything that happened."""
        return self._digest.hexdigest()

    def run(self) -> None:
        """Run with faults, then without."""
        loop = SimLoop(self.clock, NoDeadlines())
        loop.set_exception_handler(self._on_loop_error)
        run_program(loop, self._run())

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, AssertionError):  # others are of tasks of dead processes, which nobody waits for
            self._note_violation(error)

    def _note_violation(self, error: BaseException) -> None:
        if self.violation is None:
            self.violation = error

    def note_error(self, error: Exception) -> None:
        """Count an error of the object store, which a process has survived; others end the run."""
        if isinstance(error, Violation | AssertionError | TypeError | AttributeError | KeyError):
            self._note_violation(error)
        name = type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + 1

    def on_process_end(self, task: asyncio.Task[Any]) -> None:
        """Processes never end by themselves."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._note_violation(error)

    # What happens

    async def _run(self) -> None:
        skews = self.options.skew_ns
        self.machines = [Machine(self, name, skew) for name, skew in zip("AB", skews, strict=True)]
        faults, self.bucket.faults = self.bucket.faults, NO_FAULTS
        for machine in self.machines:
            machine.start()
        operator = Operator(self, "operator")
        await self._watch(operator.set_up())
        self.bucket.faults = faults
        clients: list[Client] = [Publisher(self, f"p{n}") for n in range(self.options.publishers)]
        clients += [Consumer(self, stream) for stream in self.streams]
        self._tasks = [asyncio.create_task(each.run()) for each in (*clients, operator)]  # type: ignore[attr-defined]
        self._publishing = self._tasks[: self.options.publishers]
        for _ in range(self.options.events):
            await self._watch(asyncio.sleep(self.rng.expovariate(1 / self.options.event_s)))
            await self._watch(self._run_event())
        await self._watch(self._end(operator))

    async def _watch(self, work: Any) -> None:
        """Wait for some work; raise the first violation that anybody has noticed meanwhile."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.wait([task], timeout=0.2)
            for each in self._tasks:
                if each.done() and not each.cancelled() and each.exception() is not None:
                    self._note_violation(each.exception())  # type: ignore[arg-type]
            if self.violation is not None:
                task.cancel()
                raise self.violation
        task.result()

    async def _run_event(self) -> None:
        name = self.rng.choice(self.options.actions)
        leader = next((each for each in self.machines if each.server is not None), None)
        machine = leader if leader is not None and self.rng.random() < 0.8 else self.rng.choice(self.machines)
        self.trace("event", name, machine.name)
        if name == "suspend":
            self._suspend(machine.process)
        elif name == "suspend in a create":
            self._suspend_at_create = True
        elif name in ("kill", "power", "kill standby"):
            if name == "kill standby":
                machine = next((each for each in self.machines if each.server is None), machine)
            machine.kill(with_power=name == "power")
            delay_s = self.rng.choice((0.1, 1.0, 6.0))
            asyncio.get_running_loop().call_later(delay_s, self._start, machine)
        elif name == "disk goes back":
            self._put_disk_back(machine)
        elif name == "cut":
            machine.process.is_cut = True
            loop = asyncio.get_running_loop()
            loop.call_later(self.rng.uniform(0.1, 8), setattr, machine.process, "is_cut", False)
        elif name == "outage":
            self.bucket.is_down = True
            asyncio.get_running_loop().call_later(
                self.rng.uniform(0.1, 6), setattr, self.bucket, "is_down", False
            )
        elif name == "clock":
            machine.clock.skew_ns += self.rng.choice((-5, -1, 1, 5)) * SECOND_NS
        elif name == "drill":
            await self._drill()

    def _put_disk_back(self, machine: Machine) -> None:
        """Copy the disk now, and put the copy back later: a snapshot, or a disk that loses what was synced."""
        copy = machine.copy_disk()
        if copy is None:
            return

        def put_back() -> None:
            if not self.has_ended:
                machine.put_back(copy)
                self.returned += 1
                machine.start()

        asyncio.get_running_loop().call_later(self.rng.choice((0.3, 1.0, 3.0)), put_back)

    def _suspend(self, process: SimProcess) -> None:
        if process.is_running:
            process.suspend()
            asyncio.get_running_loop().call_later(self.rng.choice((0.1, 1, 5, 12)), self._resume, process)

    def _resume(self, process: SimProcess) -> None:
        if not process.is_killed:
            process.resume()

    def _start(self, machine: Machine) -> None:
        if not machine.is_alive:
            machine.start()

    def _on_change(self, key: str, stored: StoredObject | None, sender: str) -> None:
        try:
            self.log.on_change(key, stored, sender)
        except Exception as error:
            self._note_violation(error)
            raise
        if stored is None or not key.startswith(f"{PREFIX}log/0"):
            return
        machine = next((each for each in self.machines if each.process.name == sender), None)
        if machine is None or machine.server is None or machine.server.name != sender:
            return
        if self.rng.random() < 0.05 and len(self._disks) < DRILLS_MAX:
            self._disks[self.log.last] = machine.server.disk.kill()
        if self._suspend_at_create:
            self._suspend_at_create = False
            self._suspend(machine.process)

    # What machines ask

    def is_first(self, machine: Machine) -> bool:
        """Whether this machine begins the archive."""
        return machine is self.machines[0]

    def list_servers(self) -> list[LeaderServer]:
        """Return the servers that accept clients; a suspended one does."""
        found = [each.server for each in self.machines if each.server is not None and each.is_alive]
        return [each for each in found if each.is_serving]

    def on_recovered(self, server: LeaderServer) -> None:
        """Check a store before anybody is served from it."""
        self.starts += 1
        self.trace("recovered", repr(server), str(server.recovered_frame))
        self.checker.check_store(server.store, repr(server), WORK_CONSUMERS, server.epoch)

    def on_fenced(self, machine: Machine, error: Exception) -> None:
        """Check that another machine has written the archive since this one."""
        self.trace("replaced", machine.name, str(error))
        newest = self.log.headers[self.log.last]
        if newest.writer in machine.writers and not machine.has_old_disk:
            raise Violation(
                f"{machine.process.name} is fenced, but {newest.writer} wrote the newest group: {error}"
            )

    # Restores

    async def _drill(self) -> None:
        """Restore the newest state and that of some groups, from the bucket as it is now; the archive is not changed."""
        self.drills += 1
        facts = self.checker.copy()  # restoring takes some time
        copy = SimArchiveBucket(self.clock, self.make_rng(f"drill {self.drills}"), NO_FAULTS)
        copy.objects = {key: each._replace(listed_ns=0) for key, each in self.bucket.objects.items()}
        target = BackupTarget(BucketClient(copy, SimProcess("drill")), f"{SERVER:016x}", "drill")
        floor = (await GroupLog(target, SERVER).read_floor()).number
        try:
            disk, _ = await restore_disk(target, RestorePoint())
        except ArchiveError as error:
            if self.options.is_remote and facts.acks:
                raise Violation(f"the archive cannot be restored: {error}") from error
            return
        if self.options.is_remote:
            facts.check_store(self._recover(disk).store, f"restore {self.drills}", WORK_CONSUMERS, MAX_EPOCH)
        for number, original in sorted(self._disks.items()):
            if number > floor:
                await self._compare(target, number, original)
        self._disks.clear()

    async def _compare(self, target: BackupTarget, number: int, original: SimDisk) -> None:
        """Compare a restored group with the disk of the server that created it."""
        header = self.log.headers[number]
        if not header.is_last_part or not header.heads:
            return
        try:
            disk, result = await restore_disk(target, RestorePoint(group=number))
        except ArchiveError as error:
            if "damaged" in str(error) or "missing" in str(error):
                raise Violation(f"group {number} cannot be restored: {error}") from error
            return
        expected, found = self._recover(original), self._recover(disk)
        (frame,) = header.heads.values()
        if result.heads != header.heads:
            raise Violation(f"group {number} has {header.heads}, restored: {result.heads}")
        if expected.store.report().last_frame != frame:
            return  # the store has gone on
        self.compared += 1
        if (state := read_logical_state(found)) != read_logical_state(expected):
            difference = describe_difference(state, read_logical_state(expected))
            raise Violation(f"restored group {number}, frame {frame}: {difference}")
        replayed = min(expected.store.report().frames_replayed, result.frames)
        if self._is_flushed_since(number, frame - replayed) and read_consumers(found) != read_consumers(
            expected
        ):
            raise Violation(
                f"restored group {number}, frame {frame}: {read_consumers(found)}, not {read_consumers(expected)}"
            )

    def _is_flushed_since(self, number: int, frame: int) -> bool:
        """Return whether all ack states were written between a checkpoint at `frame` and group `number`."""
        end_ns = self.log.headers[number].time_ns
        while number and (header := self.log.headers.get(number)) is not None:
            if any(first <= frame + 1 <= last for first, last in header.frames.values()):
                return end_ns - header.time_ns > FLUSHED_NS
            number -= 1
        return False

    def _recover(self, disk: SimDisk) -> SimBroker:
        """Start a broker on a disk, which serves nobody."""
        broker = SimBroker(disk, self.options.store, SimClock(self.clock.now_ns()))
        if not broker.store.report().healthy:
            raise Violation(f"a restored store is damaged: {broker.store.report().damage}")
        check_store(broker.store)
        return broker

    def count(self) -> dict[str, int]:
        """Return what happened, for reports."""
        return {
            "acknowledged messages": self.checker.acks,
            "deliveries": self.checker.deliveries,
            "groups": self.log.last,
            "starts": self.starts,
            "epochs": len(self.checker.epochs),
            "fenced servers": self.fenced,
            "disks put back": self.returned,
            "creates below the floor": self.log.strays,
            "restored groups compared": self.compared,
            "drills": self.drills,
            "requests": self.bucket.requests,
        }

    # The end

    async def _end(self, operator: Operator) -> None:
        """Heal everything; then all messages arrive, and all facts hold."""
        self.bucket.faults, self.bucket.is_down = NO_FAULTS, False
        self.is_ending = True
        for machine in self.machines:
            machine.process.is_cut = False
            if machine.is_alive:
                machine.process.resume()
            else:
                machine.start()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + HEAL_S
        while not await self._is_complete(operator):
            if loop.time() > end_s:
                done = [each.done() for each in self._publishing]
                raise Violation(f"not complete after {HEAL_S:g} s: {done}, {self._missing}, {self.errors}")
            await asyncio.sleep(0.5)
        self.has_ended = True
        await self._drill()
        for server in self.list_servers():
            if server.epoch == self.log.headers[self.log.last].epoch:
                self.checker.check_store(server.store, repr(server), WORK_CONSUMERS, server.epoch)
        facts = self.checker
        self.trace("end", str(facts.acks), str(facts.deliveries), str(self.starts), str(self.log.last))

    async def _is_complete(self, operator: Operator) -> bool:
        """Whether all messages were acknowledged, and delivered to consumers that have acknowledged them."""
        if not all(each.done() for each in self._publishing):
            return False
        self._missing = ""
        newest = self.log.headers[self.log.last].epoch
        for stream in self.streams:
            info = await operator.request(f"$JS.API.CONSUMER.INFO.{stream}.C{stream}")
            state = json.loads(info[1]) if info is not None else {}
            if state.get("num_pending", 1) or state.get("num_ack_pending", 1):
                self._missing = f"{stream}: {state}"
        for server in self.list_servers():
            # One that was replaced must notice it when it archives something.
            if server.gate is not None and server.gate.is_waiting and server.epoch < newest:
                self._missing = f"{server} waits for the archive, not fenced"
        return not self._missing
