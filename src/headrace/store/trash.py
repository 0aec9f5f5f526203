"""Files that nothing needs any more, as soon as a proven checkpoint agrees.

Owns the list of what is to be unlinked. Invariant: a file goes only after a checkpoint begun after it
was dropped is proven, and never while it is pinned. Must not know why a file was dropped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from headrace.store.disk import Op

if TYPE_CHECKING:
    from headrace.store.store import Store

OURS = re.compile(r"[0-9a-f]{8}\.(seg|col)|subjects\.[0-9]+")


class _Item(NamedTuple):
    needed: int
    path: str
    folder: bool
    size: int


class Trash:
    """Fills as segments and streams are dropped; emptied by checkpoints."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._items: list[_Item] = []

    def __len__(self) -> int:
        return len(self._items)

    def add(self, path: str) -> None:
        disk = self._store.disk
        size = disk.size(path) if disk.exists(path) else 0
        self._items.append(_Item(self._store.checkpoints.next_number, path, False, size))

    def add_folder(self, folder: str) -> None:
        disk = self._store.disk
        size = sum(disk.size(f"{folder}/{name}") for name in disk.list(folder))
        self._items.append(_Item(self._store.checkpoints.next_number, folder, True, size))

    def urgent(self) -> bool:
        """Whether a checkpoint is worth while for the space alone."""
        waiting = sum(item.size for item in self._items if item.path not in self._store.pinned)
        return waiting >= self._store.options.checkpoint_bytes or (self._store.full and waiting > 0)

    def empty(self, checkpoint: int) -> None:
        """Unlinks what this proven checkpoint does not name."""
        kept: list[_Item] = []
        ops: list[Op] = []
        for item in self._items:
            if item.needed > checkpoint or item.path in self._store.pinned:
                kept.append(item)
            elif item.folder:
                ops += self._folder_ops(item.path)
            else:
                ops += self._file_ops(item.path)
        self._items = kept
        if ops:
            self._store.disk.submit("behind", ops, self._store.emptied)

    def _file_ops(self, path: str) -> list[Op]:
        self._store.behind.unsynced.pop(path, None)
        return [("unlink", path)] if self._store.disk.exists(path) else []

    def _folder_ops(self, folder: str) -> list[Op]:
        """Our files in it, and the folder itself unless somebody put something else there."""
        ops: list[Op] = []
        names = self._store.disk.list(folder)
        for name in names:
            if OURS.fullmatch(name):
                ops += self._file_ops(f"{folder}/{name}")
        if len(ops) == len(names) and self._store.disk.exists(folder):
            ops.append(("rmdir", folder))
        return ops
