"""Shared by tests of backups: a small store of a stopped server, a target in memory, and both compared."""

from __future__ import annotations

from pathlib import Path

from headrace.backup.backup_log import BackupLog
from headrace.backup.create import BackupRun
from headrace.backup.needed_files import find_needed_files
from headrace.backup.pinned_stores import OfflineStores
from headrace.backup.records import BackupRecord
from headrace.backup.restore import RestoreRun
from headrace.backup.target import BackupTarget
from headrace.claims.stores import MemoryStore, ObjectStore
from headrace.sim.checkers.store_invariants import read_state
from headrace.sim.checkers.store_model import StoreState
from support.small_store import Ticking, commit, opened

FOLDER = "headrace"


async def make_target(store: ObjectStore | None = None) -> BackupTarget:
    target = BackupTarget(store or MemoryStore("backups"), "server-1", "memory")
    await target.prepare()
    return target


def fill(root: Path, rounds: int = 3, start: int = 0) -> StoreState:
    """Add messages, removals, large messages and metadata to the store of a server; return its state."""
    with opened(root / FOLDER) as store:
        log = store.logs.get("S") or store.create("S")
        for number in range(start, start + rounds):
            for row in range(60):
                log.append(b"s.%d" % (row % 7), b"", b"%d-%d-" % (number, row) * 20, Ticking().now_ns())
            log.append(b"large", b"", bytes([number]) * 5000, Ticking().now_ns())
            log.remove(log.last_seq - 5)
            store.metadata.put(b"k/%d" % number, b"value %d" % number)
            commit(store)
        return read_state(store)


def read(root: Path) -> StoreState:
    """Open a store as a server would; return its state."""
    with opened(root / FOLDER) as store:
        assert store.report().healthy, store.report().damage
        return read_state(store)


async def back_up(root: Path, target: BackupTarget, *, full: bool = False) -> BackupRecord:
    """Back up the store of a stopped server."""
    source = OfflineStores([("$G", FOLDER, root / FOLDER)])
    try:
        log = await BackupLog.load(target)
        return await BackupRun(target, log, full=full).run(
            [find_needed_files(each) for each in source.stores]
        )
    finally:
        source.close()


async def restore(target: BackupTarget, folder: Path, backup: str = "latest") -> RestoreRun:
    log = await BackupLog.load(target)
    run = RestoreRun(target, log, log.find(backup)[1], folder)
    await run.run()
    return run


class MemoryFiles:
    """A store's files in memory."""

    def __init__(self, content: dict[str, bytes]) -> None:
        self.content = content

    def list(self, folder: str) -> list[str]:
        return []

    def exists(self, path: str) -> bool:
        return path in self.content

    def size(self, path: str) -> int:
        return len(self.content[path])

    def read(self, path: str, offset: int, length: int) -> bytes:
        return self.content[path][offset : offset + length]

    def map(self, path: str) -> memoryview:
        return memoryview(self.content[path])
