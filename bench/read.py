"""Measures how fast a store is read as Arrow: `python bench/read.py [--messages N] [--size BYTES] [--json]`.

Creates a store on real files and reads it with `headrace.read` as pandas, polars, DuckDB or Spark would do; the best of
a few rounds counts, because other processes disturb them. Rates are given by wall-clock time and by CPU time, which is
more reliable on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

import headrace
from headrace.storage import FileDisk, open_store

SUBJECTS = [b"orders.%s.%d" % (region, shop) for region in (b"eu", b"us") for shop in range(100)]


class WallClock:
    def now_ns(self) -> int:
        return time.time_ns()


def fill(root: Path, messages: int, size: int) -> None:
    """Create a stream S with that many messages, committed a thousand at a time."""
    disk = FileDisk(root)
    store = open_store(disk, WallClock())
    log = store.create("S")
    payload = bytes(index % 251 for index in range(size))
    for start in range(0, messages, 1000):
        tick = [(SUBJECTS[(start + i) % 200], b"", payload) for i in range(min(1000, messages - start))]
        log.append_many(tick, time.time_ns())
        if not store.in_flight:
            store.commit()
        disk.drain()
    store.close()
    disk.close()


def count(root: Path, **options: Any) -> int:
    with headrace.read(root, "S", **options) as reading:
        return sum(batch.num_rows for batch in reading)


def by_duckdb(root: Path) -> int:
    reading = headrace.read(root, "S", columns=["subject", "data"])  # noqa: F841 (named in the query)
    rows = duckdb.sql("select subject, count(data) from reading group by subject").fetchall()
    return sum(row[1] for row in rows)


WAYS: dict[str, Callable[[Path], int]] = {
    "all columns, payloads copied": count,
    "all columns, payloads as views": lambda root: count(root, views=True),
    "seq and data": lambda root: count(root, columns=["seq", "data"]),
    "one subject of 200 (of all)": lambda root: count(root, subject="orders.eu.7") * 200,
    "with microseconds, for Spark": lambda root: count(root, time_unit="us"),
    "into a polars frame": lambda root: pl.DataFrame(headrace.read(root, "S")).height,
    "grouped by DuckDB": by_duckdb,
}


def measure(root: Path, messages: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return million messages per second, and per second of CPU time, for each way of reading."""
    found = {}
    for name, way in WAYS.items():
        wall = spent = 0.0
        for _ in range(rounds):
            started, used = time.perf_counter(), time.process_time()
            rows = way(root)
            wall = max(wall, messages / (time.perf_counter() - started) / 1e6)
            spent = max(spent, messages / (time.process_time() - used) / 1e6)
            if rows != messages:
                sys.exit(f"{name}: {rows} rows instead of {messages}")
        found[name] = round(wall, 2), round(spent, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="headrace-read-"))
    try:
        fill(root, options.messages, options.size)
        found = measure(root, options.messages, options.rounds)
    finally:
        shutil.rmtree(root)
    if options.json:
        print(json.dumps(found))
    else:
        for name, (wall, spent) in found.items():
            print(f"{name:34} {wall:6.2f} M messages/s, {spent:6.2f} M per second of CPU time")


if __name__ == "__main__":
    main()
