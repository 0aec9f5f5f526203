"""Cache of open files, shared by the disk queues and the core.

Owns the descriptors: how many there are, and which of them may be closed. Invariant: a descriptor in use is never
closed, and one that was written to stays open until it is synced. The operating system reports a failed write-back only
to processes that have the file open, and only once; the error is therefore kept until the file is removed. Must not
know what is in a file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from headrace.os_files import sync_data as _fdatasync

T = TypeVar("T")

DESCRIPTORS_MAX = 256
#: How long a queue waits for a descriptor when the process, or the machine, has none left.
DESCRIPTOR_TIMEOUT_S = 10.0
RETRY_PAUSE_S = 0.02
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class FileHandle:
    """An open file: its number of users, whether it was written since its last sync, and the error of a failed sync."""

    __slots__ = ("evicted", "fd", "sync_error", "sync_lock", "unsynced", "use_count")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.use_count = 0
        self.unsynced = False  # set after a write: a sync during the write may have come too early
        self.evicted = False
        self.sync_error: OSError | None = None
        self.sync_lock = threading.Lock()

    def sync(self) -> None:
        """Sync the file; after a failure, every later call raises the same error."""
        with self.sync_lock:
            if self.sync_error is not None:
                raise self.sync_error
            self.unsynced = False
            try:
                _fdatasync(self.fd)
            except OSError as error:
                self.sync_error = error
                raise


class FileHandleCache:
    """The open files under a root. `may_wait` returns whether this thread may wait for a descriptor."""

    def __init__(self, root: Path, may_wait: Callable[[], bool]) -> None:
        self._root = root
        self._may_wait = may_wait
        self._handles: OrderedDict[str, FileHandle] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._handles)

    @contextlib.contextmanager
    def acquired(self, path: str, flags: int = os.O_RDWR) -> Iterator[FileHandle]:
        """Context manager around `acquire` and `release`."""
        handle = self.acquire(path, flags)
        try:
            yield handle
        finally:
            self.release(handle)

    def acquire(self, path: str, flags: int = os.O_RDWR) -> FileHandle:
        """Open or reuse a file and mark it as in use; the caller must release it. Faster than `acquired`."""
        try:
            return self._acquire_once(path, flags)
        except OSError as error:
            if error.errno not in _OUT_OF_DESCRIPTORS:
                raise
        return self.with_retry(lambda: self._acquire_once(path, flags))

    def _acquire_once(self, path: str, flags: int) -> FileHandle:
        with self._lock:
            handle = self._handles.pop(path, None)
            if handle is None:
                handle = FileHandle(os.open(self._root / path, flags | os.O_CLOEXEC, 0o644))
            self._handles[path] = handle  # most recently used last
            handle.use_count += 1
        return handle

    def acquire_open(self, path: str) -> FileHandle | None:
        """Mark a file as in use if it is open; the caller must release it."""
        with self._lock:
            handle = self._handles.get(path)
            if handle is not None:
                self._handles.move_to_end(path)  # most recently used last
                handle.use_count += 1
        return handle

    def release(self, handle: FileHandle) -> None:
        self.release_all((handle,))

    def release_all(self, handles: Iterable[FileHandle]) -> None:
        """Release files that were acquired by one user."""
        with self._lock:
            for handle in handles:
                handle.use_count -= 1
                if handle.evicted and not handle.use_count:
                    os.close(handle.fd)
        if len(self._handles) > DESCRIPTORS_MAX:
            self._close_oldest()

    def release_written(self, handle: FileHandle) -> None:
        """Release a file after a write. Only writers sync old files here; the core's thread never waits for that."""
        handle.unsynced = True
        self.release(handle)
        if len(self._handles) > DESCRIPTORS_MAX:
            self._sync_oldest()

    def evict(self, path: str) -> None:
        """Close a file that is about to be removed or renamed, now or when its last user releases it."""
        with self._lock:
            handle = self._handles.pop(path, None)
            if handle is not None:
                handle.evicted = True
                if not handle.use_count:
                    os.close(handle.fd)

    def close(self) -> None:
        for path in list(self._handles):
            self.evict(path)

    def _close_oldest(self) -> bool:
        """Close a file that is not in use and needs no sync; return whether there was one."""
        with self._lock:
            for path, handle in self._handles.items():
                if not (handle.use_count or handle.unsynced or handle.sync_error):
                    del self._handles[path]
                    os.close(handle.fd)
                    return True
        return False

    def _sync_oldest(self) -> bool:
        """Sync a file that is not in use, so that it can be closed; return whether there was one.

        If the sync fails the file stays open, so that its next sync reports the error, not this unrelated caller.
        """
        with self._lock:
            idle = (each for each in self._handles.values() if not (each.use_count or each.sync_error))
            handle = next((each for each in idle if each.unsynced), None)
            if handle is None:
                return False
            handle.use_count += 1
        try:
            with contextlib.suppress(OSError):
                handle.sync()
        finally:
            self.release(handle)
        return True

    def with_retry(self, attempt: Callable[[], T]) -> T:
        """Retry `attempt` while no descriptor is left (connections use them too); a failed open has changed nothing.

        Retries at once if a cached file can be closed, and for a while if this thread may wait.
        """
        deadline = time.monotonic() + DESCRIPTOR_TIMEOUT_S
        while True:
            try:
                return attempt()
            except OSError as error:
                if error.errno not in _OUT_OF_DESCRIPTORS:
                    raise
                if self._close_oldest():
                    continue
                if time.monotonic() > deadline or not self._may_wait():
                    raise
            if not self._sync_oldest():
                time.sleep(RETRY_PAUSE_S)
