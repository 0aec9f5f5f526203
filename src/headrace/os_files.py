"""Calls on files that differ between Linux, macOS and Windows.

Owns the differences, so that no other module imports `fcntl`: clients, claims and readers can be imported on Windows,
where the broker does not run.
"""

from __future__ import annotations

import os
import sys

from headrace.errors import StoreError

if sys.platform != "win32":
    import fcntl

__all__ = ["is_locked", "lock_exclusive", "start_write_back", "sync_data"]


def sync_data(fd: int) -> None:
    """Wait until the file's content is durable. On macOS `fsync` does not reach the medium; F_FULLFSYNC does."""
    if sys.platform == "darwin":
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


def start_write_back(fd: int, offset: int, length: int) -> None:
    """Start write-back of a range: the hint that its data is not needed makes Linux write it back at once."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)


def lock_exclusive(fd: int) -> None:
    """Lock an open file against other processes until it is closed. Raise OSError if another process holds the lock."""
    if sys.platform == "win32":
        raise StoreError("a store can be opened on Linux and macOS only")
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Return whether another process holds the lock of a file; False if there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        lock_exclusive(fd)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
