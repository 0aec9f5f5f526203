"""Measures how fast a backlog becomes an Iceberg table: `python bench/tables.py [--messages N] [--size BYTES] [--json]`.

Publishes messages to a server, then writes them to a table with a SQLite catalog and local files, as `headrace table run
--once` does: by direct gets from Headrace and from nats-server, and from the files of Headrace's store (`path`).
`--payload json` measures typed columns. Rates are given by wall-clock time and by the CPU time of the worker, which is more
reliable on a busy machine.

    python bench/tables.py --rate 50000 [--seconds 20] [--rounds 5] [--nice 0]

measures instead what a worker that commits every 5 s costs publishers: the time until an acknowledgement at this rate,
without and with a worker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(1, str(Path(__file__).parents[1] / "src"))

from table_latency import LatencyPlan, measure_publishers

from conformance.servers import NATS_SERVER, OURS, Server
from headrace.client import connect
from headrace.tables.worker import TableWorker
from support.tables import make_table

STREAM = "ORDERS"
SCHEMA = {"id": "long", "customer": "string", "total": "double"}


def make_payload(chance: random.Random, number: int, size: int, kind: str) -> bytes:
    if kind == "raw":
        return chance.randbytes(size)
    values = {"id": number, "customer": f"c{number % 1000}", "total": number / 100}
    text = json.dumps(values)
    return json.dumps({**values, "note": "x" * max(size - len(text) - 12, 0)}).encode()


async def publish(url: str, messages: int, size: int, kind: str) -> None:
    chance = random.Random(1)
    payloads = [make_payload(chance, number, size, kind) for number in range(10_000)]
    messages_left = (
        (f"orders.{number % 200}", payloads[number % len(payloads)]) for number in range(messages)
    )
    async with await connect(url) as connection:
        js = connection.jetstream()
        await js.add_stream(name=STREAM, subjects=["orders.>"], allow_direct=True)
        async with js.publisher() as publisher:
            await publisher.publish_many(messages_left)


def measure(server: Server, folder: Path, kind: str, **values: Any) -> dict[str, Any]:
    declared = {"payload": "json", "schema": SCHEMA} if kind == "json" else {}
    _, config = make_table(folder, **declared, **values)
    worker = TableWorker(STREAM, config, {"servers": server.url})
    started_s, started_cpu_s = time.monotonic(), time.process_time()
    stats = worker.land()
    elapsed_s, cpu_s = time.monotonic() - started_s, time.process_time() - started_cpu_s
    worker.close()
    return {
        "rows": stats.rows,
        "commits": stats.commits,
        "seconds": round(elapsed_s, 2),
        "rows_per_s": round(stats.rows / elapsed_s),
        "rows_per_cpu_s": round(stats.rows / cpu_s),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--payload", choices=("raw", "json"), default="raw")
    parser.add_argument("--only", choices=(OURS, NATS_SERVER), default="")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rate", type=int, default=0, help="messages a second, to measure acknowledgements")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nice", type=int, default=0, help="niceness of the worker, with --rate")
    arguments = parser.parse_args()
    if arguments.rate:
        plan = LatencyPlan(
            arguments.rate, arguments.size, arguments.seconds, arguments.rounds, arguments.nice
        )
        print(json.dumps(measure_publishers(plan), indent=2))
        return
    results: dict[str, Any] = {}
    for kind in [arguments.only] if arguments.only else [OURS, NATS_SERVER]:
        with Server(kind) as server, tempfile.TemporaryDirectory(prefix="bench-tables-") as folder:
            asyncio.run(publish(server.url, arguments.messages, arguments.size, arguments.payload))
            results[f"{kind}, direct gets"] = measure(server, Path(folder) / "direct", arguments.payload)
            if server.is_ours:
                path = str(server.store_dir)
                results[f"{kind}, files"] = measure(
                    server, Path(folder) / "files", arguments.payload, path=path
                )
    if arguments.json:
        print(json.dumps(results, indent=2))
        return
    for name, result in results.items():
        print(
            f"{name}: {result['rows_per_s']:,} rows/s, {result['rows_per_cpu_s']:,} per CPU second of the worker "
            f"({result['rows']:,} rows, {result['commits']} commits)"
        )


if __name__ == "__main__":
    main()
