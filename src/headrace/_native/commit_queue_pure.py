"""The commit queue, in pure Python: its thread writes and syncs files.

Owns the submissions from `submit` until `take_completed` returns them, with the buffers that they write. Invariant:
submissions run in order, one at a time; the first step that fails ends its submission; a submission counts as completed
only after its last step has returned. Must not know what the bytes mean, nor which files the descriptors belong to.
The compiled version is `commit_queue`; the same tests run on both. See ADR 66.
"""

from __future__ import annotations

import errno
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition
from typing import Any

from headrace.os_files import sync_data

#: A step: descriptor, offset (negative: sync instead of write), buffers to write.
CommitStep = tuple[int, int, Sequence[Any]]
#: A completed submission: token, duration in ns, failed step or -1, errno, exception of a call.
CommitResult = tuple[Any, int, int, int, BaseException | None]
#: Steps, or a call that may return some.
CommitWork = list[CommitStep] | Callable[[], list[CommitStep] | None]

_VECTORS_MAX = 512


class CommitQueue:
    """Submissions for one thread, which calls `run`.

    After each completion the thread writes 8 bytes to `wakeup_fd`, if it is not negative, and calls `notify`, if it is
    not None.
    """

    def __init__(self, wakeup_fd: int = -1, notify: Callable[[], object] | None = None) -> None:
        self._wakeup_fd = wakeup_fd
        self._notify = notify
        self._condition = Condition()
        self._queue: deque[tuple[CommitWork, Any]] = deque()
        self._results: deque[tuple[CommitResult, object]] = (
            deque()
        )  # with the buffers, which are held until then
        self._pending_count = 0
        self._closed = False

    def __len__(self) -> int:
        """Return the number of submissions that `take_completed` has not returned."""
        return self._pending_count

    def submit(self, steps: list[CommitStep], token: Any) -> None:
        """Queue steps: (fd, offset, list of buffers) writes, (fd, -1, ()) syncs. `token` comes back with the result."""
        self._push(_lock_buffers(steps), token)

    def submit_call(self, call: Callable[[], list[CommitStep] | None], token: Any) -> None:
        """Queue a call; the thread makes it. If it returns steps, these run next."""
        self._push(call, token)

    def _push(self, work: CommitWork, token: Any) -> None:
        with self._condition:
            self._pending_count += 1
            self._queue.append((work, token))
            self._condition.notify_all()

    def run(self) -> None:
        """Run submissions until the queue is closed and empty: the function of the queue's thread."""
        while True:
            with self._condition:
                while not self._queue and not self._closed:
                    self._condition.wait()
                if not self._queue:
                    return
                work, token = self._queue.popleft()
            result = _run_job(work, token)
            with self._condition:
                self._results.append((result, work))
                del work
                self._condition.notify_all()
            self._wake()

    def _wake(self) -> None:
        if self._wakeup_fd >= 0:
            with suppress(BlockingIOError):  # full only if the reader has not seen earlier ones
                os.write(self._wakeup_fd, (1).to_bytes(8, "little"))
        if self._notify is not None:
            self._notify()

    def take_completed(self) -> list[CommitResult]:
        """Return the completed submissions, in order."""
        with self._condition:
            found = [result for result, _ in self._results]
            self._results.clear()
            self._pending_count -= len(found)
        return found

    def wait(self) -> None:
        """Wait until a submission is completed and not taken; return at once if none is queued."""
        with self._condition:
            while self._pending_count and not self._results:
                self._condition.wait()

    def close(self) -> None:
        """Let `run` return once everything submitted has run."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()


def _run_job(work: CommitWork, token: Any) -> CommitResult:
    started_ns = time.perf_counter_ns()
    failed_step, error_number, exception = -1, 0, None
    try:
        steps = _lock_buffers(work() or []) if callable(work) else work
    except BaseException as failed:
        exception = failed
    else:
        failed_step, error_number = _run_steps(steps)
    return token, time.perf_counter_ns() - started_ns, failed_step, error_number, exception


def _lock_buffers(steps: list[CommitStep]) -> list[CommitStep]:
    return [(fd, offset, [memoryview(piece).cast("B") for piece in pieces]) for fd, offset, pieces in steps]


def _run_steps(steps: list[CommitStep]) -> tuple[int, int]:
    for at, (fd, offset, pieces) in enumerate(steps):
        try:
            if offset < 0:
                sync_data(fd)
            else:
                _write_all(fd, list(pieces), offset)
        except OSError as error:
            return at, error.errno or errno.EIO
    return -1, 0


def _write_all(fd: int, pieces: list[memoryview], offset: int) -> None:
    """Write all pieces; a short write is continued."""
    pieces = [piece for piece in pieces if len(piece)]
    while pieces:
        done = os.pwritev(fd, pieces[:_VECTORS_MAX], offset)
        if not done:
            raise OSError(errno.EIO, "the file takes no bytes")  # never loop
        offset += done
        while pieces and done >= len(pieces[0]):
            done -= len(pieces.pop(0))
        if done:
            pieces[0] = pieces[0][done:]
