"""The only interface between the store and a file system: the protocol `Disk`, and `FileDisk` on real files.

Owns files, folders and the two queues of background work; `commit_thread` runs one of them. Invariant: submissions to
one queue run in order, the first operation that fails ends its submission, and `done` is called only on the core's
thread. Must not know what the bytes mean. It retries nothing except opening a file when the process has no descriptors
left; the submitter decides how to handle an error.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from headrace.errors import StoreLocked
from headrace.os_files import lock_exclusive
from headrace.storage.io.commit_thread import CommitThread, to_os_error
from headrace.storage.io.commit_thread import DoneCallback as DoneCallback
from headrace.storage.io.commit_thread import Op as Op
from headrace.storage.io.file_handles import FileHandleCache
from headrace.storage.io.latency import LatencyHistogram
from headrace.storage.io.readonly_disk import RootFolder, map_whole_file

VECTORS_MAX = 512
QUEUES = ("commit", "behind")


class Disk(Protocol):
    """Files under one root; paths are relative and '/'-separated.

    Operations: ("create", path, size), ("write", path, offset, data or list of data), ("sync", path), ("syncdir",
    folder), ("mkdir", folder), ("link", path, new), ("rename", path, new), ("unlink", path), ("rmdir", folder),
    ("copy", source, source_offset, target, target_offset, length). The data of a write may also be a function that
    returns it: it is called when the operation runs, on the thread of the queue.

    An operation that finds no space, or a used-up quota, fails with `OutOfSpace`; a failing sync never does.
    """

    def list(self, folder: str) -> list[str]:
        """List the names in a folder, sorted; empty if there is no such folder."""

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Read bytes; fewer than `length` at the end of the file."""

    def map(self, path: str) -> memoryview:
        """Return a read-only view of the whole file as it is now."""

    def prefetch(self, path: str, offset: int, length: int) -> None:
        """Hint that this range will be read soon."""

    def free(self) -> int:
        """Return the number of bytes that can still be allocated."""

    def run(self, ops: Sequence[Op]) -> None:
        """Run operations now, blocking; raises OSError."""

    def submit(self, queue_name: str, ops: Sequence[Op], done: DoneCallback) -> None:
        """Queue operations after those already in the queue; `done` runs later on the core's thread."""

    def drain(self) -> None:
        """Block until everything submitted, even meanwhile, is complete and its `done` was called."""

    def close(self) -> None: ...


class OutOfSpace(OSError):
    """An operation found no space and may be retried later; the operations before it in its submission are done."""

    op: Op = ()


def translate_error(op: Op, error: OSError) -> OSError:
    """Translate the error of an operation.

    A failed sync never counts as lack of space: the disk's content is unknown then.
    """
    if op[0] in ("sync", "syncdir"):
        return OSError(errno.EIO, f"sync failed: {error.strerror}", error.filename)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    found = OutOfSpace(errno.ENOSPC, error.strerror, error.filename)
    found.op = op
    return found


def compute_data(data: Any) -> Any:
    """Return the data of a write; see `Disk`."""
    return data() if callable(data) else data


class Wakeup(Protocol):
    """Wakes the core's thread through a descriptor."""

    def start(self, call: Callable[[], None]) -> int:
        """Return a descriptor; after 8 bytes are written to it, the core's thread makes the call."""

    def close(self) -> None: ...


class FileDisk(RootFolder):
    """`Disk` on real files, with one thread per queue; `call_soon_threadsafe` runs completions on the core's thread.

    With `wakeup`, the thread of the "commit" queue wakes the core through its descriptor instead, which needs no GIL; the
    disk closes it.
    """

    def __init__(
        self,
        root: str | Path,
        call_soon_threadsafe: Callable[[Callable[[], None]], object] | None = None,
        wakeup: Wakeup | None = None,
    ) -> None:
        super().__init__(root)
        self._call_soon_threadsafe = call_soon_threadsafe
        self._handles = FileHandleCache(self.root, self._is_queue_thread)
        self._completed: deque[tuple[DoneCallback, OSError | None]] = deque()
        self._condition = threading.Condition()
        self._running_count = 0
        self._behind_queue: SimpleQueue[tuple[Sequence[Op], DoneCallback] | None] = SimpleQueue()
        self._behind_thread = threading.Thread(target=self._run_behind, name="headrace-behind", daemon=True)
        self._closed = False
        self.latency = {queue_name: LatencyHistogram() for queue_name in QUEUES}
        self.root.mkdir(parents=True, exist_ok=True)
        self._lock_fd = self._acquire_lock()
        self._wakeup = wakeup
        self._commit_thread = self._make_commit_thread()

    def _is_queue_thread(self) -> bool:
        return threading.current_thread() in (self._commit_thread.thread, self._behind_thread)

    def _make_commit_thread(self) -> CommitThread:
        schedule, wakeup = self._call_soon_threadsafe, self._wakeup
        on_completed = partial(schedule, self._run_callbacks) if schedule is not None else None
        return CommitThread(
            self._handles,
            self.run,
            translate_error,
            self.latency["commit"],
            on_completed,
            wakeup.start(self._run_callbacks) if wakeup is not None else -1,
        )

    def _acquire_lock(self) -> int:
        fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            lock_exclusive(fd)
        except OSError:
            os.close(fd)
            raise StoreLocked(
                f"{self.root} is in use by another process; stop it or use another folder"
            ) from None
        return fd

    # Reading

    def list(self, folder: str) -> list[str]:
        return self._handles.with_retry(lambda: super(FileDisk, self).list(folder))

    def read(self, path: str, offset: int, length: int) -> bytes:
        with self._handles.acquired(path) as handle:
            fd = handle.fd
            data = os.pread(fd, length, offset)
            if len(data) == length:
                return data
            parts = [data]
            got = len(data)
            while data and got < length:
                data = os.pread(fd, length - got, offset + got)
                parts.append(data)
                got += len(data)
            return b"".join(parts)

    def map(self, path: str) -> memoryview:
        with self._handles.acquired(path) as handle:
            return map_whole_file(handle.fd)

    def prefetch(self, path: str, offset: int, length: int) -> None:
        if hasattr(os, "posix_fadvise"):
            with self._handles.acquired(path) as handle:
                os.posix_fadvise(handle.fd, offset, length, os.POSIX_FADV_WILLNEED)

    # Writing

    def run(self, ops: Sequence[Op]) -> None:
        for op in ops:
            try:
                _HANDLERS[op[0]](self, *op[1:])
            except OSError as error:
                raise translate_error(op, error) from None

    def submit(self, queue_name: str, ops: Sequence[Op], done: DoneCallback) -> None:
        if queue_name == "commit":
            self._commit_thread.submit(ops, done)
        elif queue_name == "behind":
            _start_once(self._behind_thread)
            with self._condition:
                self._running_count += 1
            self._behind_queue.put((ops, done))
        else:
            raise ValueError(f"there is no disk queue {queue_name!r}")

    def drain(self) -> None:
        while True:
            if self._commit_thread.has_submissions:
                # First, because a submission on the other queue may wait for a file that is in use by this one.
                self._commit_thread.wait()
            else:
                with self._condition:
                    while self._running_count and not self._completed:
                        self._condition.wait()
                if not self._completed:
                    return
            self._run_callbacks()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._commit_thread.close()
        self._completed.extend(
            self._commit_thread.take_completed()
        )  # releases files that the other queue may need
        if self._behind_thread.ident is not None:
            self._behind_queue.put(None)
            self._behind_thread.join()
        if self._wakeup is not None:
            self._wakeup.close()
        self._handles.close()
        os.close(self._lock_fd)

    def _run_behind(self) -> None:
        while (item := self._behind_queue.get()) is not None:
            ops, done = item
            started_ns = time.perf_counter_ns()
            error: OSError | None = None
            try:
                self.run(ops)
            except Exception as failed:
                error = to_os_error(failed)
            self.latency["behind"].record(time.perf_counter_ns() - started_ns)
            self._completed.append((done, error))
            with self._condition:
                self._running_count -= 1
                self._condition.notify()
            if self._call_soon_threadsafe is not None:
                self._call_soon_threadsafe(self._run_callbacks)

    def _run_callbacks(self) -> None:
        self._completed.extend(self._commit_thread.take_completed())
        while self._completed:
            done, error = self._completed.popleft()
            try:
                done(error)
            except BaseException:
                if self._completed and self._call_soon_threadsafe is not None:
                    # One broken callback must not block the others.
                    self._call_soon_threadsafe(self._run_callbacks)
                raise

    # Operations

    def _create(self, path: str, size: int) -> None:
        self._handles.evict(path)
        with self._handles.acquired(path, os.O_RDWR | os.O_CREAT | os.O_EXCL) as handle:
            if size:
                try:
                    _reserve(handle.fd, size)
                except OSError:
                    self._unlink(path)  # a file is created completely or not at all
                    raise

    def _write(self, path: str, offset: int, data: Any) -> None:
        # Called twice per commit: without the context manager it takes half the time.
        handle = self._handles.acquire(path)
        try:
            data = compute_data(data)
            if isinstance(data, bytes) and os.pwrite(handle.fd, data, offset) == len(data):
                return
            for part in [data] if not isinstance(data, list) else _split_vectors(data):
                offset += _write_all(handle.fd, part, offset)
        finally:
            self._handles.release_written(handle)

    def _sync(self, path: str) -> None:
        handle = self._handles.acquire(path)
        try:
            handle.sync()
        finally:
            self._handles.release(handle)

    def _syncdir(self, folder: str) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        fd = self._handles.with_retry(lambda: os.open(self.root / folder, flags))
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _mkdir(self, folder: str) -> None:
        os.mkdir(self.root / folder)

    def _link(self, path: str, new: str) -> None:
        os.link(self.root / path, self.root / new)

    def _rename(self, path: str, new: str) -> None:
        if os.path.lexists(self.root / new):
            raise FileExistsError(errno.EEXIST, "the target of a rename must not exist", new)
        self._handles.evict(path)
        os.rename(self.root / path, self.root / new)

    def _unlink(self, path: str) -> None:
        self._handles.evict(path)
        os.unlink(self.root / path)

    def _rmdir(self, folder: str) -> None:
        os.rmdir(self.root / folder)

    def _copy(self, source: str, source_offset: int, target: str, target_offset: int, length: int) -> None:
        with self._handles.acquired(source) as from_file, self._handles.acquired(target) as to_file:
            while length > 0:
                done = _copy_chunk(from_file.fd, source_offset, to_file.fd, target_offset, length)
                if done == 0:
                    raise OSError(errno.EIO, f"{source} ends before the range to copy", source)
                source_offset += done
                target_offset += done
                length -= done
                to_file.unsynced = True


def _start_once(thread: threading.Thread) -> None:
    if thread.ident is None:
        thread.start()


def _split_vectors(parts: Sequence[Any]) -> list[Any]:
    return [parts[i : i + VECTORS_MAX] for i in range(0, len(parts), VECTORS_MAX)]


def _write_all(fd: int, data: Any, offset: int) -> int:
    """Write a buffer, or a list of buffers, completely; return the number of bytes written."""
    buffers = [memoryview(part).cast("B") for part in (data if isinstance(data, list) else [data])]
    total = sum(len(part) for part in buffers)
    done = 0
    while done < total:
        written = os.pwritev(fd, buffers, offset + done)
        done += written
        while buffers and written >= len(buffers[0]):
            written -= len(buffers.pop(0))
        if written:
            buffers[0] = buffers[0][written:]
    return total


def _reserve(fd: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
    else:
        os.ftruncate(fd, size)


def _copy_chunk(fd_in: int, at_in: int, fd_out: int, at_out: int, length: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(fd_in, fd_out, length, at_in, at_out)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
    return _write_all(fd_out, os.pread(fd_in, min(length, 1 << 20), at_in), at_out)


_HANDLERS: dict[str, Callable[..., None]] = {
    name: getattr(FileDisk, f"_{name}")
    for name in ("create", "write", "sync", "syncdir", "mkdir", "link", "rename", "unlink", "rmdir", "copy")
}
