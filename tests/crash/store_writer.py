"""A process that writes to a store on real files and prints, after each commit, what was acknowledged.

Lines on standard output: `stream last_seq first_live`. The parent kills it at a random instant.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from random import Random
from time import time_ns

from headrace.storage import FileDisk, Store, open_store

from .store_sizes import SMALL


class WallClock:
    def now_ns(self) -> int:
        return time_ns()


def payload_of(name: str, seq: int) -> bytes:
    """Return the payload of message `seq` of a stream, so that the parent can check it."""
    rng = Random(f"{name}/{seq}")
    size = 40_000 if seq % 97 == 0 else rng.randrange(400)
    return rng.randbytes(size)


def main(root: str) -> None:
    posted: deque[Callable[[], None]] = deque()
    disk = FileDisk(root, posted.append)
    store = open_store(disk, WallClock(), SMALL)
    for name in ("A", "B"):
        if name not in store.logs:
            store.create(name)
    write_ticks(store, posted)


class CommitPrinter:
    """Prints the lines of a frame once it is durable."""

    def __init__(self) -> None:
        self.sealed: dict[int, list[str]] = {}

    def on_frame_durable(self, frame: int) -> None:
        for number in [number for number in self.sealed if number <= frame]:
            os.write(1, "".join(self.sealed.pop(number)).encode())

    def on_full(self) -> None:
        """Do nothing: writing continues when there is space."""


def write_ticks(store: Store, posted: deque[Callable[[], None]]) -> None:
    """Run ticks without end: appends, trims at the front, and a line for each stream once a frame is durable."""
    rng = Random(os.getpid())
    printer = CommitPrinter()
    store.set_observer(printer)
    while True:
        for name, log in sorted(store.logs.items()):
            for _ in range(rng.randrange(20)):
                log.append(b"s.%d" % rng.randrange(9), b"", payload_of(name, log.last_seq + 1), time_ns())
            if log.messages > 400:
                log.remove_below(log.last_seq - 300)
        while store.in_flight:
            if store.poisoned is not None:
                raise store.poisoned
            while posted:
                posted.popleft()()
        lines = [f"{name} {log.last_seq} {log.first_seq}\n" for name, log in sorted(store.logs.items())]
        if store.dirty:
            printer.sealed[store.frame_number] = lines
            store.commit()


if __name__ == "__main__":
    main(sys.argv[1])
