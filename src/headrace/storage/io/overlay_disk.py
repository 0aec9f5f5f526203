"""A disk that shows another disk's files but keeps every change in memory.

Owns the changes laid over a store's files. Recovery runs on it as usual while the folder stays byte for byte as it was;
this is how a store is read or checked without a broker. Invariant: only the read methods of the underlying disk are
called. Must not know what the files mean.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headrace.storage.io.disk import DoneCallback, Op, compute_data

FREE = 1 << 60  # free bytes that an overlay reports


class ReadableDisk(Protocol):
    """The read methods of the underlying disk that an overlay needs."""

    def list(self, folder: str) -> list[str]: ...
    def exists(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...
    def read(self, path: str, offset: int, length: int) -> bytes: ...
    def map(self, path: str) -> memoryview: ...
    def prefetch(self, path: str, offset: int, length: int) -> None: ...


class _OverlayFile:
    """One changed file: the underlying file it started from (`base_path`, or None) and the writes since, oldest first."""

    __slots__ = ("base_bytes", "base_path", "patches", "size")

    def __init__(self, base_path: str | None, base_bytes: int, size: int) -> None:
        self.base_path = base_path
        self.base_bytes = base_bytes  # bytes of the base file that are still visible
        self.size = size
        self.patches: list[tuple[int, bytes]] = []

    @property
    def unchanged_base(self) -> str | None:
        """The base file, if all of it and nothing else is visible."""
        return self.base_path if not self.patches and self.base_bytes == self.size else None


class OverlayDisk:
    """A `Disk`; submissions run when it is drained."""

    def __init__(self, base: ReadableDisk) -> None:
        self._base = base
        self._files: dict[str, _OverlayFile | None] = {}  # None: removed
        self._folders: dict[str, bool] = {}  # False: removed
        self._submitted: deque[tuple[Sequence[Op], DoneCallback]] = deque()
        self._handlers: dict[str, Callable[..., None]] = {
            "create": self._create,
            "write": self._write,
            "sync": self._ignore_sync,
            "syncdir": self._ignore_sync,
            "mkdir": self._mkdir,
            "link": self._link,
            "rename": self._rename,
            "unlink": self._unlink,
            "rmdir": self._rmdir,
            "copy": self._copy,
        }

    @property
    def has_changes(self) -> bool:
        """Return whether the operations run on this disk would have changed the underlying one."""
        return bool(self._files or self._folders)

    def list(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        names = {name for name in self._base.list(folder) if self.exists(prefix + name)}
        for path in [*self._files, *self._folders]:
            if path.startswith(prefix) and "/" not in path[len(prefix) :] and self.exists(path):
                names.add(path[len(prefix) :])
        return sorted(names)

    def exists(self, path: str) -> bool:
        if path in self._files:
            return self._files[path] is not None
        if path in self._folders:
            return self._folders[path]
        return self._base.exists(path)

    def size(self, path: str) -> int:
        file = self._get_changed(path)
        return file.size if file else self._base.size(path)

    def read(self, path: str, offset: int, length: int) -> bytes:
        file = self._get_changed(path)
        if file is None:
            return self._base.read(path, offset, length)
        length = max(0, min(length, file.size - offset))
        out = bytearray(length)
        if file.base_path is not None:
            base_data = self._base.read(file.base_path, offset, max(0, min(length, file.base_bytes - offset)))
            out[: len(base_data)] = base_data
        for start, data in file.patches:
            low, high = max(start, offset), min(start + len(data), offset + length)
            if low < high:
                out[low - offset : high - offset] = data[low - start : high - start]
        return bytes(out)

    def map(self, path: str) -> memoryview:
        file = self._get_changed(path)
        if file is None:
            return self._base.map(path)
        if file.unchanged_base:
            return self._base.map(file.unchanged_base)
        return memoryview(self.read(path, 0, file.size))

    def prefetch(self, path: str, offset: int, length: int) -> None:
        if path not in self._files:
            self._base.prefetch(path, offset, length)

    def free(self) -> int:
        """Changes are kept in memory, so the underlying disk may be full."""
        return FREE

    def run(self, ops: Sequence[Op]) -> None:
        for kind, *arguments in ops:
            if kind == "write":
                arguments[2] = compute_data(arguments[2])
            self._handlers[kind](*arguments)

    def submit(self, queue_name: str, ops: Sequence[Op], done: DoneCallback) -> None:
        self._submitted.append((ops, done))

    def drain(self) -> None:
        while self._submitted:
            ops, done = self._submitted.popleft()
            try:
                self.run(ops)
            except OSError as error:
                done(error)
            else:
                done(None)

    def close(self) -> None:
        self._files.clear()
        self._folders.clear()
        self._submitted.clear()

    def _get_changed(self, path: str) -> _OverlayFile | None:
        if path in self._files and self._files[path] is None:
            raise _make_not_found(path)
        return self._files.get(path)

    def _copy_on_write(self, path: str) -> _OverlayFile:
        """Return the changed file at `path`; an underlying file is covered first."""
        file = self._get_changed(path)
        if file is None:
            size = self._base.size(path)
            file = self._files[path] = _OverlayFile(path, size, size)
        return file

    def _create(self, path: str, size: int) -> None:
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._files[path] = _OverlayFile(None, 0, size)

    def _write(self, path: str, offset: int, data: Any) -> None:
        content = b"".join(data) if isinstance(data, (list, tuple)) else bytes(data)
        file = self._copy_on_write(path)
        file.patches.append((offset, content))
        file.size = max(file.size, offset + len(content))

    def _ignore_sync(self, *_: Any) -> None:
        """Ignore a sync: nothing here can be lost."""

    def _mkdir(self, folder: str) -> None:
        if self.exists(folder):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), folder)
        self._folders[folder] = True

    def _rmdir(self, folder: str) -> None:
        if self.list(folder):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), folder)
        self._folders[folder] = False

    def _link(self, path: str, new: str) -> None:
        if self.exists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        self._files[new] = self._copy_on_write(path)

    def _rename(self, path: str, new: str) -> None:
        self._files[new] = self._copy_on_write(path)
        self._files[path] = None

    def _unlink(self, path: str) -> None:
        if not self.exists(path):
            raise _make_not_found(path)
        self._files[path] = None

    def _copy(self, src: str, src_offset: int, dst: str, dst_offset: int, length: int) -> None:
        self._write(dst, dst_offset, self.read(src, src_offset, length))


def _make_not_found(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
