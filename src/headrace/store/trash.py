"""Files that nothing needs any more, as soon as a proven checkpoint agrees.

Owns the list of what is to be unlinked. Invariant: a file goes only after a checkpoint begun after it
was dropped is proven, and never while it is pinned. Must not know why a file was dropped.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from headrace.probes import probe
from headrace.store.disk import Op

if TYPE_CHECKING:
    from headrace.store.store import Store

OURS = re.compile(r"[0-9a-f]{8}\.(seg|([0-9]+\.)?col)|subjects\.[0-9]+")


class _Item(NamedTuple):
    needed: int
    path: str
    folder: bool
    size: int


class Trash:
    """Fills as segments and streams are dropped; emptied by checkpoints."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._items: dict[str, _Item] = {}

    def __len__(self) -> int:
        return len(self._items)

    def add(self, path: str) -> None:
        size = self._size(path)
        self._items.setdefault(path, _Item(self._store.checkpoints.next_number, path, False, size))

    def add_folder(self, folder: str) -> None:
        size = sum(self._size(f"{folder}/{name}") for name in self._store.disk.list(folder))
        self._items.setdefault(folder, _Item(self._store.checkpoints.next_number, folder, True, size))

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

    def empty(self, checkpoint: int) -> None:
        """Unlinks what this proven checkpoint does not name."""
        disk = self._store.disk
        ready = {path: item for path, item in self._items.items() if item.needed <= checkpoint}
        self._items = {path: item for path, item in self._items.items() if path not in ready}
        gone = {path: None for path, item in ready.items() if not item.folder and disk.exists(path)}
        empty: list[str] = []
        for folder in (path for path, item in ready.items() if item.folder and disk.exists(path)):
            names = disk.list(folder)
            ours = [name for name in names if OURS.fullmatch(name)]
            gone.update({f"{folder}/{name}": None for name in ours})
            if len(ours) == len(names):  # otherwise somebody put something else there: it stays
                probe("a folder is removed")
                empty.append(folder)
        for path in gone:
            self._store.behind.unsynced.pop(path, None)
        ops: list[Op] = [("unlink", path) for path in gone]
        ops += [("rmdir", folder) for folder in empty]
        if ops:
            disk.submit("behind", ops, self._store.emptied)
