"""Measures what the worker of a table costs publishers; `bench/tables.py --rate 50000` runs it.

One process publishes at a fixed rate, another one publishes at random moments and times each acknowledgement, whatever
became of those before it. Rounds take turns without a worker, with one that reads by direct gets, and with one that reads
the store's files.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load import Connection, Counter, publication

from conformance.servers import OURS, Server
from headrace.tables.config import save_tables
from support.tables import make_table

ROOT = Path(__file__).parents[1]
STREAM = "ORDERS"
VARIANTS = ("no worker", "direct gets", "files")
_TICK_S = 0.001
_PROBE_INTERVAL_S = 0.005
_SUBJECTS = 200
#: A worker imports its libraries and commits once before a measurement begins.
_WARM_S = 8.0
#: Publishing waits if so many messages are not acknowledged: the server does not reach the rate.
_WINDOW = 100_000


@dataclass(frozen=True)
class LatencyPlan:
    """What is published, and for how long it is measured."""

    rate: int
    size: int
    seconds: float
    rounds: int
    #: Niceness of the worker.
    nice: int = 0


def publish_at_rate(port: int, rate: int, size: int, seconds: float) -> int:
    """Publish in steps of a millisecond, and wait for all acknowledgements; return how many messages that were."""
    per_tick = max(round(rate * _TICK_S), 1)
    ticks = [
        b"".join(
            publication(b"orders.%d" % ((tick * per_tick + number) % _SUBJECTS), b"x" * size, b"acks")
            for number in range(per_tick)
        )
        for tick in range(_SUBJECTS)
    ]
    with Connection(port) as connection:
        connection.subscribe(b"acks")
        wanted = int(seconds / _TICK_S)
        counter = Counter([connection], b'"seq":', wanted * per_tick)
        started_s = time.perf_counter()
        for number in range(wanted):
            while number * per_tick - counter.count > _WINDOW and not counter.failure:
                time.sleep(_TICK_S)
            pause_s = started_s + number * _TICK_S - time.perf_counter()
            if pause_s > 0:
                time.sleep(pause_s)
            connection.socket.sendall(ticks[number % len(ticks)])
        counter.wait()
    return wanted * per_tick


def probe_acks(port: int, size: int, warm_s: float, seconds: float) -> list[float]:
    """Publish at random moments; return the seconds until each acknowledgement, of those after the warm-up."""
    chance = random.Random(1)
    sent: list[float] = []
    found: list[float] = []
    is_done = threading.Event()
    with Connection(port) as connection:
        connection.subscribe(b"probe.*")

        def receive() -> None:
            while not (is_done.is_set() and len(found) == len(sent)):
                subject, _, _, payload = connection.message()
                assert b'"seq":' in payload, payload
                found.append(time.perf_counter() - sent[int(subject.partition(b".")[2])])

        receiver = threading.Thread(target=receive)
        receiver.start()
        started_s = next_s = time.perf_counter()
        skipped = 0
        while next_s < started_s + warm_s + seconds:
            time.sleep(max(next_s - time.perf_counter(), 0))
            if next_s < started_s + warm_s:
                skipped = len(sent) + 1
            message = publication(b"orders.probe", b"p" * size, b"probe.%d" % len(sent))
            sent.append(time.perf_counter())
            connection.socket.sendall(message)
            next_s += chance.uniform(0, 2 * _PROBE_INTERVAL_S)
        is_done.set()
        # One more wakes the receiver, if it waits for nothing.
        sent.append(time.perf_counter())
        connection.socket.sendall(publication(b"orders.probe", b"p" * size, b"probe.%d" % (len(sent) - 1)))
        receiver.join()
    return found[skipped:]


def measure_publishers(plan: LatencyPlan) -> dict[str, Any]:
    """Return the medians over the rounds of each variant."""
    runs: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool:
        for number in range(plan.rounds):
            for variant in VARIANTS if number % 2 else reversed(VARIANTS):
                with Server(OURS) as server, tempfile.TemporaryDirectory(prefix="bench-tables-") as folder:
                    run = _run_variant(pool, server, Path(folder), variant, plan)
                runs[variant].append(run)
                print(f"round {number + 1}, {variant}: {run}", file=sys.stderr, flush=True)
    return {variant: _summarize(found, runs[VARIANTS[0]]) for variant, found in runs.items()}


def _run_variant(
    pool: ProcessPoolExecutor, server: Server, folder: Path, variant: str, plan: LatencyPlan
) -> dict[str, float]:
    with Connection(server.port) as connection:
        stream = {"name": STREAM, "subjects": ["orders.>"], "allow_direct": True}
        connection.api(f"STREAM.CREATE.{STREAM}", stream)
    worker = None if variant == VARIANTS[0] else _start_worker(server, folder, variant, plan.nice)
    total_s = _WARM_S + plan.seconds
    cpu_s = _read_cpu_s(server.pid)
    load = pool.submit(publish_at_rate, server.port, plan.rate, plan.size, total_s)
    probe = pool.submit(probe_acks, server.port, plan.size, _WARM_S, plan.seconds)
    started_s = time.perf_counter()
    times, messages = sorted(probe.result()), load.result()
    rate = messages / (time.perf_counter() - started_s)
    result = {
        "p50_ms": round(times[len(times) // 2] * 1000, 3),
        "p99_ms": round(times[int(len(times) * 0.99)] * 1000, 3),
        "rate": round(rate),
        "server_cpu_us": round((_read_cpu_s(server.pid) - cpu_s) / messages * 1e6, 2),
    }
    if worker is not None:
        worker.send_signal(signal.SIGTERM)
        stats = json.loads(worker.communicate()[0])[STREAM]
        result |= {"rows": stats["rows"], "commits": stats["commits"]}
    return result


def _start_worker(server: Server, folder: Path, variant: str, nice: int) -> subprocess.Popen[str]:
    """Start `headrace table run` on a new table, with a commit every five seconds."""
    more = {"path": str(server.store_dir)} if variant == "files" else {}
    _, config = make_table(folder, name=STREAM, commit_interval="5s", **more)
    save_tables(folder / "tables.yaml", {STREAM: config})
    command = [
        "nice",
        "-n",
        str(nice),
        sys.executable,
        "-m",
        "headrace",
        "table",
        "run",
        "--json",
        "--server",
        server.url,
    ]
    return subprocess.Popen(
        [*command, "--config", str(folder / "tables.yaml")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )


def _read_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _summarize(runs: list[dict[str, float]], base: list[dict[str, float]]) -> dict[str, Any]:
    keys = dict.fromkeys(key for run in runs for key in run)
    found: dict[str, Any] = {key: statistics.median(run[key] for run in runs) for key in keys}
    ratios = [run["p99_ms"] / other["p99_ms"] for run, other in zip(runs, base, strict=True)]
    return {**found, "p99_ratio": round(statistics.median(ratios), 3), "p99_ratios": sorted(ratios)}
