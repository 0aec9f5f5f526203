"""Submits frames to the disk, and retries a frame for which the disk has no space.

Owns the current submission on the "commit" queue. Invariant: a frame finishes once, when all its operations are done or
one of them has failed for good. A frame that runs out of space stays pending and continues with the operation that
failed: nothing that was synced is written again, because a crash could then leave it half written. With a gate, a frame
that is synced finishes when the gate lets it pass. Must not know what is in a frame.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from headrace.storage.io.disk import Disk, DoneCallback, Op, OutOfSpace


class CommitGate(Protocol):
    """What a frame has to pass between its sync and its commit. `holds_all`: every frame waits for something else."""

    @property
    def holds_all(self) -> bool: ...

    @property
    def is_waiting(self) -> bool:
        """Whether a frame waits."""

    def on_synced(self, release: Callable[[], None]) -> None:
        """Handle a frame that is synced: call `release` now or later, or never if it must not be committed."""


class FrameSubmission:
    """`no_space_error` is the error of a frame that found no space, until the frame is finished."""

    def __init__(self, disk: Disk, on_no_space: Callable[[OSError], None]) -> None:
        self._disk = disk
        self._on_no_space = on_no_space
        self._ops: list[Op] = []
        self._done: DoneCallback | None = None
        self._busy = False
        self.no_space_error: OSError | None = None
        self.gate: CommitGate | None = None

    def submit(self, ops: list[Op], done: DoneCallback) -> None:
        """Submit a frame; only after the previous one has finished."""
        self._ops, self._done = ops, done
        self._submit()

    def retry(self) -> None:
        """Retry the frame that waits for space, if there is one."""
        if self.no_space_error is not None and not self._busy:
            self._submit()

    def _submit(self) -> None:
        self._busy = True
        self._disk.submit("commit", self._ops, self._on_done)

    def _on_done(self, error: OSError | None) -> None:
        self._busy = False
        if isinstance(error, OutOfSpace):
            self._ops = self._ops[next(at for at, op in enumerate(self._ops) if op is error.op) :]
            self.no_space_error = error
            self._on_no_space(error)
            return
        self.no_space_error = None
        self._ops = []
        assert self._done is not None
        if self.gate is not None and error is None:
            self.gate.on_synced(partial(self._done, None))
            return
        self._done(error)
