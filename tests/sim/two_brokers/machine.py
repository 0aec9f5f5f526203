"""A machine: its disk, and the processes that run on it one after the other.

Owns what survives a process: the disk, and what the machine has recorded about the archive. A machine serves from its own
disk if nobody else has written the archive since; otherwise it is a standby, and its disk is replaced at a takeover.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.archive.archive_restore import RestorePoint
from headrace.archive.group_writer import EarlierRuns
from headrace.backup.target import BackupTarget
from headrace.claims.stores import ObjectStoreError
from headrace.errors import ArchiveDamaged, ArchiveError, ArchiveFenced, ArchiveTrimmed, BackupError
from headrace.sim.disk.crash_outcomes import OUTCOMES
from headrace.sim.disk.sim_disk import SimDisk

from .bucket import BucketClient
from .process import MachineClock, SimProcess
from .server import SERVER, LeaderServer
from .standby import Standby, restore_disk

if TYPE_CHECKING:
    from .simulation import TwoBrokerSimulation


class DiskCopy(NamedTuple):
    """A disk, and what the machine had recorded about the archive."""

    disk: SimDisk
    writers: set[str]
    epoch: int
    group: int


class Machine:
    """One of the two machines."""

    def __init__(self, simulation: TwoBrokerSimulation, name: str, skew_ns: int) -> None:
        self.simulation = simulation
        self.name = name
        self.rng = simulation.make_rng(f"machine {name}")
        self.clock = MachineClock(simulation.clock, skew_ns)
        self.disk: SimDisk | None = None
        self.writers: set[str] = set()
        self.epoch = self.group = 0
        self.has_old_disk = False
        self.process = SimProcess(f"{name}0")
        self.server: LeaderServer | None = None
        self._starts = 0

    def start(self) -> None:
        """Start a process."""
        self._starts += 1
        self.process = SimProcess(f"{self.name}{self._starts}")
        self.server = None
        task = self.process.spawn(self._run(self.process))
        task.add_done_callback(self.simulation.on_process_end)

    def kill(self, *, with_power: bool) -> None:
        """End the process at once; with its power, the machine loses what was not synced."""
        if self.disk is not None and with_power:
            self.disk = self.disk.crash(self.rng.choice(OUTCOMES), self.rng.randrange(1 << 30))
        self.process.kill()
        self.server = None

    def copy_disk(self) -> DiskCopy | None:
        """Return the disk as it would be after a kill now, with what the machine has recorded on it."""
        if self.disk is None or self.server is None:
            return None
        return DiskCopy(self.disk.kill(), set(self.writers), self.epoch, self.group)

    def put_back(self, copy: DiskCopy) -> None:
        """End the process, and replace the disk by an earlier state of it."""
        self.kill(with_power=False)
        self.disk, self.writers, self.epoch, self.group = copy
        self.has_old_disk = True

    @property
    def is_alive(self) -> bool:
        return not self.process.is_killed

    async def _run(self, process: SimProcess) -> None:
        """Be a standby or a leader, one after the other, until the process is killed."""
        target = BackupTarget(BucketClient(self.simulation.bucket, process), f"{SERVER:016x}", "archive")
        turns = 0
        while True:
            turns += 1
            name = f"{self.name}{self._starts}.{turns}"
            process.name = name
            try:
                if self.disk is None:
                    await self._take_over(process, target)
                else:
                    await self._continue(process)
            except ArchiveDamaged:
                raise
            except ArchiveFenced as error:
                self.simulation.on_fenced(self, error)
                self.server = None
                if (
                    not self.has_old_disk or self.rng.random() < 0.5
                ):  # otherwise it is started again with this disk
                    self.disk = None  # the store is built again from the log
            except (ArchiveTrimmed, BackupError, ObjectStoreError) as error:
                self.simulation.note_error(error)
                self.server = None
            await process.sleep(self.rng.uniform(0.05, 0.5))

    async def _continue(self, process: SimProcess) -> None:
        """Serve from the disk of this machine, unless the archive is another server's meanwhile."""
        assert self.disk is not None
        self.disk = self.disk.kill()  # as the process before has left it
        self.writers.add(process.name)
        server = LeaderServer(self.simulation, process, self.clock)
        server.open(self.disk)
        frames = {server.store.store_id: server.recovered_frame}
        await server.take_over(self.writers, frames, EarlierRuns(self.epoch, self.group))
        await self._serve(server)

    async def _take_over(self, process: SimProcess, target: BackupTarget) -> None:
        """Wait until nobody leads, then follow the log to its end and serve."""
        standby = Standby(target, process, self.rng, self.simulation.options.takeover_s)
        await standby.wait()
        newest = await standby.find_newest()
        server = LeaderServer(self.simulation, process, self.clock)
        if newest is None:
            if not self.simulation.is_first(self):
                return
            server.open(SimDisk(self.rng.randrange(1 << 30)))
            await server.take_over({process.name}, {})
        elif self.simulation.options.is_remote:  # `ack: local` never takes over by itself
            header = newest.header
            await server.take_over({process.name, header.writer}, header.heads)
            self.clock.continue_from(header.time_ns)
            server.open(await self._restore(process, target))
        else:
            return
        self.writers = {process.name}
        await self._serve(server)

    async def _restore(self, process: SimProcess, target: BackupTarget) -> SimDisk:
        """Return a disk with everything that is in the archive."""
        while True:
            try:
                return (await restore_disk(target, RestorePoint()))[0]
            except ArchiveError:
                raise
            except Exception as error:
                self.simulation.note_error(error)
                await process.sleep(0.2)

    async def _serve(self, server: LeaderServer) -> None:
        self.server, self.disk = server, server.disk
        self.has_old_disk = False
        self.epoch, self.group = server.epoch, server.writer.progress.group
        self.simulation.trace("leads", repr(server))
        await server.serve()
