"""Restores a backup into an empty folder, which becomes the store directory of a server.

Owns the order of steps. Invariants: every chunk is verified before it is written; until all files of all stores are
synced, each store has a marker, and no server opens a store with one. A restore that was interrupted is completed by
another one of the same backup: what is there and right is not fetched again, and a complete store is not touched. The
restored stores have no lineage, so a later backup of them does not rely on what the original has done since. Must not
know how stores are recovered.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path, PurePosixPath

from headrace.backup.backup_log import BackupLog
from headrace.backup.records import (
    CHUNK_BYTES,
    BackupRecord,
    FileEntry,
    ObjectRef,
    StoreEntry,
    compute_digest,
)
from headrace.backup.target import BackupTarget
from headrace.errors import BackupDamaged, BackupError
from headrace.os_files import sync_data
from headrace.storage.recovery.recovery import RESTORE_MARKER

CONCURRENCY = 8
#: In the folder itself, from the first step to the last.
FOLDER_MARKER = "headrace-restore"
_PREPARING, _COPYING = "preparing", "copying"
_STORE_FOLDERS = ("checkpoints", "journal", "streams")
_ZEROS = bytes(64 * 1024)

#: Called with the folder of a store, a file of it, and its path; returns the numbers of the chunks that are in place.
Reuse = Callable[[str, FileEntry, Path], set[int]]


class RestoreRun:
    """One restore of one backup; `extend` adds to the files of its stores before they are complete.

    `reuse` may put chunks of a file in place that need not be fetched, and returns their numbers.
    """

    def __init__(
        self,
        target: BackupTarget,
        log: BackupLog,
        record: BackupRecord,
        folder: Path,
        progress: Callable[[int], None] = lambda done: None,
        extend: Callable[[list[StoreEntry]], Awaitable[None]] | None = None,
        reuse: Reuse | None = None,
    ) -> None:
        self._target = target
        self._extend = extend
        self._reuse = reuse
        self._stores: list[StoreEntry] = []
        self._log = log
        self._record = record
        self._folder = folder
        self._progress = progress
        self._is_repeated = False
        self.fetched_bytes = 0

    async def run(self) -> None:
        """Restore; the folder is ready for a server on return."""
        stores = await self.fill()
        if self._extend is not None:
            await self._extend(stores)  # while each store has its marker
        await asyncio.to_thread(self.finish)

    async def fill(self) -> list[StoreEntry]:
        """Write all files; the stores have their markers until `finish`."""
        stores = (await self._log.read_index(self._record)).stores
        for store in stores:
            _check_store(self._folder, store)
        self._stores = await asyncio.to_thread(self._prepare, stores)
        await self._fetch_all([(store.folder, file) for store in self._stores for file in store.files])
        return self._stores

    def _prepare(self, stores: list[StoreEntry]) -> list[StoreEntry]:
        """Create the markers of all stores before any file, and return the stores to fill.

        An absent store would be taken for a new one. When all markers are durable, the folder's marker says so: from
        then on a store without one is complete, and a server may have changed it since.
        """
        marker = self._folder / FOLDER_MARKER
        if self._read_folder_marker(marker) == _COPYING:
            self._is_repeated = True
            return [each for each in stores if (self._folder / each.folder / RESTORE_MARKER).exists()]
        _write_marker(marker, f"{self._record.id} {_PREPARING}")
        for store in stores:
            root = self._folder / store.folder
            if root.exists() and any(root.iterdir()) and not (root / RESTORE_MARKER).exists():
                raise BackupError(f"a server has used {root} meanwhile: restore into a new or empty folder")
            root.mkdir(parents=True, exist_ok=True)
            kind = "archive" if self._extend is not None else "backup"
            _write_marker(root / RESTORE_MARKER, f"{kind} {self._record.id}")
            sync_folder(root.parent.parent)
        _write_marker(marker, f"{self._record.id} {_COPYING}")
        return stores

    def _read_folder_marker(self, marker: Path) -> str:
        """Return the state of an unfinished restore, "" in an empty folder; raise BackupError for any other folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if not marker.exists():
            if any(self._folder.iterdir()):
                raise BackupError(f"{self._folder} is not empty: restore into a new or empty folder")
            return ""
        found, _, state = marker.read_text(errors="replace").partition(" ")
        if found and found != self._record.id:
            raise BackupError(
                f"{self._folder} has an unfinished restore of backup {found}: complete it with --backup {found}, "
                "or remove the folder"
            )
        return state

    async def _fetch_all(self, files: list[tuple[str, FileEntry]]) -> None:
        chunks = iter([each for file in files for each in await self._list_chunks(*file)])

        async def work() -> None:
            for path, length, offset, ref in chunks:
                await self._fetch(path, length, offset, ref)
                self._progress(ref.length)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(CONCURRENCY):
                    group.create_task(work())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _list_chunks(self, folder: str, file: FileEntry) -> list[tuple[Path, int, int, ObjectRef]]:
        """Return the chunks of a file that have to be fetched: path, length of the file, offset, object."""
        path = self._folder / folder / file.path
        found: set[int] = set()
        if self._reuse is not None and not path.exists():
            found = await asyncio.to_thread(self._reuse, folder, file, path)
        return [
            (path, file.length, number * CHUNK_BYTES, ref)
            for number, ref in enumerate(file.chunks)
            if number not in found
        ]

    async def _fetch(self, path: Path, length: int, offset: int, ref: ObjectRef) -> None:
        if self._is_repeated and await asyncio.to_thread(_has_chunk, path, offset, ref):
            return
        data = await self._target.read(ref)
        self.fetched_bytes += len(data)
        await asyncio.to_thread(write_chunk, path, length, offset, data, not self._is_repeated)

    def sync(self) -> None:
        """Make everything durable, and complete the checkpoints by their second copies."""
        for root, file in [
            (self._folder / each.folder, file) for each in self._stores for file in each.files
        ]:
            path = root / file.path
            sync_file(path)
            if path.parent.name == "checkpoints":
                _copy(path, path.with_suffix(".b"))
        for store in self._stores:
            root = self._folder / store.folder
            for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
                sync_folder(folder)

    def finish(self) -> None:
        """Make everything durable, then remove the markers: that of the folder last."""
        self.sync()
        for store in self._stores:
            (self._folder / store.folder / RESTORE_MARKER).unlink()
            sync_folder(self._folder / store.folder)
        (self._folder / FOLDER_MARKER).unlink()
        sync_folder(self._folder)


def read_restore_name(folder: Path) -> str:
    """Return the ID of the backup whose restore into a folder was begun and not finished; "" if there is none."""
    try:
        return (folder / FOLDER_MARKER).read_text(errors="replace").partition(" ")[0]
    except FileNotFoundError:
        return ""


def _check_store(folder: Path, store: StoreEntry) -> None:
    """Reject what no backup contains: the checksum of the index is correct, so this is not damage but a forgery."""
    if not (folder / store.folder).resolve().is_relative_to(folder.resolve()):
        raise BackupDamaged(f"the backup names a folder outside of the target: {store.folder}")
    for file in store.files:
        path = PurePosixPath(file.path)
        if ".." in path.parts or path.parts[0] not in _STORE_FOLDERS:
            raise BackupDamaged(f"the backup names a file that is not part of a store: {file.path}")
        if sum(ref.length for ref in file.chunks) != file.length:
            raise BackupDamaged(f"the chunks of {file.path} do not have its length")


def _has_chunk(path: Path, offset: int, ref: ObjectRef) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return compute_digest(file.read(ref.length)) == ref.sha256
    except FileNotFoundError:
        return False


def write_chunk(path: Path, length: int, offset: int, data: bytes, is_new: bool) -> None:
    """Write a chunk at its place. Zeros in a new file become holes, as in a segment with compressed blocks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(descriptor, length)
        view = memoryview(data)
        for at in range(0, len(view), len(_ZEROS)):
            part = view[at : at + len(_ZEROS)]
            if is_new and part == _ZEROS[: len(part)]:
                continue
            done = 0
            while done < len(part):
                done += os.pwrite(descriptor, part[done:], offset + at + done)
    finally:
        os.close(descriptor)


def _write_marker(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        sync_data(file.fileno())
    sync_folder(path.parent)
    sync_folder(path.parent.parent)


def _copy(source: Path, target: Path) -> None:
    target.write_bytes(source.read_bytes())
    sync_file(target)


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        sync_data(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
