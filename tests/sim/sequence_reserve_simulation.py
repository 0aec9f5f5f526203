"""Simulated servers with `ack: local` that show messages before they are archived, and are lost at any moment.

At every step a promotion of the newest group would go on above everything that was shown. Replay a seed:
`python -m tests.sim.sequence_reserve_simulation SEED [SEED_END]`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from random import Random
from typing import Any

from headrace.archive import sequence_reserve
from headrace.archive.commit_gate import get_durable_frame
from headrace.archive.group_log import GroupLog
from headrace.archive.group_writer import EarlierRuns, GroupWriter, WriterSettings
from headrace.archive.journal_tail import StorePosition
from headrace.archive.sequence_reserve import SequenceLimit, find_highest
from headrace.backup.pinned_stores import SourceStore
from headrace.backup.target import BackupTarget
from headrace.claims.stores import ObjectStoreError
from headrace.errors import BackupError
from headrace.sim import SimDisk
from headrace.sim.checkers.store_invariants import Violation
from headrace.storage import Store, open_store
from support.small_store import SMALL_JOURNAL, Ticking

from .module_settings import module_settings
from .sim_objects import ProcessKilled, SimObjects

SERVER, STEPS = 9, 60
#: So few that frames have to wait.
RESERVE = 8


class ReserveSimulation:
    """One server, as long as its disk lives; its processes come and go."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(f"reserve {seed}")
        self.objects = SimObjects(
            Random(f"objects {seed}"), rng.choice((0.0, 0.05)), rng.choice((0.0, 0.01, 0.05))
        )
        asyncio.run(self.objects.ensure_bucket())
        self.target = BackupTarget(self.objects, f"{SERVER:016x}", "memory")
        self.clock = Ticking()
        self.disk = SimDisk()
        self.writers: set[str] = set()
        self.shown: dict[int, int] = {}
        self.waits = self.restarts = 0
        self.start()

    # The source of the writer

    async def read_positions(self) -> list[StorePosition]:
        store, highest = self.store, self.limit.highest if self.limit is not None else None
        files = store.journal.list_unarchived()
        return [StorePosition(store.store_id, "$G", get_durable_frame(store), files, highest)]

    def read(self, store_id: int, path: str, offset: int, length: int) -> bytes:
        return self.disk.read(path, offset, length)

    async def set_archived(self, frames: dict[int, int]) -> None:
        self.store.journal.set_archived(frames[self.store.store_id])

    async def set_reserved(self, sequences: dict[int, int]) -> None:
        assert self.limit is not None
        self.limit.raise_to(sequences[self.store.store_id])
        self.disk.drain()

    async def pin(self) -> list[SourceStore]:
        raise NotImplementedError

    async def unpin(self) -> None:
        raise NotImplementedError

    # Processes

    def start(self) -> None:
        """Start a process: it shows nothing before it has taken the archive over."""
        self.limit: SequenceLimit | None = None
        self.store: Store = open_store(self.disk, self.clock, SMALL_JOURNAL)
        self.store.journal.set_archived(get_durable_frame(self.store))
        while True:
            name = f"writer-{len(self.writers)}"
            self.writers.add(name)
            self.writer = GroupWriter(
                self.target,
                self,
                WriterSettings(SERVER, name),
                self.clock.now_ns,
                lambda error: None,
                _no_sleep,
            )
            store_id, highest = self.store.store_id, find_highest(self.store)
            earlier = EarlierRuns(highest={store_id: highest})
            try:
                _run(self.writer.take_over(self.writers, {store_id: self.store.report().last_frame}, earlier))
                break
            except (ProcessKilled, ObjectStoreError, BackupError):
                continue  # the next process tries again
        self.limit = SequenceLimit(self.store, self.writer.reserve.confirmed[store_id])
        self.check()

    def kill(self) -> None:
        self.restarts += 1
        self.check()
        self.disk = self.disk.kill()
        self.start()

    def check(self) -> None:
        """Compare what clients may have seen with what a promotion would skip now."""
        self.shown = {each.ident: each.committed_seq for each in self.store.iter_file_logs()}
        faults, kills = self.objects.faults, self.objects.kills
        self.objects.faults = self.objects.kills = 0.0
        log = GroupLog(self.target, SERVER)
        group = _run(log.read(_run(log.find_last())))
        self.objects.faults, self.objects.kills = faults, kills
        reserved = group.header.reserved[f"{self.store.store_id:016x}"]
        if max(self.shown.values(), default=0) > reserved:
            raise Violation(f"shown: {self.shown}, but group {group.header.number} reserves {reserved}")

    # Steps

    def run(self) -> None:
        for _ in range(STEPS):
            step = self.rng.choice((self.append, self.append, self.append, self.send, self.jump, self.remove))
            if self.rng.random() < 0.05:
                step = self.kill
            try:
                step()
            except ProcessKilled:
                self.kill()
            except (ObjectStoreError, BackupError):
                pass
            self.check()

    def append(self) -> None:
        name = f"S{self.rng.randrange(3)}"
        log = self.store.logs.get(name) or self.store.create(name)
        for _ in range(self.rng.randrange(1, RESERVE)):
            log.append(b"s", b"", b"x", 1)
        self.commit()

    def jump(self) -> None:
        """Purge up to a sequence that no message has yet."""
        if self.store.logs and self.rng.random() < 0.2:
            log = self.rng.choice(list(self.store.logs.values()))
            log.remove_below(log.last_seq + self.rng.randrange(100))
            self.commit()

    def remove(self) -> None:
        if self.store.logs and self.rng.random() < 0.2:
            self.store.delete(self.rng.choice(list(self.store.logs.values())))
            self.commit()

    def commit(self) -> None:
        """Commit what is open, if no frame waits for the archive."""
        if not self.store.in_flight and self.store.dirty:
            self.store.commit()
            self.disk.drain()
        assert self.limit is not None
        self.waits += self.limit.is_waiting

    def send(self) -> None:
        _run(self.writer.send_group())
        if not self.store.in_flight:
            self.commit()


async def _no_sleep(delay_s: float) -> None:
    return None


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def run(seed: int) -> ReserveSimulation:
    """Run one seed with a small reserve."""
    with module_settings((sequence_reserve, "RESERVE_MIN", RESERVE), (sequence_reserve, "_DAY_NS", 0)):
        try:
            simulation = ReserveSimulation(seed)
            simulation.run()
        except Exception as error:
            text = f"{type(error).__name__}: {error}\nreplay: python -m tests.sim.sequence_reserve_simulation {seed}"
            raise Violation(text) from error
    return simulation


if __name__ == "__main__":
    first = int(sys.argv[1])
    waits = restarts = 0
    for number in range(first, int(sys.argv[2]) if len(sys.argv) > 2 else first + 1):
        finished = run(number)
        waits, restarts = waits + finished.waits, restarts + finished.restarts
    print(f"{waits} frames waited, {restarts} restarts")
