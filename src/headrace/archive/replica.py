"""A copy of all stores of a server, made of a base and the groups after it, that no server has opened.

Owns its folder. Invariants: each store has its restore marker until `promote`; what `position` says is synced; groups of
another epoch than the base's change nothing. A copy that was interrupted continues where it was. `is_outdated` says that
a later epoch may have acknowledged what the copy lacks. Must not know leaders.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from headrace.archive.file_reuse import FileReuse
from headrace.archive.group_format import BASE_FOLDER, FRAME, GroupHeader, iter_entries
from headrace.archive.group_log import GroupLog
from headrace.archive.group_reader import GroupReader
from headrace.archive.restored_store import RestoredStore
from headrace.backup.backup_log import BackupLog
from headrace.backup.records import BackupRecord, StoreEntry
from headrace.backup.request_repeater import RequestRepeater
from headrace.backup.restore import RestoreRun, read_restore_name, sync_file, sync_folder
from headrace.backup.target import BackupTarget
from headrace.errors import ArchiveCopyError, BackupDamaged
from headrace.storage.format import segment_path
from headrace.storage.recovery.recovery import RESTORE_MARKER
from headrace.storage.snapshot.store_pin import LINEAGE_PATH

POSITION_FILE, STORES_FILE = "position.json", "stores.json"


class LaterEpoch(msgspec.Struct, frozen=True):
    """The newest epoch after the copy's, and the base that its opening group names: that of the epoch before.

    `has_base`: this epoch, or one before it that the copy does not have either, has named a base of its own.
    """

    epoch: int
    base: int
    has_base: bool = False


class ReplicaPosition(msgspec.Struct, frozen=True):
    """The base of a copy, by the number of its record, and the newest object of the log whose frames are synced."""

    base: int
    epoch: int
    group: int
    crc: int | None = None
    later: LaterEpoch | None = None


class Replica:
    """One copy, in a folder of its own below the standby's."""

    def __init__(
        self,
        target: BackupTarget,
        server: int,
        folder: Path,
        position: ReplicaPosition,
        stores: list[StoreEntry],
    ) -> None:
        self.folder = folder
        self.position = position
        self.entries = stores
        self.reader = GroupReader(GroupLog(target, server), position.group, position.crc)
        self._stores = {each.store_id: RestoredStore(folder / each.folder, each) for each in stores}
        self._unsynced = 0
        self._later = position.later
        self._requests = RequestRepeater()
        self.groups = 0

    @property
    def heads(self) -> dict[int, int]:
        """The last frame of each store."""
        return {store_id: store.number for store_id, store in self._stores.items()}

    @property
    def is_outdated(self) -> bool:
        """Whether a later epoch has named a base of its own: only then its server may have acknowledged something."""
        return self._later is not None and self._later.has_base

    @property
    def is_partial(self) -> bool:
        """Whether a group has parts that were not read yet."""
        header = self.reader.header
        return header is not None and not header.is_last_part

    async def advance(self) -> bool:
        """Apply the next object of the log; return whether there was one."""
        if not await self._requests.run(self.reader.read_next):
            return False
        self.groups += 1
        body, header = self.reader.take_body(), self.reader.header
        assert header is not None
        if header.epoch != self.position.epoch:
            self._note_later_epoch(header)
        elif body:
            self._unsynced += len(body)
            await self._write(lambda: self._apply(body))
        return True

    async def _write(self, write: Callable[[], None]) -> None:
        """Write to the copy on a thread; after an error it can only be opened again, at its newest synced position."""
        try:
            await asyncio.to_thread(write)
        except OSError as error:
            for store in self._stores.values():
                await asyncio.to_thread(store.abandon)
            raise ArchiveCopyError(f"the copy in {self.folder} cannot be written: {error}") from error

    def _note_later_epoch(self, header: GroupHeader) -> None:
        later = self._later
        if later is None or header.epoch != later.epoch:
            self._later = LaterEpoch(header.epoch, header.base[0], self.is_outdated)
        elif header.base[0] != later.base:
            self._later = LaterEpoch(later.epoch, later.base, has_base=True)

    @property
    def unsynced_bytes(self) -> int:
        """Bytes of groups that were applied since the last sync."""
        return self._unsynced

    def _apply(self, body: bytes) -> None:
        for entry in iter_entries(body):
            store = self._stores.get(entry.store_id)
            if store is None:
                continue  # of an account that the next base has
            if entry.kind == FRAME:
                store.add_frame(entry.data)
            else:
                store.add_block(segment_path(entry.ident, entry.segment), entry.offset, entry.data)

    async def sync(self) -> None:
        """Make what was applied durable, and record it; not in the middle of a group."""
        if not self.is_partial and self.reader.number != self.position.group:
            await self._write(self._sync)

    def _sync(self) -> None:
        for store in self._stores.values():
            store.sync()
        self._unsynced = 0
        reader = self.reader
        self.position = msgspec.structs.replace(
            self.position, group=reader.number, crc=reader.crc, later=self._later
        )
        _write_synced(self.folder / POSITION_FILE, msgspec.json.encode(self.position))

    def promote(self, home: Path) -> dict[str, str]:
        """Make everything durable and move the stores to `home`, ready for a server; return their folders by ID.

        The stores keep their markers until all are in place.
        """
        for store in self._stores.values():
            store.close()
        for entry in self.entries:
            root = self.folder / entry.folder
            # The archive has the files of this base: the next base sends only what is new.
            (root / LINEAGE_PATH).write_text(f"{entry.lineage}\n" if entry.lineage else "")
            sync_file(root / LINEAGE_PATH)
            for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
                sync_folder(folder)
            target = home / entry.folder
            if target.exists():
                shutil.rmtree(target)  # an interrupted promotion has left it, no server has opened it
            target.parent.mkdir(parents=True, exist_ok=True)
            root.rename(target)
            sync_folder(target.parent)
        for entry in self.entries:
            (home / entry.folder / RESTORE_MARKER).unlink()
            sync_folder(home / entry.folder)
        sync_folder(home)
        return {f"{each.store_id:016x}": each.folder for each in self.entries}


async def make_replica(
    target: BackupTarget, server: int, folder: Path, number: int, reuse: FileReuse | None
) -> Replica:
    """Restore the base with this record into `folder`; the copy continues with the groups after it.

    An unfinished restore of this base is continued; anything else in the folder is removed.
    """
    bases = target.open_folder(BASE_FOLDER)
    log = await BackupLog.open_at(bases, number)
    record = dict(log.list_backups()).get(number)
    if record is None:
        raise BackupDamaged(
            log.damaged.get(number) or f"base {number} of {target.name} was removed meanwhile"
        )
    await asyncio.to_thread(_clear_folder, folder, record)
    run = RestoreRun(bases, log, record, folder, reuse=reuse)
    stores = await run.fill()
    await asyncio.to_thread(run.sync)
    last = await GroupLog(target, server).read(record.group)
    crc = last.crc if last is not None else None
    position = ReplicaPosition(number, record.epoch, record.group, crc)
    _write_synced(folder / STORES_FILE, msgspec.json.encode(stores))
    _write_synced(folder / POSITION_FILE, msgspec.json.encode(position))
    return await asyncio.to_thread(Replica, target, server, folder, position, stores)


def open_replica(target: BackupTarget, server: int, folder: Path) -> Replica | None:
    """Continue a copy; None if there is none, or it is not complete."""
    try:
        position = msgspec.json.decode((folder / POSITION_FILE).read_bytes(), type=ReplicaPosition)
        stores = msgspec.json.decode((folder / STORES_FILE).read_bytes(), type=list[StoreEntry])
    except (OSError, msgspec.DecodeError):
        return None
    if not all((folder / each.folder / RESTORE_MARKER).exists() for each in stores):
        return None
    return Replica(target, server, folder, position, stores)


def _clear_folder(folder: Path, record: BackupRecord) -> None:
    """Remove what is not an unfinished restore of this base; stores of a complete copy may have been moved away."""
    if (folder / STORES_FILE).exists() or read_restore_name(folder) != record.id:
        shutil.rmtree(folder, ignore_errors=True)


def _write_synced(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.new")
    temporary.write_bytes(data)
    sync_file(temporary)
    temporary.replace(path)
    sync_folder(path.parent)
