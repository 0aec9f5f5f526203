"""Measures speed and memory of the store: `python bench/store.py [name ...]`; without names, everything.

Each measurement runs in a separate process on real files, so that they do not affect each other's memory; the best of a
few rounds counts, because other processes disturb them.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from headrace.storage import FileDisk, StoreOptions, StreamLog, open_store

PAYLOAD = bytes(range(128))
MILLION = 1_000_000


class WallClock:
    def now_ns(self) -> int:
        return time.time_ns()


class Bench:
    """A store on real files; this thread is the core's and runs completions when it waits."""

    def __init__(self, root: Path, options: StoreOptions) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.disk = FileDisk(root, self.posted.append)
        started = time.perf_counter()
        self.store = open_store(self.disk, WallClock(), options)
        self.opened_s = time.perf_counter() - started

    def poll(self) -> None:
        while self.posted:
            self.posted.popleft()()

    def wait(self) -> None:
        while self.store.in_flight:
            self.poll()
            time.sleep(0)

    def tick(self) -> None:
        """Wait until the previous frame is durable, then submit this one; it was filled meanwhile."""
        self.wait()
        if self.store.dirty:
            self.store.commit()

    def commit(self) -> float:
        """Commit the open frame and wait; return the seconds it took."""
        started = time.perf_counter()
        self.tick()
        self.wait()
        return time.perf_counter() - started

    def close(self) -> None:
        self.store.close()
        self.disk.close()


@contextmanager
def bench(options: StoreOptions | None = None, root: Path | None = None) -> Iterator[Bench]:
    folder = root or Path(tempfile.mkdtemp(prefix="headrace-bench-", dir=os.environ.get("BENCH_DIR")))
    made = Bench(folder, options or StoreOptions())
    try:
        yield made
    finally:
        made.close()
        if root is None:
            shutil.rmtree(folder)


def best(rounds: int, measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(rounds))


def rss_bytes() -> int:
    """Return the resident memory of this process without mapped files."""
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) * 1024


def fill(log: StreamLog, count: int, subject: bytes, now: int) -> None:
    append = log.append
    for _ in range(count):
        append(subject, b"", PAYLOAD, now)


def append_rate() -> dict[str, float]:
    """Append 128 B messages in ticks of 2,000; a tick is filled while the previous one is written."""
    with bench() as made:
        log = made.store.create("S")
        made.commit()

        def round_() -> float:
            started = time.perf_counter()
            for _ in range(250):
                fill(log, 2_000, b"orders.new", time.time_ns())
                made.tick()
            made.wait()
            return time.perf_counter() - started

        return {"append+commit 128 B, messages/s": 500_000 / best(5, round_)}


def dirty_streams() -> dict[str, float]:
    """Commit ticks of 2,000 messages, all to one stream or two to each of 1,000."""
    with bench() as made:
        logs = [made.store.create(f"S{number}") for number in range(1_000)]
        made.commit()

        def round_(spread: list[StreamLog]) -> float:
            each = 2_000 // len(spread)
            started = time.perf_counter()
            for _ in range(20):
                now = time.time_ns()
                for log in spread:
                    fill(log, each, b"orders.new", now)
                made.tick()
            made.wait()
            return (time.perf_counter() - started) / 20

        one, many = best(5, lambda: round_(logs[:1])), best(5, lambda: round_(logs))
    return {
        "tick of 2,000 messages, one stream, ms": one * 1e3,
        "tick of 2,000 messages, 1,000 streams, ms": many * 1e3,
        "cost of 1,000 dirty streams, relative to one": many / one,
    }


def write_millions(root: Path, count: int, subjects: int) -> None:
    """Write in a process that exits without closing the store, so that opening it is a recovery."""
    made = Bench(root, StoreOptions())
    log = made.store.create("S")
    names = [b"devices.%07d.state" % number for number in range(subjects)]
    for start in range(0, count, 5_000):
        now = time.time_ns()
        for number in range(start, start + 5_000):
            log.append(names[number % subjects], b"", PAYLOAD, now)
        made.tick()
    made.wait()
    os._exit(0)


def prepare(folder: Path, count: int, subjects: int) -> Path:
    root = folder / f"{count}-{subjects}"
    child = os.fork()
    if child == 0:
        write_millions(root, count, subjects)
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"the writer failed: {status}")
    return root


def reopened(root: Path) -> tuple[float, int, float]:
    """Return the seconds of a recovery, the resident bytes without mapped files, the seconds of a clean start after it."""
    before = rss_bytes()
    with bench(root=root) as made:
        log = made.store.logs["S"]
        if log.messages < MILLION or log.get(log.last_seq) is None:
            raise SystemExit(f"wrong number of messages after recovery: {log.messages}")
        recovered_s = made.opened_s
        resident = rss_bytes() - before
    with bench(root=root) as made:
        return recovered_s, resident, made.opened_s


def recovery() -> dict[str, float]:
    """Recover 10 million messages of 128 B on 1,000 subjects."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=os.environ.get("BENCH_DIR")) as folder:
        seconds, resident, clean_s = reopened(prepare(Path(folder), 10 * MILLION, 1_000))
    return {
        "recovery of 10 M messages after a kill, s": seconds,
        "opening 10 M messages after a clean shutdown, s": clean_s,
        "resident bytes per message at 10 M": resident / (10 * MILLION),
    }


def subjects() -> dict[str, float]:
    """Compare the memory of a million subjects with that of one, for two million messages."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=os.environ.get("BENCH_DIR")) as folder:
        roots = [prepare(Path(folder), 2 * MILLION, count) for count in (1, MILLION)]
        sizes = []
        for root in roots:
            done = subprocess.run(
                [sys.executable, __file__, "--resident", str(root)],
                capture_output=True,
                text=True,
                check=True,
            )
            sizes.append(int(done.stdout))
    return {"resident bytes per subject at 1 M": (sizes[1] - sizes[0]) / MILLION}


class Commits(NamedTuple):
    """For each commit: seconds until durable, and seconds of work on the core's thread since the previous one."""

    waits: list[float]
    works: list[float]


def p99_ms(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98] * 1e3


def commits(made: Bench, log: StreamLog, count: int, meanwhile: Callable[[], None]) -> Commits:
    """Commit 50 messages every two milliseconds, and call `meanwhile` before each."""
    done = Commits([], [])
    for _ in range(count):
        meanwhile()
        worked = time.thread_time()
        fill(log, 50, b"orders.new", time.time_ns())
        done.waits.append(made.commit())
        until = time.perf_counter() + 0.002
        while time.perf_counter() < until:
            made.poll()
            time.sleep(0.0001)
        done.works.append(time.thread_time() - worked)
    return done


def compaction() -> dict[str, float]:
    """Measure the 99th percentile of a commit, without and during compaction; the best of eight rounds."""
    options = StoreOptions(segment_bytes=4 << 20, checkpoint_bytes=32 << 20)
    with bench(options) as made:
        other, log = made.store.create("SPARSE"), made.store.create("S")
        for _ in range(1_000):
            fill(other, 2_000, b"orders.old", time.time_ns())
            made.tick()
        made.wait()
        seqs = iter([seq for seq in range(1, other.last_seq + 1) if seq % 5])

        def thin() -> None:
            other.remove_many([seq for _, seq in zip(range(600), seqs, strict=False)])

        quiet, busy = [], []
        for _ in range(8):
            quiet.append(commits(made, log, 300, lambda: None))
            busy.append(commits(made, log, 300, thin))
    waits = [min(p99_ms(each.waits) for each in rounds) for rounds in (quiet, busy)]
    works = [min(p99_ms(each.works) for each in rounds) for rounds in (quiet, busy)]
    return {
        "commit p99 without compaction, ms": waits[0],
        "commit p99 while compacting, ms": waits[1],
        "compaction adds to p99, ms": waits[1] - waits[0],
        "compaction adds to the core's work per commit, p99, ms": works[1] - works[0],
    }


MEASUREMENTS: dict[str, Callable[[], dict[str, float]]] = {
    "append": append_rate,
    "streams": dirty_streams,
    "recovery": recovery,
    "subjects": subjects,
    "compaction": compaction,
}


def main(names: list[str]) -> None:
    if len(names) == 2 and names[0] == "--measure":
        print(json.dumps(MEASUREMENTS[names[1]]()))
        return
    if len(names) == 2 and names[0] == "--resident":
        print(reopened(Path(names[1]))[1])
        return
    for name in names or MEASUREMENTS:
        done = subprocess.run([sys.executable, __file__, "--measure", name], capture_output=True, text=True)
        if done.returncode:
            print(f"{name}: failed\n{done.stderr}")
            continue
        for what, value in json.loads(done.stdout.splitlines()[-1]).items():
            print(f"{what:58} {value:>14,.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
