"""The way of a frame to the disk, also where there is no room for it now.

Owns the submission of lane "commit" that is under way. Invariant: a frame is over once, when all its operations
are done or one has failed for good. One that finds no room is kept as it is, and submitted again: nothing counted
yet, and what is written twice are the same bytes in the same places. Must not know what is in a frame.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from headrace.store.disk import Disk, Done, Op


class Commits:
    """`short` is the error of a frame that has found no room, until it is over."""

    def __init__(self, disk: Disk, no_space: Callable[[OSError], None]) -> None:
        self._disk = disk
        self._no_space = no_space
        self._ops: list[Op] = []
        self._done: Done = lambda error: None
        self._busy = False
        self.short: OSError | None = None

    def submit(self, ops: list[Op], done: Done) -> None:
        """Only when the one before is over."""
        self._ops, self._done = ops, done
        self._submit(ops)

    def again(self) -> None:
        """There may be room now for the frame that waits for it."""
        if self.short is not None and not self._busy:
            self._submit([op for op in self._ops if self._is_left(op)])

    def _submit(self, ops: list[Op]) -> None:
        self._busy = True
        self._disk.submit("commit", ops, self._ended)

    def _is_left(self, op: Op) -> bool:
        """Not if it made or moved a file already; all else can be done twice."""
        if op[0] in ("create", "mkdir"):
            return not self._disk.exists(op[1])
        return op[0] != "rename" or self._disk.exists(op[1])

    def _ended(self, error: OSError | None) -> None:
        self._busy = False
        if error is not None and error.errno == errno.ENOSPC:
            self.short = error
            self._no_space(error)
            return
        self.short = None
        self._ops = []
        self._done(error)
