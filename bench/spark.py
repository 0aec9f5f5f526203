"""Measures how fast Spark reads and writes streams.

python bench/spark.py [--only direct,wire,...] [--messages N] [--json]

Each figure is the best of a few rounds on `local[2]`, with the server on the same machine. Rows are sequence, time,
subject and 128 bytes of payload, except where all columns are read. Reading the same rows from Parquet is the upper
limit for the direct path.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from pyspark.sql import DataFrame, SparkSession

from conformance.servers import KINDS, OURS, Server, Setup
from headrace.reader.blocking_connection import BlockingConnection, ServerAddress
from headrace.storage import FileDisk, open_store

PAYLOAD = b"x" * 128
CORES = 2
WARM = 20
FLOORS = {
    "direct": 2_000_000,
    "wire headrace": 500_000,
    "wire nats-server": 500_000,
    "sink headrace, staged": 100_000,
    "sink headrace, ids": 150_000,
    "sink headrace, at least once": 250_000,
}


class WallClock:
    def now_ns(self) -> int:
        return time.time_ns()


def session(folder: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Rate(NamedTuple):
    """Messages per second by wall-clock time, and by CPU time, as if both cores had been free."""

    clock: float
    cores: float


def rate(count: int, rounds: int, work: Callable[[], Any]) -> Rate:
    """Return the best rates of a few rounds; CPU time is that of JVM, workers and server together."""
    clock = cores = 0.0
    for _ in range(rounds):
        started, before = time.perf_counter(), sum(_ticks(0))
        work()
        clock = max(clock, count / (time.perf_counter() - started))
        spent_s = (sum(_ticks(0)) - before) / os.sysconf("SC_CLK_TCK")
        cores = max(cores, count / (max(spent_s, 0.01) / CORES))
    return Rate(clock, cores)


def fill_store(root: Path, messages: int) -> None:
    disk = FileDisk(root)
    store = open_store(disk, WallClock())
    log = store.create("S")
    subjects = [b"orders.%d" % n for n in range(200)]
    for _ in range(messages // 1000):
        # Random, because Parquet would otherwise compress it to almost nothing.
        noise = os.urandom(128_000)
        tick = [(subjects[n % 200], b"", noise[n * 128 : (n + 1) * 128]) for n in range(1000)]
        log.append_many(tick, time.time_ns())
        if not store.in_flight:
            store.commit()
        disk.drain()
    store.close()
    disk.close()


def direct(spark: SparkSession, folder: Path, messages: int, rounds: int) -> dict[str, Rate]:
    root = folder / "store"
    fill_store(root, messages)
    reader = spark.read.format("headrace").option("path", str(root)).option("stream", "S")
    frame = reader.schema("seq bigint, time timestamp, subject string, data binary").load()
    every = spark.read.format("headrace").option("path", str(root)).option("stream", "S").load()
    table = str(folder / "parquet")
    frame.write.parquet(table)

    def noop() -> None:
        frame.write.format("noop").mode("overwrite").save()

    found = {"direct": rate(messages, rounds, lambda: frame.selectExpr("sum(length(data))").collect())}
    found["direct, all columns"] = rate(
        messages, rounds, lambda: every.selectExpr("sum(length(data))").collect()
    )
    found["direct, to a noop sink"] = rate(messages, rounds, noop)
    rows = spark.read.parquet(table)
    found["the same from Parquet"] = rate(
        messages, rounds, lambda: rows.write.format("noop").mode("overwrite").save()
    )
    return found


def fill_server(link: BlockingConnection, messages: int) -> None:
    """Publish in windows: without acks, nats-server drops messages that arrive faster than it stores them."""
    frame = b"PUB s.%d 128\r\n" + PAYLOAD + b"\r\n"
    for start in range(0, messages, 5000):
        link.send(b"".join(frame % (n % 100) for n in range(start, start + 5000)))
        while json.loads(link.request("$JS.API.STREAM.INFO.S").payload)["state"]["messages"] < start + 5000:
            time.sleep(0.002)


@contextmanager
def served(kind: str, **config: Any) -> Iterator[tuple[Server, BlockingConnection]]:
    """Run a server with the stream S. Turns of its event loop that took long are printed, and lose no result."""
    server = Server(kind, Setup(flags=("-m", "-1")))
    link = BlockingConnection(ServerAddress(servers=(server.url,), timeout_s=30.0))
    base = {"name": "S", "subjects": ["s.>"], "allow_direct": True, "allow_atomic": True}
    link.request("$JS.API.STREAM.CREATE.S", {**base, **config})
    try:
        yield server, link
    finally:
        link.close()
        try:
            server.close()
        except AssertionError as stalls:
            print(f"{kind}: {stalls}", file=sys.stderr, flush=True)


def wire(spark: SparkSession, kind: str, folder: Path, messages: int, rounds: int) -> dict[str, Rate]:

    def summed(frame: DataFrame) -> Rate:
        return rate(messages, rounds, lambda: frame.selectExpr("sum(length(data))").collect())

    with served(kind) as (server, link):
        fill_server(link, messages)
        reader = spark.read.format("headrace").option("servers", server.url).option("stream", "S")
        frame = reader.option("minPartitions", 2).load()
        found = {f"wire {kind}": summed(frame)}
        if kind == OURS:
            web = server.monitoring_url("")
            found["pinned files over HTTP"] = summed(reader.option("path", web).load())
        table = str(folder / f"wire-{kind}")
        frame.write.parquet(table)
        found[f"the same rows from Parquet ({kind})"] = summed(spark.read.parquet(table))
        return found


#: How the sink writes: name -> options.
SINK_MODES = {
    "staged": {},
    "ids": {"exactlyOnce": "ids"},
    "at least once": {"atLeastOnce": "true"},
}


def sink(spark: SparkSession, kind: str, folder: Path, messages: int, rounds: int) -> dict[str, Rate]:
    text = PAYLOAD.decode()
    table = str(folder / f"sink-{kind}")
    found: dict[str, Rate] = {}

    def report(what: str, value: Rate) -> None:
        found[what] = value
        print(f"{what}: {value.clock:,.2f}, {value.cores:,.2f} by CPU time", file=sys.stderr, flush=True)

    with served(kind) as (server, link):
        for mode, options in SINK_MODES.items():
            ids = ", uuid() as msg_id" if mode == "ids" else ""
            columns = f"'s.' || id % 100 as subject, '{text}' as data{ids}"
            frame = spark.sql(f"select {columns} from range(0, {messages}, 1, 2)")
            writer = frame.write.format("headrace").mode("append").option("servers", server.url)
            writer = writer.option("stream", "S").options(**options)
            report(f"sink {kind}, {mode}", rate(messages, rounds, writer.save))
            link.request("$JS.API.STREAM.PURGE.S")
        few = spark.sql(f"select 's.x' as subject, '{text}' as data from range(2)")
        writer = few.write.format("headrace").mode("append").options(servers=server.url, stream="S")
        report(f"sink {kind}, staged, writes of two rows per second", rate(1, 5, writer.save))
        parquet = frame.write.mode("overwrite")
        report(f"the same rows to Parquet ({kind})", rate(messages, rounds, lambda: parquet.parquet(table)))
    return found


def latency(spark: SparkSession, kind: str) -> dict[str, float]:
    """Measure milliseconds from a publish to its row in foreachBatch (median), and percent of a core while idle."""
    delays: list[float] = []

    def seen(batch: Any, _: int) -> None:
        now = time.time()
        delays.extend(now - float(row.data) for row in batch.select("data").collect())

    with served(kind) as (server, link), tempfile.TemporaryDirectory() as checkpoint:
        reader = spark.readStream.format("headrace").option("servers", server.url).option("stream", "S")
        writer = (
            reader.option("starting", "earliest")
            .load()
            .writeStream.foreachBatch(seen)
            .option("checkpointLocation", checkpoint)
        )
        query = writer.start()
        for n in range(60):
            payload = b"%f" % time.time()
            link.send(b"PUB s.%d %d\r\n%s\r\n" % (n, len(payload), payload))
            # The first ones are sent one after the other and not counted: Spark is still warming up.
            while n < WARM and len(delays) <= n:
                time.sleep(0.01)
            time.sleep(0.25)
        while len(delays) < 60:
            time.sleep(0.1)
        time.sleep(5)
        idle = idle_percent(10.0, server.pid)
        query.stop()
    late = delays[WARM:]
    return {
        f"publish to foreachBatch, ms, {kind}": statistics.median(late) * 1000,
        f"idle, % of a core (Spark and its workers), {kind}": idle[0],
        f"idle, % of a core (server), {kind}": idle[1],
    }


def idle_percent(seconds: float, server: int) -> tuple[float, float]:
    """Return the CPU use of this process's children meanwhile: all except the server, and the server."""
    before = _ticks(server)
    threading.Event().wait(seconds)
    after = _ticks(server)
    hertz = os.sysconf("SC_CLK_TCK")
    used = [(b - a) / hertz / seconds * 100 for a, b in zip(before, after, strict=True)]
    return used[0], used[1]


def _ticks(server: int) -> tuple[int, int]:
    parents, spent = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(stat.parent.name)
        # Including children that have ended: Spark's workers start and stop.
        parents[pid], spent[pid] = int(fields[1]), sum(int(each) for each in fields[11:15])

    def ours(pid: int) -> bool:
        while pid > 1:
            if pid == os.getpid():
                return True
            pid = parents.get(pid, 0)
        return False

    mine = [pid for pid in spent if ours(pid) and pid not in (server, os.getpid())]
    return sum(spent[pid] for pid in mine) + spent[os.getpid()], spent.get(server, 0)


def judged(found: Rate, floor: int) -> str:
    if found.clock >= floor:
        return "met"
    # CPU time assumes that no process waits for another, so it shows only what is possible.
    return "missed by wall-clock time, possible by CPU time" if found.cores >= floor else "missed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="direct,wire,sink,latency")
    parser.add_argument(
        "--messages", type=int, default=0, help="messages per figure, instead of the defaults"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", default=",".join(KINDS), help="servers to measure")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    chosen = args.only.split(",")
    found: dict[str, Rate | float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spark = session(folder)
        if "direct" in chosen:
            found |= direct(spark, folder, args.messages or 8_000_000, args.rounds)
        for kind in args.kinds.split(","):
            if "wire" in chosen:
                found |= wire(spark, kind, folder, args.messages or 500_000, args.rounds)
            if "sink" in chosen:
                found |= sink(spark, kind, folder, args.messages or 1_000_000, args.rounds)
        if "latency" in chosen:
            found |= latency(spark, OURS)
        spark.stop()
    if args.json:
        print(json.dumps(found))
        return
    for what, value in found.items():
        if isinstance(value, Rate):
            floor = FLOORS.get(what)
            shown = f"{value.clock:>12,.0f} by wall-clock time {value.cores:>12,.0f} by CPU time"
            verdict = "" if floor is None else f"  (floor {floor:,}: {judged(value, floor)})"
        else:
            shown, verdict = f"{value:>12,.1f}", ""
        print(f"{what:50} {shown}{verdict}")


if __name__ == "__main__":
    main()
