"""Measures what stored messages cost each server: resident memory, space on disk, and the CPU time of a start.

    python bench/footprint.py [--only messages,subjects,s2,start] [--messages 10000000] [--subjects 1000000]
                              [--sides ours,peer] [--json FILE] [--keep]

`messages` fills a stream with messages of 128 bytes (JSON) on 1,000 subjects, `s2` the same with compression, `subjects`
a stream with one message on each subject. Memory and disk are measured while the server runs, when both have settled;
disk is what the file system allocated below the data directory. `start` starts a server with `-js` on an empty directory
and measures its CPU time until it accepts connections; the median of several starts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from load import Connection, publication, pump
from perf import COMMANDS, Server

CASES = ("messages", "s2", "subjects", "start")
PER_CHUNK = 1000
STARTS = 7
SETTLED_S = 25
PAYLOAD_BYTES = 128
MIB = 1 << 20

Figures = dict[str, float]


def make_payload(number: int, source: random.Random) -> bytes:
    """Return an order as JSON, padded to 128 bytes."""
    order = {
        "order": 10_000_000 + number,
        "customer": source.randrange(100_000),
        "amount": round(source.uniform(1, 1000), 2),
        "currency": source.choice(("EUR", "USD", "GBP")),
        "status": source.choice(("new", "paid", "sent")),
        "article": source.randrange(1_000_000),
    }
    return json.dumps(order).encode().ljust(PAYLOAD_BYTES)[:PAYLOAD_BYTES]


def make_chunks(reply: bytes, count: int, subjects: int) -> Iterator[bytes]:
    """Yield publications of `count` messages in chunks; the same few chunks again if the subjects repeat."""
    source = random.Random(1)
    repeats = subjects <= PER_CHUNK

    def make_chunk(first: int) -> bytes:
        numbers = range(first, first + PER_CHUNK)
        return b"".join(
            publication(b"orders.%d" % (i % subjects), make_payload(i, source), reply) for i in numbers
        )

    ready = [make_chunk(i * PER_CHUNK) for i in range(50)] if repeats else []
    for number in range(count // PER_CHUNK):
        yield ready[number % len(ready)] if repeats else make_chunk(number * PER_CHUNK)


def fill(port: int, count: int, subjects: int, **config: Any) -> None:
    """Publish and wait for every acknowledgement."""
    with Connection(port) as connection:
        connection.stream("orders", **config)
        reply = connection.inbox + b".a"
        pump(connection, make_chunks(reply, count, subjects), b"MSG " + reply, count, per_chunk=PER_CHUNK)
        assert connection_state(port)["last_seq"] == count


def connection_state(port: int) -> dict[str, Any]:
    with Connection(port) as connection:
        state: dict[str, Any] = connection.api("STREAM.INFO.orders")["state"]
        return state


def disk_bytes(folder: Path) -> int:
    """Return what the file system allocated for the files below a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            total += path.lstat().st_blocks * 512
    return total


def disk_parts(folder: Path) -> dict[str, int]:
    """Return the same by kind of file: its suffix."""
    found: dict[str, int] = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            kind = path.suffix.lstrip(".") or path.name
            found[kind] = found.get(kind, 0) + path.lstat().st_blocks * 512
    return dict(sorted(found.items(), key=lambda part: -part[1])[:5])


def settle(server: Server, limit_s: float = 90) -> None:
    """Wait until memory and disk have changed by less than 1 % for 25 seconds: longer than a server must be idle before
    it gives back what only a burst needed.
    """
    before, since = (0.0, 0.0), time.monotonic()
    deadline = since + limit_s
    while time.monotonic() < min(since + SETTLED_S, deadline):
        now = (server.resident_mib(), disk_bytes(Path(server.folder)) / MIB)
        if any(abs(new - old) > 0.01 * new for new, old in zip(now, before, strict=True)):
            before, since = now, time.monotonic()
        time.sleep(0.5)


def measure_fill(side: str, count: int, subjects: int, keep: bool, **config: Any) -> Figures:
    server = Server(COMMANDS[side])
    try:
        started = time.monotonic()
        fill(server.port, count, subjects, **config)
        seconds = time.monotonic() - started
        settle(server)
        used = disk_bytes(Path(server.folder))
        print(f"    {side}: filled in {seconds:.0f} s; disk in MiB:", end=" ")
        print({kind: round(size / MIB, 1) for kind, size in disk_parts(Path(server.folder)).items()})
        if keep:
            input(f"    process {server.process.pid}, {server.folder}; Enter continues")
        return {"memory_mib": server.resident_mib(), "disk_per_message": used / count}
    finally:
        server.close()


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_start(side: str) -> Figures:
    """Return the median CPU time and wall-clock time until a new server accepts connections."""
    used, took = [], []
    for _ in range(STARTS + 1):
        started = time.monotonic()
        server = Server(COMMANDS[side])
        took.append(time.monotonic() - started)
        used.append(cpu_s(server.process.pid))
        server.close()
    return {"start_cpu_s": statistics.median(used[1:]), "start_wall_s": statistics.median(took[1:])}


def measure(case: str, side: str, args: argparse.Namespace) -> Figures:
    if case == "start":
        return measure_start(side)
    if case == "subjects":
        return measure_fill(side, args.subjects, args.subjects, args.keep)
    return measure_fill(
        side, args.messages, PER_CHUNK, args.keep, compression="s2" if case == "s2" else "none"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--sides", default="ours,peer")
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--subjects", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--keep", action="store_true", help="wait after each measurement, to look at the server"
    )
    args = parser.parse_args()
    results: dict[str, dict[str, Figures]] = {}
    for case in args.only.split(","):
        print(f"{case}:", flush=True)
        results[case] = {side: measure(case, side, args) for side in args.sides.split(",")}
        for name in next(iter(results[case].values())):
            values = {side: figures[name] for side, figures in results[case].items()}
            shown = ", ".join(f"{side} {value:.2f}" for side, value in values.items())
            ratio = f", ratio {values['ours'] / values['peer']:.2f}" if len(values) == 2 else ""
            print(f"  {name}: {shown}{ratio}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
