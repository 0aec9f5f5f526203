"""How fast and how small the store is: `python bench/store.py [name ...]`; without names all are measured.

Each measurement runs in a process of its own on real files, so that memory is measured clean; the best of a
few rounds counts, because the machine has other things to do.
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

from headrace.storage import FileDisk, Store, StoreOptions, StreamLog

PAYLOAD = bytes(range(128))
MILLION = 1_000_000


class WallClock:
    def now_ns(self) -> int:
        return time.time_ns()


class Bench:
    """A store on real files, and a core thread that runs completions when it has time."""

    def __init__(self, root: Path, options: StoreOptions) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.disk = FileDisk(root, self.posted.append)
        started = time.perf_counter()
        self.store = Store.open(self.disk, WallClock(), options)
        self.opened_s = time.perf_counter() - started

    def poll(self) -> None:
        while self.posted:
            self.posted.popleft()()

    def wait(self) -> None:
        while self.store.in_flight:
            self.poll()
            time.sleep(0)

    def tick(self) -> None:
        """The frame before must be durable before this one leaves; meanwhile the next was filled."""
        self.wait()
        if self.store.dirty:
            self.store.commit()

    def commit(self) -> float:
        """Seals now and waits; returns the seconds it took."""
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
    """What this process holds of memory of its own, without mapped files."""
    status = Path("/proc/self/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) * 1024


def fill(log: StreamLog, count: int, subject: bytes, now: int) -> None:
    append = log.append
    for _ in range(count):
        append(subject, b"", PAYLOAD, now)


def append_rate() -> dict[str, float]:
    """128 B messages in ticks of 2,000, the next tick filled while the last is being written."""
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
    """Ticks of 2,000 messages, all to one stream or two to each of 1,000."""
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
        "1,000 dirty streams cost, times one": many / one,
    }


def write_millions(root: Path, count: int, subjects: int) -> None:
    """In a process that ends without a word, so that opening is a recovery and not a clean start."""
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
    """Seconds to recover, bytes resident without mapped files, seconds of a clean start after it."""
    before = rss_bytes()
    with bench(root=root) as made:
        log = made.store.logs["S"]
        if log.messages < MILLION or log.get(log.last_seq) is None:
            raise SystemExit(f"{log.messages} messages were found")
        recovered_s = made.opened_s
        resident = rss_bytes() - before
    with bench(root=root) as made:
        return recovered_s, resident, made.opened_s


def recovery() -> dict[str, float]:
    """10 million messages of 128 B on 1,000 subjects."""
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=os.environ.get("BENCH_DIR")) as folder:
        seconds, resident, clean_s = reopened(prepare(Path(folder), 10 * MILLION, 1_000))
    return {
        "recovery of 10 M messages after a kill, s": seconds,
        "opening 10 M messages after a clean end, s": clean_s,
        "resident bytes a message at 10 M": resident / (10 * MILLION),
    }


def subjects() -> dict[str, float]:
    """A million subjects against one, at two million messages."""
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
    return {"resident bytes a subject at 1 M": (sizes[1] - sizes[0]) / MILLION}


class Commits(NamedTuple):
    """Of each commit: seconds until durable, and seconds the core's own thread worked since the last one."""

    waits: list[float]
    works: list[float]


def p99_ms(times: list[float]) -> float:
    return statistics.quantiles(times, n=100)[98] * 1e3


def commits(made: Bench, log: StreamLog, count: int, meanwhile: Callable[[], None]) -> Commits:
    """Commits of 50 messages, one every two milliseconds, and something else to do meanwhile."""
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
    """The 99th percentile of a commit, at rest and while segments are merged; the best of eight rounds."""
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
        "commit p99 at rest, ms": waits[0],
        "commit p99 while compacting, ms": waits[1],
        "compaction adds to p99, ms": waits[1] - waits[0],
        "compaction adds to the core's work a commit, p99, ms": works[1] - works[0],
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
