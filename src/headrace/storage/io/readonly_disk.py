"""Opens a store's folder for reading only.

Owns read-only descriptors and, for readers without a broker, the store's lock. Invariant: nothing is created or
changed, not even the lock file, so a folder on read-only storage works. Must not know file formats.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

from headrace.errors import StoreError
from headrace.os_files import lock_exclusive
from headrace.storage.native_records import map_file


class RootFolder:
    """Lists and inspects the files of a folder; paths are relative."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def list(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(self.root / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, path: str) -> bool:
        return os.path.lexists(self.root / path)

    def size(self, path: str) -> int:
        return os.stat(self.root / path).st_size

    def free(self) -> int:
        stats = os.statvfs(self.root)
        return stats.f_bavail * stats.f_frsize


class ReadonlyDisk(RootFolder):
    """The read methods of a `Disk`. With `exclusive` no broker can have the store open at the same time."""

    def __init__(self, root: str | os.PathLike[str], *, exclusive: bool) -> None:
        super().__init__(root)
        self._lock_fd = _acquire_lock(self.root) if exclusive else -1

    def read(self, path: str, offset: int, length: int) -> bytes:
        with open(self.root / path, "rb") as file:
            file.seek(offset)
            return file.read(length)

    def map(self, path: str) -> memoryview:
        with open(self.root / path, "rb") as file:
            return map_whole_file(file.fileno())

    def prefetch(self, path: str, offset: int, length: int) -> None:
        """Do nothing: the operating system reads mapped files ahead."""

    def unlock(self) -> None:
        """Release the lock so that a broker can open the store; files already mapped stay readable."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def map_whole_file(fd: int) -> memoryview:
    """Return a read-only view of an open file, which outlives the descriptor.

    Large files are mapped, small ones are read: Linux allows a process some 65,000 maps, and a store may have as many
    files. If mapping fails, the bytes are read.
    """
    size = os.fstat(fd).st_size
    if size > mmap.PAGESIZE:
        with contextlib.suppress(OSError):
            return map_file(fd, size)
    data = os.pread(fd, size, 0)
    while len(data) < size and (more := os.pread(fd, size - len(data), len(data))):
        data += more
    return memoryview(data)


def _acquire_lock(root: Path) -> int:
    try:
        fd = os.open(root / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise StoreError(f"there is no store in {root}") from None
    try:
        lock_exclusive(fd)
    except OSError:
        os.close(fd)
        raise StoreError(
            f"{root} is in use by another process; stop it, or read a pin that it makes"
        ) from None
    return fd
