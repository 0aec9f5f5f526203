"""Makes the next copy of a standby: restores a base, and reads the log up to where the present copy is.

Owns the build, and which bases cannot be restored. Invariant: a build that fails changes nothing of the present copy; a base
with a missing or damaged object is not tried again while its epoch has another one. Must not know leaders.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

from headrace.archive.file_reuse import FileReuse
from headrace.archive.group_format import BASE_FOLDER
from headrace.archive.group_log import GroupLog
from headrace.archive.replica import Replica, make_replica, open_replica
from headrace.backup.backup_log import BackupLog
from headrace.backup.target import BackupTarget
from headrace.claims.stores import ObjectStoreError
from headrace.errors import ArchiveDamaged, BackupDamaged

#: Pause after a build that failed: an error such as a full disk may last.
RETRY_S = 5.0


class CopyBuilder:
    """The builds of one standby, one at a time; `error` is why the last one failed, or ""."""

    def __init__(self, target: BackupTarget, server: int, clock: Callable[[], float]) -> None:
        self._target = target
        self._server = server
        self._clock = clock
        self._task: asyncio.Task[Replica] | None = None
        self._folder = Path()
        self._base = 0
        self._retry_s = clock()
        self._unusable: set[int] = set()  # bases that cannot be restored
        self.error = ""

    @property
    def may_start(self) -> bool:
        """Whether no build is running, and none has just failed."""
        return self._task is None and self._clock() >= self._retry_s

    @property
    def is_done(self) -> bool:
        """Whether a build has ended, and `finish` was not called yet."""
        return self._task is not None and self._task.done()

    async def choose_base(self, announced: int = 0) -> int:
        """Return the record of the base to restore: that which a group announced, or the newest one; 0 if there is none.

        If it cannot be restored, another one of the newest epoch is as good: more groups follow it.
        """
        if announced and announced not in self._unusable:
            return announced
        found = [(record.epoch, n) for n, record in (await self._open_log()).list_backups()]
        if not found:
            return 0
        newest = max(found)[1]
        usable = [n for epoch, n in found if epoch == max(found)[0] and n not in self._unusable]
        if not usable:  # what is damaged is read again
            self._unusable.clear()
        return max(usable, default=newest)

    async def _open_log(self) -> BackupLog:
        """Return the log of bases from the one that the newest group names, in few requests; or all of it."""
        bases = self._target.open_folder(BASE_FOLDER)
        announced = 0 if self._unusable else await self._read_announced()
        if announced:
            with contextlib.suppress(BackupDamaged):
                log = await BackupLog.open_at(bases, announced)
                if log.list_backups():
                    return log
        return await BackupLog.load(bases, is_lenient=True)

    async def _read_announced(self) -> int:
        groups = GroupLog(self._target, self._server)
        _, last = await groups.find_end()
        group = await groups.read(last) if last else None
        return group.header.base[0] if group is not None else 0

    def start(self, number: int, folder: Path, present: Replica | None, reuse: FileReuse | None) -> None:
        """Begin to restore a base into `folder`."""
        assert self._task is None
        self._folder, self._base = folder, number
        self._task = asyncio.create_task(self._build(number, folder, present, reuse))

    async def _build(
        self, number: int, folder: Path, present: Replica | None, reuse: FileReuse | None
    ) -> Replica:
        if present is not None:
            await asyncio.to_thread(shutil.rmtree, folder, True)
        found = await asyncio.to_thread(open_replica, self._target, self._server, folder)
        if found is None or found.position.base != number:
            found = await make_replica(self._target, self._server, folder, number, reuse)
        await _follow(found, present)
        await found.sync()
        return found

    async def finish(self, present: Replica | None) -> Replica:
        """Return the copy that was built, up to date with the present one; raise why the build has failed."""
        task, self._task = self._task, None
        assert task is not None
        try:
            new = task.result()
            await _follow(new, present)
        except Exception as error:
            self.error = str(error) or type(error).__name__
            self._retry_s = self._clock() + RETRY_S
            if isinstance(error, BackupDamaged | ArchiveDamaged):
                self._unusable.add(self._base)
            if present is not None or not isinstance(error, ObjectStoreError | TimeoutError):
                await asyncio.to_thread(
                    shutil.rmtree, self._folder, True
                )  # otherwise the next build continues it
            raise
        self.error = ""
        return new

    async def stop(self, *, is_kept: bool = False) -> None:
        """End the build; what it has written is removed unless it is kept for a later run."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(BaseException):
                await task
            if not is_kept:
                await asyncio.to_thread(shutil.rmtree, self._folder, True)


async def _follow(new: Replica, present: Replica | None) -> None:
    """Read the log up to where the present copy is; to its end if there is none."""
    while present is None or new.reader.number < present.reader.number:
        if not await new.advance():
            return
