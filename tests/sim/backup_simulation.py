"""Simulated stores with backups: pins at any moment, crashes between them, and what is restored compared with the model.

All backups of a seed go to one target, so later ones rely on earlier ones across crashes and recoveries. Replay a seed:
`python -m tests.sim.backup_simulation SEED [SEED_END]`.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

from headrace.backup import create, restore
from headrace.backup.backup_log import BackupLog
from headrace.backup.create import BackupRun
from headrace.backup.needed_files import find_needed_files
from headrace.backup.pinned_stores import SourceStore
from headrace.backup.records import StoreEntry
from headrace.backup.retention import BackupRetention
from headrace.backup.target import BackupTarget
from headrace.backup.verify import verify_backups
from headrace.claims.stores import MemoryStore
from headrace.sim.checkers.store_invariants import Violation, check_store, describe_difference, read_state
from headrace.sim.checkers.store_model import StoreState
from headrace.sim.disk.sim_disk import SimDisk
from headrace.sim.store_simulation import StoreSimulation
from headrace.storage import StoreOptions, open_store
from headrace.storage.format import checkpoint_path
from headrace.storage.snapshot.store_pin import StorePin, StorePinPlan, pinned_name, submit_release

from .module_settings import module_settings
from .store_sizes import SIZES

#: Small, so that segments consist of several chunks.
CHUNK_BYTES = 3000
SMALL_CHUNKS = ((create, "CHUNK_BYTES", CHUNK_BYTES), (restore, "CHUNK_BYTES", CHUNK_BYTES))


class SimPinFiles:
    """The files of a pin on a simulated disk."""

    def __init__(self, disk: SimDisk, pin: StorePin) -> None:
        self._disk = disk
        self._pin = pin

    def _path(self, path: str) -> str:
        return f"pins/{self._pin.name}/{pinned_name(path)}"

    def list(self, folder: str) -> list[str]:
        return [f"{number:016x}.jnl" for number, _ in self._pin.journal] if folder == "journal" else []

    def exists(self, path: str) -> bool:
        return self._disk.exists(self._path(path))

    def size(self, path: str) -> int:
        return self._disk.size(self._path(path))

    def read(self, path: str, offset: int, length: int) -> bytes:
        return self._disk.read(self._path(path), offset, length)

    def map(self, path: str) -> memoryview:
        return self._disk.map(self._path(path))


class BackupSimulation(StoreSimulation):
    """A simulated store that is backed up now and then; `pin_share` of the events start a pin."""

    pin_share = 0.15

    def __init__(self, seed: int, store: StoreOptions | None = None) -> None:
        super().__init__(seed, store)
        self.objects = MemoryStore("backups")
        asyncio.run(self.objects.ensure_bucket())
        self.target = BackupTarget(self.objects, "", "memory")
        self.backups = 0
        self.reused_bytes = 0
        self._plan: StorePinPlan | None = None
        self._pinned: tuple[StorePin, StoreState] | None = None
        self._is_pinned = False
        self._pin_count = 0

    def run_event(self) -> None:
        """Run an event of the store, then one step of a backup."""
        super().run_event()
        if self._pinned is not None:
            if self._is_pinned and self.rng.random() < 0.3:
                self._back_up()
        elif self._plan is not None:
            self._submit_pin()
        elif self.rng.random() < self.pin_share:
            self._pin_count += 1
            self._plan = StorePinPlan(self.driver.store, f"{self._pin_count:016x}-0")
            for _ in self._plan.iter_collect():
                pass

    def restart(self, disk: SimDisk, how: str) -> None:
        """Recover; a pin that was being made is gone, as after a restart of the server."""
        self._plan = self._pinned = None
        self._is_pinned = False
        super().restart(disk, how)

    def _submit_pin(self) -> None:
        plan, self._plan = self._plan, None
        assert plan is not None
        # A restart within an event opens another store.
        if plan._store is not self.driver.store or not plan.is_current or plan._store.poisoned:
            return
        self._is_pinned = False
        history = self.driver.history
        pin = plan.submit(f"{self.seed:08x}{self._pin_count:08x}", self._on_pinned)
        self._pinned = pin, history.states[history.acked_index]

    def _on_pinned(self, error: OSError | None) -> None:
        if error is not None:
            raise Violation(f"a pin could not be made: {error}") from error
        self._is_pinned = True

    def _back_up(self) -> None:
        assert self._pinned is not None
        (pin, expected), self._pinned = self._pinned, None
        files = SimPinFiles(self.driver.disk, pin)
        if not files.exists(checkpoint_path(pin.checkpoint, "a")):
            return  # the store was closed and opened in between, which removes nothing here; a crash may
        source = SourceStore("$G", "headrace", files, pin.lineage, pin.checkpoint, pin.frame, pin.ancestors)
        found = asyncio.run(self._run_backup(source))
        self._trace("backup", repr(found))
        if found != expected:
            raise Violation(f"backup {self.backups} of {self}: {describe_difference(found, expected)}")
        submit_release(self.driver.store, pin)

    async def _run_backup(self, source: SourceStore) -> StoreState:
        """Make a backup, drop old ones, verify all, restore the newest one, and return its state."""
        log = await BackupLog.load(self.target)
        run = BackupRun(self.target, log)
        record = await run.run([find_needed_files(source)])
        self.backups += 1
        self.reused_bytes += record.bytes - run.sent_bytes
        if self.rng.random() < 0.3:
            await BackupRetention(self.target, log, self.rng.randrange(1, 4), orphan_age_ns=0).run()
        report = await verify_backups(self.target, log, [each for _, each in log.list_backups()])
        if report.problems:
            raise Violation(f"backups are damaged: {report.problems}")
        index = await log.read_index(log.find("latest")[1])
        return await self._restore(index.stores[0])

    async def _restore(self, entry: StoreEntry) -> StoreState:
        disk = SimDisk(0)
        folders = {
            "checkpoints",
            "journal",
            "streams",
            *(each.path.rpartition("/")[0] for each in entry.files),
        }
        disk.run([("mkdir", folder) for folder in sorted(folders)])
        for file in entry.files:
            data = b"".join([await self.target.read(ref) for ref in file.chunks])
            copies = (
                [file.path, file.path.replace(".a", ".b")] if file.path.startswith("check") else [file.path]
            )
            for path in copies:
                disk.run([("create", path, 0), ("write", path, 0, data), ("sync", path)])
        restored = open_store(disk, self.clock, self.options.store)
        restored.metadata.register_compactor(b"", lambda key: b"")
        if not restored.report().healthy:
            raise Violation(f"a restored store is damaged: {restored.report().damage}")
        check_store(restored)
        return read_state(restored)


#: Journal files are reused as soon as a checkpoint allows it, by the commit queue.
WITHOUT_SPARES = replace(SIZES[0], journal_bytes=24 << 10, journal_spares=0, checkpoint_bytes=12 << 10)


def run(seed: int, options: StoreOptions | None = None) -> BackupSimulation:
    """Run one seed with small chunks."""
    sizes = (*SIZES, WITHOUT_SPARES)
    simulation = BackupSimulation(seed, options or sizes[seed % len(sizes)])
    try:
        with module_settings(*SMALL_CHUNKS):
            simulation.run()
    except Exception as error:
        text = f"{type(error).__name__}: {error}\n{simulation}\nreplay: python -m tests.sim.backup_simulation {seed}"
        raise Violation(text) from error
    return simulation


if __name__ == "__main__":
    first = int(sys.argv[1])
    total = [0, 0, 0]
    for number in range(first, int(sys.argv[2]) if len(sys.argv) > 2 else first + 1):
        finished = run(number)
        total = [total[0] + finished.backups, total[1] + finished.crashes, total[2] + finished.reused_bytes]
    print(f"{total[0]} backups, {total[1]} crashes, {total[2]} bytes reused")
