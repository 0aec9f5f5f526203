"""Garbage collection of files: unlinks files that nothing needs once that is safe.

Owns the list of files to unlink. Invariant: a file is unlinked only after a checkpoint that began after it was dropped
is durable or, on a full disk, after a frame is durable from which a replay learns that nothing in the file is live; with
an archive, a file with large messages also waits until all frames that may refer to them are archived. Must not know why
a file was dropped. See ADRs 15 and 91.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from headrace.code_probes import sometimes
from headrace.storage.format import REMOVALS, encode_entry
from headrace.storage.io.disk import Op
from headrace.storage.log.file_log import FileLog
from headrace.storage.maintenance.maintenance_context import MaintenanceContext
from headrace.storage.segments.segment import FileSegment

STORE_FILE_NAME = re.compile(r"[0-9a-f]{8}\.(seg|([0-9]+\.)?col)|subjects\.[0-9]+")

_PAIR = struct.Struct("<QQ")


class _GarbageFile(NamedTuple):
    removable_at: int
    path: str
    is_folder: bool
    size: int
    ended: int = 0  # the frame that deleted the stream
    #: A segment that frames can declare dead: its log, first and last sequence.
    rows: tuple[FileLog, int, int] | None = None
    segment: FileSegment | None = None
    last_frame: int = 0  # the last frame that may refer to a large message in it; 0: there is none


class FileGarbageCollector:
    """Collects the files of dropped segments and streams; checkpoints release them.

    A full disk may have no space for a checkpoint. Then a frame states for each dropped segment that all its sequences
    are removed, and the file is unlinked when that frame is durable: see `JournalSurvey.explains`.
    """

    def __init__(self, store: MaintenanceContext) -> None:
        self._store = store
        self._garbage: dict[str, _GarbageFile] = {}
        #: After opening in place: segments that frames after the checkpoint refer to -> ident, first and last sequence.
        self.referred: dict[str, tuple[int, int, int]] = {}
        self._stated: list[_GarbageFile] = []  # stated by the frame in flight
        self._going: set[str] = set()  # paths that a pending submission unlinks

    def __len__(self) -> int:
        return len(self._garbage)

    def add(self, path: str, has_large: bool = False) -> None:
        """Add a file; `has_large`: frames since the start refer to large messages in it."""
        size = self._get_size(path)
        self._add(_GarbageFile(self._store.next_checkpoint, path, False, size), has_large)

    def _add(self, item: _GarbageFile, has_large: bool) -> None:
        last_frame = self._store.journal.last_frame + 1 if has_large else 0  # the open one
        self._garbage.setdefault(item.path, item._replace(last_frame=last_frame))

    def _is_archived(self, item: _GarbageFile) -> bool:
        return item.last_frame <= self._store.journal.archived_frame

    def add_dead(self, log: FileLog, segment: FileSegment) -> None:
        """Add a segment of which frames, including the open one, removed every row."""
        number, path = self._store.next_checkpoint, segment.path
        rows = log, segment.columns.base, segment.last_seq
        item = _GarbageFile(number, path, False, self._get_size(path), rows=rows, segment=segment)
        self._add(item, segment.number in log.large_segments)

    def add_copied(self, log: FileLog, path: str, first: int, last: int, needed: int) -> None:
        """Add a file that checkpoint `needed` does not name.

        Earlier frames may refer to large messages in it, from `first` to `last`, which were copied.
        """
        rows = (log, first, last) if last else None
        self._add(_GarbageFile(needed, path, False, self._get_size(path), rows=rows), bool(last))

    def add_folder(self, folder: str, ended: int, has_large: bool = False) -> None:
        """Add the folder of a stream that frame `ended` deleted."""
        size = sum(self._get_size(f"{folder}/{name}") for name in self._store.disk.list(folder))
        number = self._store.next_checkpoint
        self._add(_GarbageFile(number, folder, True, size, ended), has_large)

    def _get_size(self, path: str) -> int:
        """Return the size of a file, 0 if it is gone: the background queue may be unlinking it."""
        try:
            return self._store.disk.size(path)
        except FileNotFoundError:
            return 0

    def should_checkpoint(self) -> bool:
        """Return whether a checkpoint is worthwhile for the space alone."""
        if not self._garbage:
            return False
        waiting_bytes = sum(item.size for item in self._garbage.values() if self._is_archived(item))
        return waiting_bytes >= self._store.options.checkpoint_bytes or (
            self._store.full and waiting_bytes > 0
        )

    # Without a checkpoint

    @property
    def has_statements(self) -> bool:
        """Return whether a frame could release a file before the next checkpoint."""
        return any(
            bool(item.size) and self._is_archived(item) if item.is_folder else self._is_dead(item)
            for item in self._garbage.values()
        )

    def state(self) -> list[bytes]:
        """Return entries for the frame being committed: removals of whole segments."""
        runs: dict[int, list[bytes]] = {}
        for item in self._garbage.values():
            if item.rows is not None and self._is_dead(item):
                log, first, last = self._span(item)
                log.saved_frame = -1  # a later checkpoint must not reuse a section that names it
                self._stated.append(item)
                runs.setdefault(log.ident, []).append(_PAIR.pack(first, last))
        return [encode_entry(REMOVALS, ident, b"".join(pairs)) for ident, pairs in runs.items()]

    def release(self) -> None:
        """Unlink the files that a frame, durable now, declared as removed."""
        store = self._store
        if not self._stated and not store.full:  # after nearly every frame
            return
        stated, self._stated = self._stated, []
        to_unlink: dict[str, None] = {}
        for item in stated:
            if item.rows is None or self._garbage.pop(item.path, None) is None:
                continue
            to_unlink[item.path] = None
            if item.segment is not None:
                item.segment.released = True
                columns = item.rows[0].get_columns_path(item.segment)
                self._garbage.pop(columns, None)
                to_unlink[columns] = None
        if stated:
            store.flusher.drop_released()
        if store.full:
            to_unlink.update(dict.fromkeys(self._deleted_files()))
        if to_unlink:
            # After the work already in the queue, which may be creating one of these files.
            store.disk.submit("behind", [], lambda error: self._unlink_present(list(to_unlink)))

    def _unlink_present(self, paths: list[str]) -> None:
        self._unlink([path for path in paths if self._store.disk.exists(path)], [])

    def _deleted_files(self) -> list[str]:
        """Return files of streams that durable frames deleted.

        The background queue may still create some: the folder stays.
        """
        committed = self._store.committed_frame
        ended = [
            item
            for item in self._garbage.values()
            if item.is_folder and 0 < item.ended <= committed and self._is_archived(item)
        ]
        for item in ended:
            self._garbage[item.path] = item._replace(size=0)
        names = [f"{item.path}/{name}" for item in ended for name in self._store.disk.list(item.path)]
        return [path for path in names if STORE_FILE_NAME.fullmatch(path.rpartition("/")[2])]

    def collect(self, checkpoint: int) -> None:
        """Unlink what this durable checkpoint does not name."""
        disk = self._store.disk
        removable = {
            path: item
            for path, item in self._garbage.items()
            if item.removable_at <= checkpoint and self._is_archived(item)
        }
        self._garbage = {path: item for path, item in self._garbage.items() if path not in removable}
        files = [path for path, item in removable.items() if not item.is_folder and disk.exists(path)]
        segments = [item.segment for item in removable.values() if item.segment is not None]
        for segment in segments:
            segment.released = True
        if segments:
            self._store.flusher.drop_released()
        self._unlink(files, [path for path, item in removable.items() if item.is_folder])

    def _unlink(self, files: list[str], folders: list[str]) -> None:
        disk = self._store.disk
        to_unlink = dict.fromkeys(files)
        to_rmdir: list[str] = []
        for folder in (path for path in folders if disk.exists(path)):
            names = disk.list(folder)
            own_names = [name for name in names if STORE_FILE_NAME.fullmatch(name)]
            to_unlink.update({f"{folder}/{name}": None for name in own_names})
            if len(own_names) == len(names):  # otherwise it has foreign files: it stays
                sometimes("a folder is removed")
                to_rmdir.append(folder)
        for path in to_unlink:
            self._store.flusher.unsynced_segments.pop(path, None)
        paths = [path for path in to_unlink if path not in self._going]
        ops: list[Op] = [("unlink", path) for path in paths]
        ops += [("rmdir", folder) for folder in to_rmdir if folder not in self._going]
        if ops:
            going = {op[1] for op in ops}
            self._going |= going
            disk.submit("behind", ops, lambda error: self._on_unlinked(going, error))

    def _on_unlinked(self, going: set[str], error: OSError | None) -> None:
        self._going -= going
        self._store.on_files_removed(error)

    def _span(self, item: _GarbageFile) -> tuple[FileLog, int, int]:
        """Return all sequences that the file may be needed for, including large messages beyond the rows of its
        segment.
        """
        assert item.rows is not None
        log, first, last = item.rows
        _, low, high = self.referred.get(item.path, (0, first, last))
        return log, min(first, low), max(last, high)

    def _is_dead(self, item: _GarbageFile) -> bool:
        if item.rows is None or item.rows[0].is_deleted or not self._is_archived(item):
            return False
        if item.segment is not None and item.path not in self.referred:
            return True
        log, first, last = self._span(item)
        return not 0 < log.find_next(None, first) <= last

    def list_segment_files(self) -> list[str]:
        """Return the segment files that wait to be removed: the durable checkpoint may still name them.

        A file without a size did not exist when it was dropped; a frame in flight may have created it since.
        """
        disk, paths = self._store.disk, []
        for item in self._garbage.values():
            if item.is_folder and item.ended > self._store.committed_frame:
                paths += [f"{item.path}/{name}" for name in disk.list(item.path)]
            elif not item.is_folder and (item.size or disk.exists(item.path)):
                paths.append(item.path)
        return [path for path in paths if path.endswith(".seg")]

    def folders(self) -> set[str]:
        """Return the folders with files that wait to be removed."""
        return {path.rpartition("/")[0] for path in self._garbage}
