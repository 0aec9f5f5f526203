"""Simulated stores with an archive: groups and bases at any moment, kills, and what is restored compared with the model.

Replay a seed: `python -m tests.sim.archive_simulation SEED [SEED_END]`; that is also the long campaign.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from random import Random
from typing import Any

from headrace.archive import group_writer, restored_store
from headrace.archive.archive_restore import ArchiveRestore, RestorePoint
from headrace.archive.group_log import GroupLog
from headrace.archive.group_writer import GroupWriter, WriterSettings
from headrace.archive.journal_tail import StorePosition
from headrace.backup.backup_log import BackupLog
from headrace.backup.pinned_stores import SourceStore
from headrace.backup.target import BackupTarget
from headrace.claims.stores import ObjectStoreError
from headrace.errors import ArchiveError, BackupDamaged, BackupError, StoreError
from headrace.sim.checkers.store_invariants import Violation, check_store, describe_difference, read_state
from headrace.sim.checkers.store_model import StoreState
from headrace.sim.disk.sim_disk import SimDisk
from headrace.sim.store_simulation import StoreSimulation
from headrace.storage import Store, StoreOptions, open_store
from headrace.storage.snapshot.store_pin import StorePin, StorePinPlan, submit_release

from .backup_simulation import SMALL_CHUNKS, WITHOUT_SPARES, SimPinFiles
from .module_settings import module_settings
from .sim_objects import ProcessKilled, SimObjects
from .store_sizes import SIZES

SERVER = 7
SIZES_ALL = (*SIZES, WITHOUT_SPARES)


class PinFailed(StoreError):
    """The simulated store is not quiet enough for a pin."""


def get_durable_frame(store: Store) -> int:
    return store.journal.last_frame - (1 if store.in_flight else 0)


class SimSource:
    """The simulated store of one process, as its archiver sees it."""

    def __init__(self, simulation: ArchiveSimulation) -> None:
        self._simulation = simulation
        self._driver = simulation.driver
        self.store = simulation.driver.store
        self._pin: StorePin | None = None
        self._is_attached = False

    async def read_positions(self) -> list[StorePosition]:
        store = self.store
        frame = get_durable_frame(store)
        if not self._is_attached:
            self._is_attached = True
            store.journal.set_archived(frame)
        self._simulation.record_state()
        return [StorePosition(store.store_id, "$G", frame, store.journal.list_unarchived())]

    def read(self, store_id: int, path: str, offset: int, length: int) -> bytes:
        disk = self._driver.disk
        return disk.read(path, offset, length) if disk.exists(path) else b""

    async def set_archived(self, frames: dict[int, int]) -> None:
        if self.store.poisoned is None:
            self.store.journal.set_archived(frames[self.store.store_id])

    async def set_reserved(self, sequences: dict[int, int]) -> None:
        raise AssertionError("nothing is reserved with this source")

    async def pin(self) -> list[SourceStore]:
        store = self.store
        plan = None
        for _ in range(40):
            plan = StorePinPlan(store, f"{self._simulation.rng.randrange(1 << 40):016x}-0")
            for _ in plan.iter_collect():
                pass
            if plan.is_current and store.poisoned is None:
                break
            self._driver.step()
        else:
            raise PinFailed("not quiet")
        done: list[OSError | None] = []
        pin = self._pin = plan.submit(
            f"{self._simulation.seed:08x}{self._simulation.restarts:08x}", done.append
        )
        while not done:
            self._driver.step()
        if done[0] is not None:
            raise PinFailed(str(done[0]))
        await self._simulation.work_during_base()
        files = SimPinFiles(self._driver.disk, pin)
        return [SourceStore("$G", "headrace", files, pin.lineage, pin.checkpoint, pin.frame, pin.ancestors)]

    async def unpin(self) -> None:
        if self._pin is not None and self.store.poisoned is None:
            submit_release(self.store, self._pin)


class ArchiveSimulation(StoreSimulation):
    """A simulated store with an archiver; all processes of a seed write one archive."""

    def __init__(self, seed: int, store: StoreOptions | None = None) -> None:
        rng = Random(f"archive {seed}")
        self.archive_rng = rng
        faults = rng.choice((0.0, 0.03, 0.1))
        self.objects = SimObjects(Random(f"objects {seed}"), faults, rng.choice((0.0, 0.002, 0.01)))
        self.send_share = rng.choice((0.05, 0.3, 0.8))
        self.base_share = rng.choice((0.02, 0.1))
        self.keep_ns = rng.choice((0, 30_000_000, 10**18))
        self.restarts = 0
        self.restored = 0
        self.states: dict[int, StoreState] = {}
        self.known_writers: set[str] = set()
        self._promised = 0  # a frame that the archiver has called archived
        self._is_nested = False
        super().__init__(seed, store)
        asyncio.run(self.objects.ensure_bucket())
        self.target = BackupTarget(self.objects, f"{SERVER:016x}", "memory")
        self._start_archiver()

    # One process after the other

    def restart(self, disk: SimDisk, how: str) -> None:
        """Recover, and take the archive over."""
        super().restart(disk, how)
        self.restarts += 1
        self._start_archiver()

    def _start_archiver(self) -> None:
        while True:
            name = f"writer-{self.restarts}-{len(self.known_writers)}"
            self.known_writers.add(name)
            settings = WriterSettings(
                SERVER, name, group_bytes=self.archive_rng.choice((1, 3000, 50_000)), keep_ns=self.keep_ns
            )
            self.source = SimSource(self)
            self.writer = GroupWriter(
                self.target, self.source, settings, self.clock.now_ns, lambda error: None, self._no_sleep
            )
            store = self.driver.store
            try:
                self._await(
                    self.writer.take_over(self.known_writers, {store.store_id: store.report().last_frame})
                )
                self._await(self.writer.send_group())
                return
            except (ProcessKilled, ObjectStoreError, BackupError):
                continue  # the next process tries again

    async def _no_sleep(self, delay_s: float) -> None:
        return None

    def _await(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(work)

    def record_state(self) -> None:
        """Note the state at the durable frame."""
        history = self.driver.history
        self.states[get_durable_frame(self.driver.store)] = history.states[history.acked_index]

    # Events

    def run_event(self) -> None:
        """Run an event of the store, then perhaps a step of the archiver."""
        super().run_event()
        if self._is_nested or self.driver.store.poisoned is not None:
            return
        self.record_state()
        if self.driver.store is not self.source.store:
            self._start_archiver()  # a clean restart inside an event
        try:
            if self.archive_rng.random() < self.send_share:
                self._await(self._send())
            if self.archive_rng.random() < self.base_share or (
                self.writer.needs_base and self.archive_rng.random() < 0.2
            ):
                self._await(self._make_base())
            if self.archive_rng.random() < 0.05:
                self._await(self.writer.trim())
            if self.archive_rng.random() < 0.02:
                self._check()
        except BackupDamaged:
            raise
        except (PinFailed, ObjectStoreError, BackupError):
            return
        except ProcessKilled:
            self.restart(self.driver.disk.kill(), "killed archiver")

    async def _send(self) -> None:
        await self.writer.send_group()
        self._note_promise()

    async def _make_base(self) -> None:
        if self.driver.store.checkpointer.durable_number == 0:
            return
        await self.writer.make_base()

    async def work_during_base(self) -> None:
        """Let the store and the groups go on while a base is made."""
        self._is_nested = True
        try:
            for _ in range(self.archive_rng.randrange(4)):
                name = self.archive_rng.choice([each for each in self.options.actions if each != "shutdown"])
                from headrace.sim.store_simulation import ACTIONS

                ACTIONS[name](self)
                self.driver.commit()
                for _ in range(self.archive_rng.randrange(6)):
                    self.driver.step()
                self.record_state()
                if self.archive_rng.random() < 0.5:
                    await self._send()
        finally:
            self._is_nested = False

    def _note_promise(self) -> None:
        """Note what the archiver shows as archived: it must never be missing."""
        writer = self.writer
        if writer.progress.bases:
            self._promised = max(self._promised, *writer.archived.values())

    # Checks

    def run(self) -> str:
        digest = super().run()
        self.objects.faults = self.objects.kills = 0.0
        self._check()
        return digest

    def _check(self) -> None:
        """Restore the newest state and some groups, and compare them with the model."""
        faults, kills = self.objects.faults, self.objects.kills
        self.objects.faults = self.objects.kills = 0.0
        try:
            self._check_points()
        finally:
            self.objects.faults, self.objects.kills = faults, kills

    def _check_points(self) -> None:
        try:
            frame = self._compare(RestorePoint())
        except ArchiveError as error:
            if self._promised:
                raise Violation(
                    f"nothing can be restored, but frame {self._promised} was archived: {error}"
                ) from error
            return
        if frame < self._promised:
            raise Violation(f"frame {self._promised} was archived, but only {frame} is restored")
        bases = [
            record
            for _, record in self._await(BackupLog.load(self.target.open_folder("base"))).list_backups()
        ]
        self._compare(RestorePoint(moment_ns=self.archive_rng.choice(bases).moment_ns))
        log = GroupLog(self.target, SERVER)
        last = self._await(log.find_last())
        floor = self._await(log.read_floor()).number
        for number in self.archive_rng.sample(range(floor + 1, last + 1), min(3, last - floor)):
            try:
                self._compare(RestorePoint(group=number))
            except ArchiveError as error:
                if "damaged" in str(error) or "missing" in str(error):
                    raise Violation(str(error)) from error

    def _compare(self, point: RestorePoint) -> int:
        """Restore a point, compare it with the model, and return its frame."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            result = self._await(ArchiveRestore(self.target, SERVER, folder / "data", point).run())
            disk = _load(folder / "data" / "headrace")
        frame: int
        (frame,) = result.heads.values()
        opened = open_store(disk, self.clock, self.options.store)
        opened.metadata.register_compactor(b"", lambda key: b"")
        if not opened.report().healthy:
            raise Violation(f"a restored store is damaged: {opened.report().damage}")
        check_store(opened)
        expected = self.states.get(frame)
        if point.group:
            group = self._await(GroupLog(self.target, SERVER).read(point.group))
            if group.header.heads != result.heads:
                raise Violation(f"group {point.group} has {group.header.heads}, restored: {result.heads}")
        if expected is not None:
            self.restored += 1
            found = read_state(opened)
            if found != expected:
                raise Violation(f"restored frame {frame}: {describe_difference(found, expected)}")
        return frame


def _load(root: Path) -> SimDisk:
    disk = SimDisk(0)
    folders = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir())
    disk.run([("mkdir", folder) for folder in folders])
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = str(path.relative_to(root))
        disk.run([("create", name, 0), ("write", name, 0, path.read_bytes()), ("sync", name)])
    return disk


def run(seed: int) -> ArchiveSimulation:
    """Run one seed with small chunks and parts."""
    simulation = ArchiveSimulation(seed, SIZES_ALL[seed % len(SIZES_ALL)])
    small = (*SMALL_CHUNKS, (group_writer, "PART_BYTES", 4000), (restored_store, "FILE_BYTES", 20_000))
    try:
        with module_settings(*small):
            simulation.run()
    except Exception as error:
        text = f"{type(error).__name__}: {error}\n{simulation}\nreplay: python -m tests.sim.archive_simulation {seed}"
        raise Violation(text) from error
    return simulation


if __name__ == "__main__":
    first = int(sys.argv[1])
    restored = restarts = 0
    for number in range(first, int(sys.argv[2]) if len(sys.argv) > 2 else first + 1):
        finished = run(number)
        restored, restarts = restored + finished.restored, restarts + finished.restarts
    print(f"{restored} states restored and compared, {restarts} restarts")
