"""Makes the names of files and folders durable with as few syncs as possible.

A sync of a folder makes the names in it durable, but not the folder's own name: that one is in the folder above. Each
folder in use is open. Its inode cannot be reused meanwhile, so a path that still leads to it was not removed since its
name became durable, and the folders above need no sync. Changes of other processes need no notice: what they create is
unknown here, and synced. It knows no objects and no keys.
"""

from __future__ import annotations

import os
import threading

#: Maximum number of open folders.
_OPEN_MAX = 128


class FolderHandle:
    """An open folder; it closes with the last reference to it, so no thread syncs a descriptor of another file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY)
        self._identity = _identify(os.fstat(self._descriptor))

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)

    def is_current(self) -> bool:
        """Return whether the path still leads to this folder."""
        return _identify(os.stat(self.path)) == self._identity

    def sync(self) -> None:
        """Make the names in this folder durable."""
        os.fsync(self._descriptor)


class SyncedFolders:
    """Folders below `root` whose own names are durable. Threads may share it."""

    def __init__(self, root: str) -> None:
        self._root = root
        #: By path, the one that was not used for the longest time first.
        self._handles: dict[str, FolderHandle] = {}
        self._lock = threading.Lock()

    def sync(self, path: str) -> None:
        """Make the names in a folder durable, and its own and those above, up to the names in the root.

        Raises `FileNotFoundError` if it was removed meanwhile.
        """
        handle = self._find(path)
        if handle is not None:
            self._sync_known(handle)
            return
        handle = FolderHandle(path)
        handle.sync()
        if path != self._root:
            self.sync(os.path.dirname(path))
        self._add(handle)

    def close(self) -> None:
        with self._lock:
            self._handles.clear()

    def _find(self, path: str) -> FolderHandle | None:
        """Return the handle of a folder whose name is durable; None if it is unknown."""
        with self._lock:
            handle = self._handles.get(path)
        if handle is None or not handle.is_current():
            return None
        self._add(handle)
        return handle

    def _sync_known(self, handle: FolderHandle) -> None:
        try:
            handle.sync()
        except OSError:  # nothing is known of this folder any more
            with self._lock:
                self._handles.pop(handle.path, None)
            raise

    def _add(self, handle: FolderHandle) -> None:
        """Add a folder as the one used last; remove the one that was not used for the longest time."""
        with self._lock:
            self._handles.pop(handle.path, None)
            self._handles[handle.path] = handle
            if len(self._handles) > _OPEN_MAX:
                del self._handles[next(iter(self._handles))]


def _identify(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
