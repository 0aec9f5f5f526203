"""A writer at full speed whose pins another process reads: `python -m crash.snapshot_load [seconds]`.

The writer computes a running digest of the live messages, so that a pin costs it nothing; several pins exist at any
time, so that files are compacted and recycled while they are read.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from headrace.storage import FileDisk, open_store
from headrace.storage.snapshot.leases import SnapshotPin, create_pin, release_pin, sweep_expired

from .snapshot_reader import STREAM, digest, payload_of, subject_of
from .store_sizes import SMALL
from .store_writer import WallClock

PINS_OUT = 4
MESSAGES_MAX = 12_000
PENDING_BYTES_MAX = 1 << 20
TESTS = Path(__file__).parent.parent


@dataclass
class Tally:
    """Counts of the run, and the expected content."""

    live: list[int] = field(default_factory=list)
    digest: int = 0
    appended: int = 0
    removed: int = 0
    checked: int = 0
    checkpoints: int = 0
    merging: int = 0  # ticks during which segments were being merged
    wrong: list[str] = field(default_factory=list)


class Load:
    """One store, one stream, one reading process."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = Random(seed)
        self.posted: deque[Callable[[], None]] = deque()
        self.disk = FileDisk(root, self.posted.append)
        self.store = open_store(self.disk, WallClock(), SMALL)
        self.log = self.store.create(STREAM)
        self.tally = Tally()
        self.out: dict[str, SnapshotPin] = {}
        self.waiting: list[tuple[SnapshotPin, str]] = []  # pins whose frame is not durable yet
        self.reader = subprocess.Popen(
            [sys.executable, "-m", "crash.snapshot_reader", str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )
        assert self.reader.stdout is not None
        os.set_blocking(self.reader.stdout.fileno(), False)
        self.heard = b""

    def run(self, seconds: float) -> Tally:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not self.tally.wrong:
            self.change()
            self.commit()
            if len(self.out) < PINS_OUT and self.rng.random() < 0.3:
                self.take()
            self.tell()
            self.listen()
        while self.out and not self.tally.wrong and self.reader.poll() is None:
            self.settle()
            self.tell()
            self.listen()
        return self.tally

    def change(self) -> None:
        """Append and remove messages for one tick."""
        rng, tally = self.rng, self.tally
        for _ in range(rng.randrange(400)):
            seq = self.log.last_seq + 1
            self.log.append(subject_of(seq), b"", payload_of(seq), time.time_ns())
            tally.live.append(seq)
            tally.digest += digest(seq)
            tally.appended += 1
        self.remove(rng.randrange(280))
        if len(tally.live) > MESSAGES_MAX:
            self.trim(len(tally.live) - MESSAGES_MAX // 2)

    def remove(self, count: int) -> None:
        """Remove messages at random positions, so that segments become sparse and are compacted."""
        live = self.tally.live
        for _ in range(min(count, len(live) // 2)):
            seq = live.pop(self.rng.randrange(len(live)))
            assert self.log.remove(seq)
            self.tally.digest -= digest(seq)
            self.tally.removed += 1

    def trim(self, count: int) -> None:
        gone, self.tally.live = self.tally.live[:count], self.tally.live[count:]
        self.log.remove_below(gone[-1] + 1)
        self.tally.digest -= sum(map(digest, gone))
        self.tally.removed += len(gone)

    def commit(self) -> None:
        self.poll()
        self.tally.merging += self.store.compactor.busy
        if self.store.dirty and not self.store.in_flight:
            self.store.commit()
        if self.store.pending_bytes > PENDING_BYTES_MAX:
            self.settle()
        if self.rng.random() < 0.02:
            self.store.checkpoint()
            self.tally.checkpoints += 1

    def settle(self) -> None:
        """Wait until everything is durable and flushed: the backpressure that a broker applies."""
        self.disk.drain()
        while self.store.dirty and self.store.poisoned is None:
            self.store.commit()
            self.disk.drain()

    def poll(self) -> None:
        while self.posted:
            self.posted.popleft()()

    def take(self) -> None:
        """Pin what is accepted now; the pin may be announced once that is durable."""
        made = create_pin(self.store, self.log, lease_s=3600, now_ns=time.time_ns())
        truth = f"{made.id} {self.log.last_seq} {len(self.tally.live)} {self.tally.digest % 2**64}\n"
        self.out[made.id] = made
        self.waiting.append((made, truth))

    def tell(self) -> None:
        assert self.reader.stdin is not None
        ready = [entry for entry in self.waiting if entry[0].frame <= self.store.committed_frame]
        for made, truth in ready:
            self.waiting.remove((made, truth))
            self.reader.stdin.write(truth.encode())
        self.reader.stdin.flush()

    def listen(self) -> None:
        assert self.reader.stdout is not None
        self.heard += self.reader.stdout.read() or b""
        *lines, self.heard = self.heard.split(b"\n")
        for line in lines:
            word, name = line.decode().split(" ", 1)
            if word != "ok":
                self.tally.wrong.append(line.decode())
                continue
            release_pin(self.store, self.out.pop(name))
            self.tally.checked += 1

    def close(self) -> None:
        assert self.reader.stdin is not None
        assert self.reader.stdout is not None
        self.reader.stdin.close()
        code = self.reader.wait(timeout=60)
        self.reader.stdout.close()
        if code:
            self.tally.wrong.append(f"the reader ended with {code}")
        for made in self.out.values():
            release_pin(self.store, made)
        sweep_expired(self.store, time.time_ns())
        self.store.close()
        self.disk.close()


def load(root: Path, seconds: float, seed: int) -> Tally:
    """Write and read for this long; the tally lists what was wrong."""
    running = Load(root, seed)
    try:
        return running.run(seconds)
    finally:
        running.close()


def main(seconds: float) -> None:
    seed = time.time_ns() & 0xFFFFFFFF
    with tempfile.TemporaryDirectory() as root:
        tally = load(Path(root), seconds, seed)
    print(
        f"seed {seed}: {tally.appended} appended, {tally.removed} removed, {tally.checkpoints} checkpoints "
        f"asked for, merging in {tally.merging} ticks, {tally.checked} pins each read twice; "
        f"wrong: {tally.wrong or 'nothing'}"
    )
    sys.exit(bool(tally.wrong))


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)
