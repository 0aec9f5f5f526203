"""Faults of the simulated disk. Owns which call fails, how, and for how long.

Invariant: the same faults on the same sequence of calls fail the same calls. Must not know files.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass

#: Kinds of call that a fault can affect: the operations of a submission, and the read methods.
CHANGE_CALLS = ("create", "write", "sync", "syncdir", "mkdir", "link", "rename", "unlink", "rmdir", "copy")
READ_CALLS = ("list", "exists", "size", "read", "map")


@dataclass(frozen=True, slots=True)
class Fault:
    """The `nth` matching call fails with `error`; if `sticky`, every later one too.

    kinds: which calls count and can fail; empty means all of `CHANGE_CALLS`.
    path: only calls whose path has this prefix.
    short: a failing write stores part of its data first.
    lost: what a failing sync does to pending writes. "no": they stay pending; "cached": they never reach the disk, but
    the page cache shows them until the next boot; "gone": they are no longer readable either.
    """

    error: int = errno.EIO
    nth: int = 1
    kinds: tuple[str, ...] = ()
    path: str = ""
    sticky: bool = False
    short: bool = False
    lost: str = "no"

    def matches(self, kind: str, path: str) -> bool:
        return kind in (self.kinds or CHANGE_CALLS) and path.startswith(self.path)

    def exception(self, path: str) -> OSError:
        return OSError(self.error, os.strerror(self.error), path)


class FaultInjector:
    """The active faults, each with the number of calls it has counted."""

    def __init__(self) -> None:
        self._call_counts: list[tuple[Fault, list[int]]] = []
        #: Number of calls failed on purpose.
        self.injected_count = 0

    def add(self, fault: Fault) -> None:
        self._call_counts.append((fault, [0]))

    def get_call_count(self, fault: Fault) -> int:
        """Return how many matching calls a fault has counted."""
        return next(count[0] for known, count in self._call_counts if known is fault)

    def clear(self) -> None:
        self._call_counts = []

    def on_call(self, kind: str, path: str) -> Fault | None:
        """Count a call and return the fault that applies to it."""
        found = None
        for fault, count in self._call_counts:
            if fault.matches(kind, path):
                count[0] += 1
                if count[0] == fault.nth or (fault.sticky and count[0] > fault.nth):
                    found = found or fault
        if found is not None:
            self.injected_count += 1
        return found
