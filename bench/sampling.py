"""Measures a pair of servers for `bench/ab.py`: both run one workload in slices, and the CPU time that each
server used is read from its process clock.

The clock (`clock_gettime` of another process) counts all threads in nanoseconds. User and system time are not
separated: Linux does that by sampling at its tick, which is too coarse for slices this short.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from acks import acks
from checkouts import Checkout
from load import CHUNK, METER, Section
from perf import COMMANDS, Server
from workloads import (
    WORKLOADS,
    Workload,
    catch_up,
    create_streams,
    deliver,
    get_batches,
    publish,
    publish_to_streams,
)

#: Chunks of 16 KiB messages that a new server stores first, so that its journal files exist: reusing them costs far
#: less than creating them.
WARM_UP_CHUNKS = 12
#: A server is idle when it used less than this in an interval; work before that counts for its slice.
IDLE_S, IDLE_INTERVAL_S, IDLE_TIMEOUT_S = 0.0002, 0.005, 0.5


@dataclass(frozen=True)
class Slices:
    """How a workload is divided. A slice of `scale` lasts 0.1 to 0.3 s on a quiet machine; each server runs `each`
    slices in a pair, after one that does not count. `alone`: on servers that run nothing else.
    """

    run: Callable[[Server, float], float]
    title: str
    scale: float = 1.0
    each: int = 4
    alone: bool = False
    prepare: Callable[[Server, float], object] = lambda server, scale: None


@dataclass
class Sample:
    """The measurements of one server in its slices of a pair."""

    cpu_s: float = 0.0
    seconds: float = 0.0
    operations: int = 0
    rate: float = 0.0
    slices_us: list[float] = field(default_factory=list)

    def add(self, section: Section, rate: float, slices: int) -> None:
        self.cpu_s += section.cpu_s
        self.seconds += section.seconds
        self.operations += section.operations
        self.rate += rate / slices
        self.slices_us.append(section.cpu_s / section.operations * 1e6)

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.operations * 1e6


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of all threads of a process so far (see clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


def settled_cpu_s(pid: int) -> float:
    """Wait until a process is idle, so that its deferred work is counted, and return its CPU seconds."""
    deadline = time.monotonic() + IDLE_TIMEOUT_S
    used = cpu_s(pid)
    while time.monotonic() < deadline:
        time.sleep(IDLE_INTERVAL_S)
        before, used = used, cpu_s(pid)
        if used - before < IDLE_S:
            break
    return used


def cores() -> tuple[set[int], set[int]]:
    """Return the cores for the server and for the load generator; the same if there is only one."""
    every = sorted(os.sched_getaffinity(0))
    return set(every[:-1] or every), {every[-1]}


def pin(pid: int, to: set[int]) -> None:
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # a thread that has just ended
            os.sched_setaffinity(int(task.name), to)


@contextlib.contextmanager
def servers(checkouts: list[Checkout], hash_seed: int) -> Iterator[list[Server]]:
    """Start new servers at the same time, and pin them and this thread to separate cores."""
    everywhere = os.sched_getaffinity(0)
    for_server, for_load = cores()
    with ThreadPoolExecutor(len(checkouts)) as pool:
        starts = [pool.submit(Server, COMMANDS["ours"], each.environment(hash_seed)) for each in checkouts]
        try:
            started = [start.result() for start in starts]
            for server in started:
                pin(server.process.pid, for_server)
            os.sched_setaffinity(0, for_load)
            yield started
        finally:
            os.sched_setaffinity(0, everywhere)
            list(pool.map(Server.close, [start.result() for start in starts if not start.exception()]))


def warm_up(server: Server, scale: float) -> None:
    publish(server.port, max(1, int(WARM_UP_CHUNKS * min(1.0, scale))), 16384)


def sample(slices: Slices, pair: list[Server], scale: float, first: int) -> list[Sample]:
    """Run a workload on a pair of servers, in the order ABBA beginning with the given one; return one sample per server."""
    samples = [Sample() for _ in pair]
    for server in pair:
        slices.prepare(server, scale)
        run_slice(slices, server, scale)
    for turn in range(slices.each):
        for number in (first, 1 - first) if turn % 2 == 0 else (1 - first, first):
            rate = run_slice(slices, pair[number], scale)
            samples[number].add(METER.last, rate, slices.each)
    return samples


def run_slice(slices: Slices, server: Server, scale: float) -> float:
    METER.read_cpu_s = lambda: settled_cpu_s(server.process.pid)
    try:
        return slices.run(server, scale * slices.scale)
    finally:
        METER.read_cpu_s = float


def restart(server: Server, scale: float = 1.0) -> float:
    """Start a server again after a kill; return starts per second of wall-clock time."""
    server.kill()
    METER.read_cpu_s = float
    with METER.section(1) as section:
        server.start()
    section.cpu_s = settled_cpu_s(server.process.pid)
    return 1 / section.seconds


def recover(server: Server, scale: float) -> float:
    """Restart after a kill, with messages that no checkpoint contains."""
    publish(server.port, max(1, int(500 * scale)), 128)
    return restart(server)


def over_the_wire(name: str, scale: float) -> Slices:
    """Divide a workload of `make bench`, or `acks`, into slices."""
    workload = WORKLOADS.get(name) or Workload(name, acks)
    return Slices(lambda server, size: workload.run(server.port, size), workload.title, scale)


def reading(name: str, chunks: int, read: Callable[[int, int], float], each: int = 4) -> Slices:
    """Divide a workload that reads a stream: the stream is stored once, and each slice reads all of it.

    Reading a stream that was just written costs more or less, depending on how far its blocks have been flushed. The
    stream is kept well below the store's block cache (32 MiB): near that size servers showed two cost levels, probably
    because a scan then either hits the cache throughout or misses it throughout.
    """
    return Slices(
        lambda server, size: read(server.port, stored(chunks, size)),
        WORKLOADS[name].title,
        each=each,
        prepare=lambda server, size: publish(
            server.port, stored(chunks, size) // CHUNK, 128, allow_direct=True
        ),
    )


def stored(chunks: int, scale: float) -> int:
    return max(1, int(chunks * scale)) * CHUNK


#: Every workload of `make bench` except `sync_always` and `sync1_always`, which differ from `pub128` and `sync1` only on the
#: other server.
SCALES = {
    "core": 1.0,
    "fanout": 0.5,
    "request": 0.5,
    "pub128": 0.4,
    "pub1k": 0.4,
    "pub16k": 0.3,
    "pub64k": 0.2,
    "pub1m": 0.2,
    "async500": 0.2,
    "pub_mem": 0.5,
    "pub_ttl": 0.3,
    "kv_put": 0.6,
    "pub_msgid": 0.4,
    "sync1": 0.25,
    "batch": 0.4,
    "push100": 0.4,
    "pull": 0.4,
    "acks": 1.0,
    "kv_get": 0.8,
    "source_durable": 0.2,
}
SLICES: dict[str, Slices] = {name: over_the_wire(name, scale) for name, scale in SCALES.items()} | {
    "push": reading("push", 100, lambda port, total: deliver(port, total, 1), each=10),
    "direct_batch": reading("direct_batch", 100, get_batches, each=10),
    "mirror": reading("mirror", 60, lambda port, total: catch_up(port, total, {"mirror": {"name": "B"}})),
    "source": reading("source", 40, lambda port, total: catch_up(port, total, {"sources": [{"name": "B"}]})),
    "streams1000": Slices(
        lambda server, size: publish_to_streams(server.port, size),
        WORKLOADS["streams1000"].title,
        prepare=lambda server, size: create_streams(server.port),
        alone=True,
    ),
    "start": Slices(restart, "Start of the process on an empty store", each=2, alone=True),
    "recover": Slices(recover, "Start after a kill, 500,000 messages stored", each=1, alone=True),
}
