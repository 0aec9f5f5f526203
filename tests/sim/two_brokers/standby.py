"""A standby: watches who leads, and follows the log to its end when it takes over.

Owns nothing of the archive before its opening group was created. `restore_disk` is also what a drill uses.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

from headrace.archive.archive_restore import ArchiveRestore, RestorePoint, RestoreResult
from headrace.archive.group_format import Group
from headrace.archive.group_log import GroupLog
from headrace.backup.target import BackupTarget
from headrace.errors import ArchiveError
from headrace.sim.disk.sim_disk import SimDisk

from .process import SimProcess
from .server import LEADER_KEY, SERVER

_MEMORY_FOLDER = Path("/dev/shm")


class Standby:
    """A process that waits until the leader object no longer changes."""

    def __init__(self, target: BackupTarget, process: SimProcess, rng: Random, takeover_s: float) -> None:
        self._target = target
        self._process = process
        self._rng = rng
        self._takeover_s = takeover_s
        self._log = GroupLog(target, SERVER)

    async def wait(self) -> None:
        """Return when the leader object has not changed for long enough."""
        seen, unchanged_s = None, 0.0
        while unchanged_s < self._takeover_s:
            delay_s = self._rng.uniform(0.3, 0.6)
            await self._process.sleep(delay_s)
            try:
                found = await self._target.read_any(LEADER_KEY)
            except Exception:
                continue
            unchanged_s = unchanged_s + delay_s if found == seen else 0.0
            seen = found

    async def find_newest(self) -> Group | None:
        """Return the newest group; retry until the store answers."""
        while True:
            try:
                last = await self._log.find_last()
                group = await self._log.read(last) if last else None
                if group is not None or not last:
                    return group
            except ArchiveError:
                raise
            except Exception:
                await self._process.sleep(0.2)


async def restore_disk(target: BackupTarget, point: RestorePoint) -> tuple[SimDisk, RestoreResult]:
    """Restore a point of the archive onto a simulated disk."""
    parent = str(_MEMORY_FOLDER) if _MEMORY_FOLDER.is_dir() else None
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name) / "data"
        result = await ArchiveRestore(target, SERVER, folder, point).run()
        return load_disk(folder / "headrace"), result


def load_disk(root: Path) -> SimDisk:
    """Return a simulated disk with the files of a folder, all of them synced."""
    disk = SimDisk(0)
    folders = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_dir())
    disk.run([("mkdir", folder) for folder in folders])
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = str(path.relative_to(root))
        disk.run([("create", name, 0), ("write", name, 0, path.read_bytes()), ("sync", name)])
    disk.run([("syncdir", folder) for folder in ["", *folders]])
    return disk
