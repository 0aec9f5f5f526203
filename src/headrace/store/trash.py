"""Files that nothing needs any more, as soon as a proven checkpoint agrees.

Owns the list of what is to be unlinked. Invariant: a file goes only after a checkpoint begun after it
was dropped is proven, or, on a full disk, after a frame is durable from which a replay learns that nothing of it
lives. Must not know why a file was dropped.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, NamedTuple

from headrace.probes import probe
from headrace.store.disk import Op
from headrace.store.filelog import FileLog
from headrace.store.format import REMOVALS, entry
from headrace.store.segments import FileSegment

if TYPE_CHECKING:
    from headrace.store.store import Store

OURS = re.compile(r"[0-9a-f]{8}\.(seg|([0-9]+\.)?col)|subjects\.[0-9]+")

_PAIR = struct.Struct("<QQ")


class _Item(NamedTuple):
    needed: int
    path: str
    folder: bool
    size: int
    ended: int = 0  # the frame in which a stream was deleted
    #: A segment of which frames can say that nothing lives: its log, first and last sequence.
    rows: tuple[FileLog, int, int] | None = None
    segment: FileSegment | None = None


class Trash:
    """Fills as segments and streams are dropped; emptied by checkpoints.

    On a full disk there may be no space for a checkpoint. Then a frame says of each dropped segment that all its
    sequences are removed, and its file goes when that frame is durable: see `Survey.explains`.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._items: dict[str, _Item] = {}
        #: After an opening in place: segments that frames above the checkpoint refer to -> ident, first, last of these.
        self.referred: dict[str, tuple[int, int, int]] = {}
        self._stated: list[_Item] = []  # by the frame in flight
        self._going: set[str] = set()  # to be unlinked by a submission that is not over

    def __len__(self) -> int:
        return len(self._items)

    def add(self, path: str) -> None:
        size = self._size(path)
        self._items.setdefault(path, _Item(self._store.checkpoints.next_number, path, False, size))

    def add_dead(self, log: FileLog, segment: FileSegment) -> None:
        """A segment of which every row was removed by frames, up to the one under construction."""
        number, path = self._store.checkpoints.next_number, segment.path
        rows = log, segment.columns.base, segment.last
        item = _Item(number, path, False, self._size(path), rows=rows, segment=segment)
        self._items.setdefault(path, item)

    def add_copied(self, log: FileLog, path: str, first: int, last: int, needed: int) -> None:
        """A file that checkpoint `needed` does not name. Frames before it may refer to large messages in it, from
        `first` to `last`, which were copied.
        """
        rows = (log, first, last) if last else None
        self._items.setdefault(path, _Item(needed, path, False, self._size(path), rows=rows))

    def add_folder(self, folder: str, ended: int) -> None:
        """The folder of a stream that was deleted in frame `ended`."""
        size = sum(self._size(f"{folder}/{name}") for name in self._store.disk.list(folder))
        number = self._store.checkpoints.next_number
        self._items.setdefault(folder, _Item(number, folder, True, size, ended))

    def _size(self, path: str) -> int:
        """Of a file that the other lane may be unlinking: one that is gone has none."""
        try:
            return self._store.disk.size(path)
        except FileNotFoundError:
            return 0

    def urgent(self) -> bool:
        """Whether a checkpoint is worth while for the space alone."""
        if not self._items:
            return False
        waiting = sum(item.size for item in self._items.values())
        return waiting >= self._store.options.checkpoint_bytes or (self._store.full and waiting > 0)

    # Without a checkpoint

    @property
    def has_statements(self) -> bool:
        """Whether a frame could let go of something before the next checkpoint."""
        return any(item.size if item.folder else self._is_dead(item) for item in self._items.values())

    def state(self) -> list[bytes]:
        """Entries for the frame that is being closed: what is removed as a whole."""
        runs: dict[int, list[bytes]] = {}
        for item in self._items.values():
            if item.rows is not None and self._is_dead(item):
                log, first, last = self._span(item)
                log.saved_tick = -1  # a later checkpoint must not rely on a section that names it
                self._stated.append(item)
                runs.setdefault(log.ident, []).append(_PAIR.pack(first, last))
        return [entry(REMOVALS, ident, b"".join(pairs)) for ident, pairs in runs.items()]

    def release(self) -> None:
        """A frame is durable: what it, or one before it, has said to be removed goes."""
        store = self._store
        stated, self._stated = self._stated, []
        gone: dict[str, None] = {}
        for item in stated:
            if item.rows is None or self._items.pop(item.path, None) is None:
                continue
            gone[item.path] = None
            if item.segment is not None:
                item.segment.released = True
                columns = item.rows[0].columns_path(item.segment)
                self._items.pop(columns, None)
                gone[columns] = None
        if stated:
            store.behind.drop_released()
        if store.full:
            gone.update(dict.fromkeys(self._deleted_files()))
        if gone:
            # After what is under way on the lane, which may be making one of these files.
            store.disk.submit("behind", [], lambda error: self._unlink_present(list(gone)))

    def _unlink_present(self, paths: list[str]) -> None:
        self._unlink([path for path in paths if self._store.disk.exists(path)], [])

    def _deleted_files(self) -> list[str]:
        """Files of streams that durable frames have deleted. Lane "behind" may still make some: the folder stays."""
        committed = self._store.committed
        ended = [item for item in self._items.values() if item.folder and 0 < item.ended <= committed]
        for item in ended:
            self._items[item.path] = item._replace(size=0)
        names = [f"{item.path}/{name}" for item in ended for name in self._store.disk.list(item.path)]
        return [path for path in names if OURS.fullmatch(path.rpartition("/")[2])]

    def empty(self, checkpoint: int) -> None:
        """Unlinks what this proven checkpoint does not name."""
        disk = self._store.disk
        ready = {path: item for path, item in self._items.items() if item.needed <= checkpoint}
        self._items = {path: item for path, item in self._items.items() if path not in ready}
        files = [path for path, item in ready.items() if not item.folder and disk.exists(path)]
        segments = [item.segment for item in ready.values() if item.segment is not None]
        for segment in segments:
            segment.released = True
        if segments:
            self._store.behind.drop_released()
        self._unlink(files, [path for path, item in ready.items() if item.folder])

    def _unlink(self, files: list[str], folders: list[str]) -> None:
        disk = self._store.disk
        gone = dict.fromkeys(files)
        empty: list[str] = []
        for folder in (path for path in folders if disk.exists(path)):
            names = disk.list(folder)
            ours = [name for name in names if OURS.fullmatch(name)]
            gone.update({f"{folder}/{name}": None for name in ours})
            if len(ours) == len(names):  # otherwise somebody put something else there: it stays
                probe("a folder is removed")
                empty.append(folder)
        for path in gone:
            self._store.behind.unsynced.pop(path, None)
        paths = [path for path in gone if path not in self._going]
        ops: list[Op] = [("unlink", path) for path in paths]
        ops += [("rmdir", folder) for folder in empty if folder not in self._going]
        if ops:
            going = {op[1] for op in ops}
            self._going |= going
            disk.submit("behind", ops, lambda error: self._gone(going, error))

    def _gone(self, going: set[str], error: OSError | None) -> None:
        self._going -= going
        self._store.emptied(error)

    def _span(self, item: _Item) -> tuple[FileLog, int, int]:
        """All sequences that the file may be needed for, also of large messages beyond the rows of its segment."""
        assert item.rows is not None
        log, first, last = item.rows
        _, low, high = self.referred.get(item.path, (0, first, last))
        return log, min(first, low), max(last, high)

    def _is_dead(self, item: _Item) -> bool:
        if item.rows is None or item.rows[0].gone:
            return False
        if item.segment is not None and item.path not in self.referred:
            return True
        log, first, last = self._span(item)
        return not 0 < log.next(None, first) <= last

    def folders(self) -> set[str]:
        """Of which files wait to be removed."""
        return {path.rpartition("/")[0] for path in self._items}
