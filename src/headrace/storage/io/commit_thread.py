"""The disk's "commit" queue: its thread, and the files that a submission uses.

Owns the thread and, while a submission runs, the handles of its files. Invariant: submissions run in order, those that
only write to open files and sync some of them without the GIL, all others by `run_ops`; while a file is synced here
nobody else syncs it, because the operating system reports a failed write-back only once. All methods except `run_ops`
belong to the core's thread. Must not know what the bytes mean. See ADR 66.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headrace._native import CommitQueue
from headrace.storage.io.file_handles import FileHandle, FileHandleCache
from headrace.storage.io.latency import LatencyHistogram

Op = tuple[Any, ...]
#: Descriptor, offset (negative: sync instead of write), data in pieces.
CommitStep = tuple[int, int, Sequence[Any]]
#: Descriptor, offset (negative: sync instead of write), data in pieces or the function that returns it.
UnencodedStep = tuple[int, int, Any]
DoneCallback = Callable[[OSError | None], None]


class _CommitSubmission:
    """Operations with the files that they use while they run without the GIL, or that run by `run_ops`."""

    __slots__ = ("done", "handles", "is_call", "is_encoded", "locked", "ops", "unsynced")

    def __init__(self, ops: Sequence[Op], done: DoneCallback, *, is_call: bool = False) -> None:
        self.ops = ops
        self.done = done
        self.is_call = is_call  # it runs by `run_ops`
        self.handles: dict[str, FileHandle] = {}
        self.locked: list[str] = []  # the paths in `handles` whose `sync_lock` is held
        self.unsynced: set[str] = set()  # the paths whose last operation is a write
        self.is_encoded = True  # no data must be encoded on the thread


class CommitThread:
    """Runs submissions in order; `on_completed` is called on the thread after each one, if no `wakeup_fd` is given.

    `_pending_calls` counts submissions that run by `run_ops`: they may rename or remove files.
    """

    def __init__(
        self,
        handles: FileHandleCache,
        run_ops: Callable[[Sequence[Op]], None],
        translate_error: Callable[[Op, OSError], OSError],
        latency: LatencyHistogram,
        on_completed: Callable[[], object] | None,
        wakeup_fd: int = -1,
    ) -> None:
        self._handles = handles
        self._run_ops = run_ops
        self._translate_error = translate_error
        self._latency = latency
        self._pending_calls = 0
        self._is_started = False
        self._queue = CommitQueue(wakeup_fd, on_completed if wakeup_fd < 0 else None)
        self.thread = threading.Thread(target=self._queue.run, name="headrace-commit", daemon=True)

    @property
    def has_submissions(self) -> bool:
        """Whether there are submissions whose completion was not taken."""
        return len(self._queue) > 0

    def submit(self, ops: Sequence[Op], done: DoneCallback) -> None:
        """Queue operations after those already in the queue; the first ones start the thread."""
        if not self._is_started:
            self.thread.start()
            self._is_started = True
        submission = _CommitSubmission(ops, done)
        steps = self._make_steps(submission) if not self._pending_calls else None
        if steps is None or not self._submit_steps(steps, submission):
            self._release(submission)
            self._pending_calls += 1
            self._queue.submit_call(partial(self._run_ops, ops), _CommitSubmission(ops, done, is_call=True))

    def _submit_steps(self, steps: list[UnencodedStep], submission: _CommitSubmission) -> bool:
        """Queue steps; return False if their data is not what it should be: `run_ops` reports the error then."""
        for path in submission.locked:
            # Before the sync, like `FileHandle.sync`: a write that another thread ends meanwhile sets it again.
            submission.handles[path].unsynced = False
        if not submission.is_encoded:
            self._queue.submit_call(partial(_encode_steps, steps), submission)
            return True
        try:
            self._queue.submit(steps, submission)
        except (TypeError, BufferError):
            for path in submission.locked:
                submission.handles[path].unsynced = True
            return False
        return True

    def _make_steps(self, submission: _CommitSubmission) -> list[UnencodedStep] | None:
        """Return the steps of writes and syncs; None for other operations, or if a file is not open."""
        steps: list[UnencodedStep] = []
        handles, unsynced = submission.handles, submission.unsynced
        for op in submission.ops:
            kind, path = op[0], op[1]
            if kind not in ("write", "sync"):
                return None
            handle = handles.get(path)
            if handle is None:
                handle = self._handles.acquire_open(path)
                if handle is None:
                    return None
                handles[path] = handle
            if kind == "write":
                unsynced.add(path)
                steps.append((handle.fd, op[2], self._get_pieces(submission, op[3])))
            elif self._lock_sync(submission, path, handle):
                unsynced.discard(path)
                steps.append((handle.fd, -1, ()))
            else:
                return None
        return steps

    def _get_pieces(self, submission: _CommitSubmission, data: Any) -> Any:
        """Return data in pieces, or the function that encodes it: large data is encoded on the thread that writes it."""
        if callable(data):
            submission.is_encoded = False
            return data
        return data if isinstance(data, (list, tuple)) else (data,)

    def _lock_sync(self, submission: _CommitSubmission, path: str, handle: FileHandle) -> bool:
        """Keep others from syncing a file; return False if one does now, or if a sync has failed before."""
        if path in submission.locked:
            return True
        if not handle.sync_lock.acquire(blocking=False):
            return False
        submission.locked.append(path)
        return handle.sync_error is None

    def take_completed(self) -> list[tuple[DoneCallback, OSError | None]]:
        """Release the files of completed submissions; return their callbacks and errors, in order."""
        found = []
        for submission, duration_ns, failed_step, error_number, exception in self._queue.take_completed():
            self._latency.record(duration_ns)
            error = to_os_error(exception) if exception is not None else None
            if failed_step >= 0:
                error = self._on_failed_step(submission, failed_step, error_number)
            for path in submission.unsynced if error is None else submission.handles:
                submission.handles[path].unsynced = True
            self._release(submission)
            self._pending_calls -= submission.is_call
            found.append((submission.done, error))
        return found

    def _on_failed_step(self, submission: _CommitSubmission, failed_step: int, error_number: int) -> OSError:
        op = submission.ops[failed_step]
        error = OSError(error_number, os.strerror(error_number))
        if op[0] == "sync":
            submission.handles[op[1]].sync_error = error
        return self._translate_error(op, error)

    def _release(self, submission: _CommitSubmission) -> None:
        handles = submission.handles
        for path in submission.locked:
            handles[path].sync_lock.release()
        if handles:
            self._handles.release_all(handles.values())

    def wait(self) -> None:
        """Wait until a submission is completed, if there is one."""
        self._queue.wait()

    def close(self) -> None:
        """Run everything submitted, then end the thread."""
        self._queue.close()
        if self.thread.ident is not None:
            self.thread.join()


def _encode_steps(steps: list[UnencodedStep]) -> list[CommitStep]:
    """Return the steps with data instead of functions."""
    encoded: list[CommitStep] = []
    for fd, offset, data in steps:
        found = data() if callable(data) else data
        encoded.append((fd, offset, found if isinstance(found, (list, tuple)) else (found,)))
    return encoded


def to_os_error(exception: BaseException) -> OSError:
    """Return an error of a submission; one that is a bug becomes an I/O error, so that the server does not hang."""
    if isinstance(exception, OSError):
        return exception
    return OSError(errno.EIO, f"{type(exception).__name__}: {exception}")
