"""Open files, shared by the lanes and the core.

Owns descriptors: how many there are, and which of them may be closed. Invariant: one in use is never closed, and
one that was written through stays open until it is synced, because the kernel tells a failed write-back only to
those who have the file open, and only once: what it told is kept until the file goes. Must not know what is in a
file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

DESCRIPTORS_MAX = 256
#: So long a lane waits for a descriptor when the process, or the machine, has none left.
PATIENCE_S = 10.0
PAUSE_S = 0.02
_RUN_OUT = (errno.EMFILE, errno.ENFILE)


class Handle:
    """An open file, how many use it now, whether it was written through since its last sync, and what a sync of
    it failed with.
    """

    __slots__ = ("failed", "fd", "forgotten", "syncing", "unsynced", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.unsynced = False  # to be set after a write: a sync during it may have come too early
        self.forgotten = False
        self.failed: OSError | None = None
        self.syncing = threading.Lock()

    def sync(self) -> None:
        """Whoever comes after a failure is told of it, too."""
        with self.syncing:
            if self.failed is not None:
                raise self.failed
            self.unsynced = False
            try:
                _fdatasync(self.fd)
            except OSError as error:
                self.failed = error
                raise


class Handles:
    """The open files under a root. `may_wait` tells whether this thread has time to wait for a descriptor."""

    def __init__(self, root: Path, may_wait: Callable[[], bool]) -> None:
        self._root = root
        self._may_wait = may_wait
        self._held: OrderedDict[str, Handle] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    @contextlib.contextmanager
    def held(self, path: str, flags: int = os.O_RDWR) -> Iterator[Handle]:
        """A file in use."""
        handle = self.take(path, flags)
        try:
            yield handle
        finally:
            self.give_back(handle)

    def take(self, path: str, flags: int = os.O_RDWR) -> Handle:
        """`held` for those in a hurry; to be given back."""
        try:
            return self._take(path, flags)
        except OSError as error:
            if error.errno not in _RUN_OUT:
                raise
        return self.opening(lambda: self._take(path, flags))

    def _take(self, path: str, flags: int) -> Handle:
        with self._lock:
            handle = self._held.pop(path, None)
            if handle is None:
                handle = Handle(os.open(self._root / path, flags | os.O_CLOEXEC, 0o644))
            self._held[path] = handle  # most recently used last
            handle.users += 1
        return handle

    def give_back(self, handle: Handle) -> None:
        with self._lock:
            handle.users -= 1
            if handle.forgotten and not handle.users:
                os.close(handle.fd)
        if len(self._held) > DESCRIPTORS_MAX:
            self._close_oldest()

    def wrote(self, handle: Handle) -> None:
        """`give_back` after a write. Only who writes waits for a sync in passing: the core's thread does not."""
        handle.unsynced = True
        self.give_back(handle)
        if len(self._held) > DESCRIPTORS_MAX:
            self._sync_oldest()

    def forget(self, path: str) -> None:
        """The file is about to go, or to have another name."""
        with self._lock:
            handle = self._held.pop(path, None)
            if handle is not None:
                handle.forgotten = True
                if not handle.users:
                    os.close(handle.fd)

    def close(self) -> None:
        for path in list(self._held):
            self.forget(path)

    def _close_oldest(self) -> bool:
        """Closes a file that nobody uses and that needs no sync; returns whether there was one."""
        with self._lock:
            for path, handle in self._held.items():
                if not (handle.users or handle.unsynced or handle.failed):
                    del self._held[path]
                    os.close(handle.fd)
                    return True
        return False

    def _sync_oldest(self) -> bool:
        """Syncs a file that nobody uses, which can then be closed; returns whether there was one. If that fails it
        stays open: whoever syncs it next is told, and not who happens to be here.
        """
        with self._lock:
            idle = (each for each in self._held.values() if not (each.users or each.failed))
            handle = next((each for each in idle if each.unsynced), None)
            if handle is None:
                return False
            handle.users += 1
        try:
            with contextlib.suppress(OSError):
                handle.sync()
        finally:
            self.give_back(handle)
        return True

    def opening(self, attempt: Callable[[], T]) -> T:
        """What opens a file has changed nothing when no descriptor is left (those of connections count, too), and is
        tried again: at once where a file of ours can make way, and for a while where there is time to wait.
        """
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return attempt()
            except OSError as error:
                if error.errno not in _RUN_OUT:
                    raise
                if self._close_oldest():
                    continue
                if time.monotonic() > until or not self._may_wait():
                    raise
            if not self._sync_oldest():
                time.sleep(PAUSE_S)


def _fdatasync(fd: int) -> None:
    if hasattr(fcntl, "F_FULLFSYNC"):
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(fd)
