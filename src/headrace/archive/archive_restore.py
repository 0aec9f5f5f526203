"""Restores an archive into an empty folder: a base, then the frames of the groups after it, as journal files.

Owns the choice of the base and of the last group. Invariants: every byte is verified; the frames follow the base without
a gap; the new stores open only when everything is there (`RestoreRun`). The result has no identity in the archive, so a
server that uses it cannot fence the original. Recovery does the rest. Must not know how stores are recovered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from headrace.archive.group_format import FRAME, Group, iter_entries
from headrace.archive.group_log import GroupLog
from headrace.archive.restored_store import RestoredStore
from headrace.backup.backup_log import BackupLog
from headrace.backup.records import BackupRecord, StoreEntry
from headrace.backup.restore import RestoreRun
from headrace.backup.target import BackupTarget
from headrace.errors import ArchiveDamaged, ArchiveError, ArchiveTrimmed
from headrace.storage.format import segment_path


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """Restore the newest state (no limit), that after a group, or that at a moment."""

    group: int = 0
    moment_ns: int = 0


@dataclass(slots=True)
class RestoreResult:
    """What was restored: the base, the last group applied, its time, and frames after the base."""

    record: BackupRecord
    group: int
    time_ns: int
    frames: int = 0
    heads: dict[int, int] = field(default_factory=dict)  # the last frame of each store
    skipped_epoch: int = 0  # a later epoch that has no base yet
    skipped_stores: int = 0  # accounts that the base does not have


class ArchiveRestore:
    """One restore of the archive of a server."""

    def __init__(self, target: BackupTarget, server: int, folder: Path, point: RestorePoint) -> None:
        self._target = target
        self._log = GroupLog(target, server)
        self._folder = folder
        self._point = point
        self._stores: dict[int, RestoredStore] = {}
        self._skipped_stores: set[int] = set()
        self._base_group = 0  # the highest group that a base continues

    async def run(self, progress: Callable[[int], None] = lambda done: None) -> RestoreResult:
        """Restore; the folder is ready for a server on return."""
        if self._folder.exists() and any(self._folder.iterdir()):
            raise ArchiveError(f"{self._folder} is not empty: restore into a new or empty folder")
        bases = self._target.open_folder("base")
        log = await BackupLog.load(bases, is_lenient=True)
        record = await self._choose_base(log)
        self._base_group = max(each.group for _, each in log.list_backups())
        result = RestoreResult(record, record.group, record.moment_ns)

        async def extend(stores: list[StoreEntry]) -> None:
            await self._apply_groups(stores, result)

        await RestoreRun(bases, log, record, self._folder, progress, extend).run()
        return result

    async def _choose_base(self, log: BackupLog) -> BackupRecord:
        # A server that was replaced may finish a base after the first one of its successor.
        records = sorted((record for _, record in log.list_backups()), key=lambda each: each.epoch)
        if not records:
            raise ArchiveError(f"{self._target.name} has no base: there is nothing to restore yet")
        point = self._point
        if point.moment_ns:
            usable = [each for each in records if each.moment_ns <= point.moment_ns]
        elif point.group:
            usable = await self._list_bases_of_group(log, records, point.group)
        else:
            usable = records
        if not usable:
            first = records[0]
            moment = datetime.fromtimestamp(first.moment_ns // 1_000_000_000 + 1, UTC)
            raise ArchiveError(
                f"no base of {self._target.name} is old enough: the oldest restore point is group {first.group + 1}, "
                f"--at {moment:%Y-%m-%dT%H:%M:%SZ}"
            )
        return usable[-1]

    async def _list_bases_of_group(
        self, log: BackupLog, records: list[BackupRecord], number: int
    ) -> list[BackupRecord]:
        """Return the bases whose frames are all in groups up to this one, of the same epoch."""
        group = await self._log.read(number)
        if group is None:
            raise ArchiveError(f"{self._target.name} has no group {number}")
        if not group.header.is_last_part:
            raise ArchiveError(
                f"group {number} is part {group.header.part} of {group.header.parts}: restore the last part"
            )
        heads = group.header.heads | group.header.idle
        found = []
        for record in records:
            if record.epoch == group.header.epoch and record.group <= number:
                index = await log.read_index(record)
                if all(heads.get(store.store_id, 0) >= store.frame for store in index.stores):
                    found.append(record)
        return found

    async def _apply_groups(self, stores: list[StoreEntry], result: RestoreResult) -> None:
        for entry in stores:
            self._stores[entry.store_id] = RestoredStore(self._folder / entry.folder, entry)
        async for groups in self._iter_groups(result):
            body = b"".join(group.body for group in groups)
            await asyncio.to_thread(self._apply, body)
            result.group, result.time_ns = groups[-1].header.number, groups[-1].header.time_ns
        for writer in self._stores.values():
            await asyncio.to_thread(writer.close)
            result.frames += writer.frames
            result.heads[writer.store_id] = writer.number
        result.skipped_stores = len(self._skipped_stores)

    async def _iter_groups(self, result: RestoreResult) -> AsyncIterator[list[Group]]:
        """Iterate over the complete groups to apply, each with all its parts."""
        number, epoch = result.record.group, result.record.epoch
        last = await self._log.read(number)
        crc = last.crc if last is not None else None
        parts: list[Group] = []
        while not self._point.group or number < self._point.group:
            number += 1
            group = await self._log.read(number)
            if group is None:
                await self._check_end(number)
                return
            header = group.header
            if crc is not None and header.prev_crc != crc:
                raise ArchiveDamaged(f"group {number} does not continue the group before it")
            crc = group.crc
            if header.epoch != epoch:
                result.skipped_epoch = header.epoch
                return
            if self._point.moment_ns and header.time_ns > self._point.moment_ns:
                return
            if header.part == 1:
                parts = []  # a group that could not be read to its end was begun again
            parts.append(group)
            if header.part != len(parts):
                raise ArchiveDamaged(
                    f"group {number} is part {header.part}, but part {len(parts)} is missing"
                )
            if header.is_last_part:
                yield parts
                parts = []

    async def _check_end(self, number: int) -> None:
        """Raise an error if a group is missing in the middle, unless it was created after the end was read."""
        is_missing = bool(self._point.group) or number <= self._base_group
        if not is_missing and number < await self._log.find_last():
            is_missing = await self._log.read(number) is None
        if not is_missing:
            return
        if number <= (await self._log.read_floor()).number:
            raise ArchiveTrimmed(
                f"group {number} of {self._target.name} was dropped during the restore, which needs it: restore again"
            )
        raise ArchiveDamaged(f"group {number} of {self._target.name} is missing")

    def _apply(self, body: bytes) -> None:
        for entry in iter_entries(body):
            writer = self._stores.get(entry.store_id)
            if writer is None:
                self._skipped_stores.add(entry.store_id)  # an account that the next base has
                continue
            if entry.kind == FRAME:
                writer.add_frame(entry.data)
            else:
                writer.add_block(segment_path(entry.ident, entry.segment), entry.offset, entry.data)
