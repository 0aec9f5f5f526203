"""The bases of an archive, as the server that writes it sees them: it adds one, and drops those that nobody needs.

Owns the log of bases that is kept from one base to the next. Invariant: a start reads only the base that the newest group
names and what follows it, so its requests do not grow with the number of bases; everything older is read before the first
trim. Must not know groups.
"""

from __future__ import annotations

import contextlib

from headrace.archive.group_format import BASE_FOLDER
from headrace.archive.group_log import GroupLog
from headrace.archive.trimming import find_trim_plan, run_trim
from headrace.backup.backup_log import BackupLog
from headrace.backup.create import CONCURRENCY, ArchivePoint, BackupRun, SentObjects
from headrace.backup.needed_files import NeededFiles
from headrace.backup.target import BackupTarget
from headrace.errors import BackupDamaged

#: After this time, one base an hour is enough.
THIN_AFTER_NS = 86400 * 1_000_000_000


class ArchiveBases:
    """The bases in the folder of a server. `sent_bytes` were sent, also for bases that were not completed."""

    def __init__(self, target: BackupTarget, server_name: str) -> None:
        self._target = target.open_folder(BASE_FOLDER)
        self._server_name = server_name
        self._log: BackupLog | None = None
        self._sent: SentObjects = {}
        self.sent_bytes = 0

    async def make(
        self,
        needed: list[NeededFiles],
        point: ArchivePoint,
        announced: int,
        large_chunks_max: int = CONCURRENCY,
    ) -> int:
        """Send a base; return the number of its record. `announced` is that of the base that the newest group names."""
        log = await self._open(announced)
        self._sent = {key: ref for key, ref in self._sent.items() if ref.key not in log.dead}
        log.forget_dropped()
        run = BackupRun(self._target, log, server=self._server_name, point=point, sent=self._sent)
        try:
            await run.run(needed, large_chunks_max)
        except BackupDamaged:
            self._log = None
            raise
        finally:
            self.sent_bytes += run.sent_bytes
        self._sent.clear()
        return log.last

    async def trim(self, announced: int, oldest_ns: int, now_ns: int, groups: GroupLog, last: int) -> int:
        """Drop the bases that no restore to a moment since `oldest_ns` needs, and their groups; return the new floor.

        The newest group, `last`, stays: a reader of the log begins with it.
        """
        log = await self._open(announced)
        if not log.is_complete:
            await log.read_earlier()
        plan = find_trim_plan(log, oldest_ns, now_ns - THIN_AFTER_NS)
        floor = min(plan.floor, last - 1)
        try:
            await run_trim(self._target, log, groups, plan, floor)
        except BackupDamaged:
            self._log = None  # what is damaged is read again
            raise
        return floor

    async def _open(self, announced: int) -> BackupLog:
        """Return the log, up to date."""
        if self._log is None:
            self._log = await self._load(announced)
        else:
            await self._log.read_newer()
        return self._log

    async def _load(self, announced: int) -> BackupLog:
        if announced:
            with contextlib.suppress(BackupDamaged):  # all others are read instead
                return await BackupLog.open_at(self._target, announced)
        return await BackupLog.load(self._target, is_lenient=True)

    async def read_epochs(self) -> list[int]:
        """Return the epochs of all bases."""
        log = await BackupLog.load(self._target, is_lenient=True)
        return [record.epoch for _, record in log.list_backups()]
