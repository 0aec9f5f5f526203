"""`make stalls`: how long other clients wait during an expensive operation of one client, compared with nats-server.

    stalls.py [--only NAME,...] [--scale 1.0] [--sides ours,peer] [--json FILE]

While an operation runs on a large stream, one client only pings and another publishes to a separate stream, one message
at a time. The table shows the worst and the 99.9th percentile of the waits of each, in milliseconds. The operation
counts as finished when its reply has arrived and its effect is visible.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stalls_server
from load import Connection, header
from perf import COMMANDS, Server
from stalls_data import (
    CONFIG_FILE,
    MARGIN_S,
    MILLION,
    ROWS,
    TIMEOUT_S,
    Client,
    Row,
    fill,
    info,
    keys,
    row,
    scaled,
    update,
    wait_until,
)

assert stalls_server.__name__, "its operations are in ROWS, too"

# Bystanders


def wait_of(port: int, publishes: bool, stop: Any, result: Any) -> None:
    """Measure round trips until stopped: a PING, or a publish with its ack."""
    connection = Connection(port)
    connection.socket.settimeout(TIMEOUT_S)
    waits: list[tuple[float, float]] = []
    while not stop.is_set():
        start = time.perf_counter()
        if publishes:
            connection.request(b"BESIDE.x", b"payload")
        else:
            connection.socket.sendall(b"PING\r\n")
            while connection.line() != b"PONG":
                pass
        waits.append((start, time.perf_counter() - start))
        time.sleep(0.001)
    result.put(waits)


class Bystanders:
    """A client that pings and a client that publishes, each in its own process."""

    def __init__(self, port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._results = [context.Queue(), context.Queue()]
        self._processes = [
            context.Process(target=wait_of, args=(port, publishes, self._stop, result))
            for publishes, result in zip((False, True), self._results, strict=True)
        ]
        for process in self._processes:
            process.start()
        time.sleep(1.0)

    def finish(self, begin: float, end: float) -> list[list[float]]:
        """Return the waits of both, for round trips that overlap the operation."""
        self._stop.set()
        found = [result.get(timeout=TIMEOUT_S) for result in self._results]
        for process in self._processes:
            process.join()
        return [[wait for start, wait in waits if start + wait >= begin and start <= end] for waits in found]


# Lowering limits


@row("subject_limit")
def subject_limit(c: Connection, scale: float) -> Iterator[None]:
    """max_msgs_per_subject from 10 to 1 over 1 M messages."""
    count = scaled(100_000, scale)
    c.stream("BIG", max_msgs_per_subject=10)
    fill(c, keys(count, 10))
    yield
    update(c, max_msgs_per_subject=1)
    wait_until(lambda: info(c)["messages"] == count)


@row("max_msgs")
def max_msgs(c: Connection, scale: float) -> Iterator[None]:
    """max_msgs lowered from 2 M to 1 M."""
    count = scaled(MILLION, scale)
    c.stream("BIG")
    fill(c, keys(1000, 2 * count // 1000))
    yield
    update(c, max_msgs=count)
    wait_until(lambda: info(c)["messages"] == count)


@row("max_bytes")
def max_bytes(c: Connection, scale: float) -> Iterator[None]:
    """max_bytes lowered so that 1 M of 2 M messages are removed."""
    count = scaled(MILLION, scale)
    c.stream("BIG")
    fill(c, keys(1000, 2 * count // 1000))
    limit = info(c)["bytes"] // 2
    yield
    update(c, max_bytes=limit)
    wait_until(lambda: info(c)["bytes"] <= limit)


@row("max_age")
def max_age(c: Connection, scale: float) -> Iterator[None]:
    """max_age lowered so that 1 M messages expire at once."""
    c.stream("BIG")
    fill(c, keys(1000, scaled(MILLION, scale) // 1000))
    time.sleep(2)
    yield
    update(c, max_age=1_000_000_000)
    wait_until(lambda: info(c)["messages"] == 0)


@row("markers")
def markers(c: Connection, scale: float) -> Iterator[None]:
    """200,000 TTLs that expire together, each with a delete marker."""
    count = scaled(200_000, scale)
    c.stream("BIG", allow_msg_ttl=True, subject_delete_marker_ttl=1_000_000_000, allow_rollup_hdrs=True)
    started = time.monotonic()
    ttl_s = 6 + int(count / 40_000)
    fill(c, keys(count), headers=header(Nats_TTL=f"{ttl_s}s"))
    time.sleep(max(ttl_s - 0.5 - (time.monotonic() - started), 0))
    yield
    wait_until(lambda: info(c)["first_seq"] > count)


# Purge and delete


@row("purge_filter")
def purge_filter(c: Connection, scale: float) -> Iterator[None]:
    """Purge by filter: 1 M of 2 M messages."""
    count = scaled(MILLION, scale)
    c.stream("BIG")
    fill(c, [b"BIG.%s.%d" % (b"a" if n % 2 else b"b", n % 1000) for n in range(2 * count)])
    yield
    c.api("STREAM.PURGE.BIG", {"filter": "BIG.a.>"}, timeout_s=TIMEOUT_S)


@row("purge_keep")
def purge_keep(c: Connection, scale: float) -> Iterator[None]:
    """Purge by filter that keeps 1,000 of 1 M messages."""
    c.stream("BIG")
    fill(c, keys(1000, scaled(MILLION, scale) // 1000))
    yield
    c.api("STREAM.PURGE.BIG", {"filter": "BIG.k.*", "keep": 1000}, timeout_s=TIMEOUT_S)


@row("purge_seq")
def purge_seq(c: Connection, scale: float) -> Iterator[None]:
    """Purge up to a sequence: 1 M of 2 M messages."""
    count = scaled(MILLION, scale)
    c.stream("BIG")
    fill(c, keys(1000, 2 * count // 1000))
    yield
    c.api("STREAM.PURGE.BIG", {"seq": count}, timeout_s=TIMEOUT_S)


@row("delete_stream", peer=False)
def delete_stream(c: Connection, scale: float) -> Iterator[None]:
    """Delete a stream with 4,000 consumers and 500,000 messages."""
    c.stream("BIG")
    fill(c, keys(1000, scaled(500_000, scale) // 1000))
    for number in range(int(4_000 * scale)):
        c.consumer("BIG", f"c{number}", ack_policy="explicit", filter_subject=f"BIG.k.{number % 1000}")
    yield
    c.api("STREAM.DELETE.BIG", timeout_s=TIMEOUT_S)


# nats-server allows a stream 1,000 consumers unless its configuration says otherwise.
@row("delete_consumers", peer=False)
def delete_consumers(c: Connection, scale: float) -> Iterator[None]:
    """Delete 4,000 consumers of an interest stream one by one."""
    names = [f"c{number}" for number in range(int(4_000 * scale))]
    c.stream("BIG", retention="interest")
    for number, name in enumerate(names):
        c.consumer("BIG", name, ack_policy="explicit", filter_subject=f"BIG.k.{number % 1000}")
    fill(c, keys(1000, scaled(100_000, scale) // 1000))
    yield
    for name in names:
        c.api(f"CONSUMER.DELETE.BIG.{name}", timeout_s=TIMEOUT_S)


# Consumers


@row("last_per_subject")
def last_per_subject(c: Connection, scale: float) -> Iterator[None]:
    """last_per_subject consumer of 500,000 subjects, of which 100,000 were removed."""
    count, gone = scaled(500_000, scale), scaled(100_000, scale)
    c.stream("BIG")
    fill(c, keys(count, 2))
    c.api("STREAM.PURGE.BIG", {"seq": count + gone}, timeout_s=TIMEOUT_S)
    yield
    c.consumer(
        "BIG", "last", ack_policy="explicit", deliver_policy="last_per_subject", filter_subject="BIG.k.*"
    )


@row("kv_watch")
def kv_watch(c: Connection, scale: float) -> Iterator[None]:
    """Watch of 500,000 keys with history 5 and overwrites."""
    count = scaled(500_000, scale)
    c.stream("BIG", max_msgs_per_subject=5)
    fill(c, keys(count, 2))
    fill(c, keys(count // 5))
    watcher = Connection(c.socket.getpeername()[1])
    watcher.subscribe(b"watch")
    yield
    config = {
        "deliver_subject": "watch", "deliver_policy": "last_per_subject", "ack_policy": "none",
        "filter_subject": "BIG.k.*", "flow_control": True, "idle_heartbeat": 5_000_000_000,
    }  # fmt: skip
    c.api("CONSUMER.CREATE.BIG", {"stream_name": "BIG", "config": config}, timeout_s=TIMEOUT_S)
    seen = 0
    while seen < count:
        _, reply, head, _ = watcher.message()
        if head.startswith(b"NATS/1.0 100"):
            if reply:
                watcher.socket.sendall(b"PUB %s 0\r\n\r\n" % reply)
        else:
            seen += 1
    watcher.close()


@row("many_filters")
def many_filters(c: Connection, scale: float) -> Iterator[None]:
    """A consumer with 5,000 filters, then a stream with 5,000 subjects."""
    count = int(5_000 * scale)
    c.stream("BIG")
    fill(c, keys(10_000, scaled(500_000, scale) // 10_000))
    yield
    with contextlib.suppress(Exception):
        c.consumer(
            "BIG", "many", ack_policy="explicit", filter_subjects=[f"BIG.k.{n}.*" for n in range(count)]
        )
    with contextlib.suppress(Exception):
        c.api("STREAM.CREATE.MANY", {"name": "MANY", "subjects": [f"many.{n}.*" for n in range(count)]})
    with contextlib.suppress(Exception):
        c.api("STREAM.DELETE.MANY")


# Queries


@row("info_subjects")
def info_subjects(c: Connection, scale: float) -> Iterator[None]:
    """STREAM.INFO with 500,000 subjects, all pages."""
    count = scaled(500_000, scale)
    c.stream("BIG")
    fill(c, keys(count))
    yield
    seen = 0
    while seen < count:
        body = {"subjects_filter": ">", "offset": seen}
        found = c.api("STREAM.INFO.BIG", body, timeout_s=TIMEOUT_S)["state"]["subjects"]
        seen += len(found)


@row("info_deleted")
def info_deleted(c: Connection, scale: float) -> Iterator[None]:
    """STREAM.INFO with 500,000 deleted sequences."""
    count = scaled(MILLION, scale)
    c.stream("BIG")
    fill(c, [b"BIG.%d" % (n % 2) for n in range(count)])
    c.api("STREAM.PURGE.BIG", {"filter": "BIG.1"}, timeout_s=TIMEOUT_S)
    yield
    c.api("STREAM.INFO.BIG", {"deleted_details": True}, timeout_s=TIMEOUT_S)


@row("lists", peer=False)
def lists(c: Connection, scale: float) -> Iterator[None]:
    """Names and lists of 2,000 streams and 4,000 consumers, all pages."""
    streams, consumers = int(2_000 * scale), int(4_000 * scale)
    c.stream("BIG")
    for number in range(streams):
        c.stream(f"L{number}", storage="memory")
    for number in range(consumers):
        c.consumer("BIG", f"c{number}", ack_policy="explicit", mem_storage=True)
    yield
    for operation, total in (
        ("STREAM.NAMES", streams), ("STREAM.LIST", streams),
        ("CONSUMER.NAMES.BIG", consumers), ("CONSUMER.LIST.BIG", consumers),
    ):  # fmt: skip
        offset = 0
        while offset < total:
            answer = c.api(operation, {"offset": offset}, timeout_s=TIMEOUT_S)
            offset += len(answer.get("streams") or answer.get("consumers") or [None] * total)


# Maintenance


@row("overwrites")
def overwrites(c: Connection, scale: float) -> Iterator[None]:
    """3 M overwrites of 100,000 keys: segments are compacted."""
    count = scaled(100_000, scale)
    c.stream("BIG", max_msgs_per_subject=1)
    fill(c, keys(count))
    yield
    fill(c, keys(count, 30))


@row("backup")
def backup(c: Connection, scale: float) -> Iterator[None]:
    """Backup of 1 M messages."""
    c.stream("BIG")
    fill(c, keys(1000, scaled(MILLION, scale) // 1000))
    receiver = Connection(c.socket.getpeername()[1])
    receiver.subscribe(b"backup.data")
    yield
    c.api("STREAM.SNAPSHOT.BIG", {"deliver_subject": "backup.data"}, timeout_s=TIMEOUT_S)
    while True:
        _, reply, _, payload = receiver.message()
        if reply:
            receiver.socket.sendall(b"PUB %s 0\r\n\r\n" % reply)
        if not payload:
            break
    receiver.close()


# The run


def measure(command: str, each: Row, scale: float) -> dict[str, float]:
    """Run one operation on a new server; return the waits in milliseconds."""
    config = each.config(scale) if each.config is not None else ""
    server = Server(f"{command} -m {{http}} -c {{dir}}/{CONFIG_FILE}", files={CONFIG_FILE: config})
    try:
        connection = Client(server)
        connection.socket.settimeout(TIMEOUT_S)
        connection.stream("BESIDE", storage="memory")
        steps = each.run(connection, scale)
        next(steps)
        bystanders = Bystanders(server.port)
        begin = time.perf_counter()
        time.sleep(MARGIN_S)
        started = time.perf_counter()
        next(steps, None)
        took_s = time.perf_counter() - started
        time.sleep(MARGIN_S)
        pings, publishes = bystanders.finish(begin, time.perf_counter())
        connection.close()
    finally:
        server.close()
    return {
        "ping_max": max(pings) * 1e3, "ping_p999": percentile(pings) * 1e3,
        "publish_max": max(publishes) * 1e3, "publish_p999": percentile(publishes) * 1e3, "took_s": took_s,
    }  # fmt: skip


def percentile(waits: list[float]) -> float:
    return statistics.quantiles(waits, n=1000, method="inclusive")[-1] if len(waits) > 1 else waits[0]


def show(each: Row, results: dict[str, dict[str, float]]) -> None:
    print(f"{each.name}: {each.title}")
    for side, found in results.items():
        print(
            f"    {side:5} ping worst {found['ping_max']:8.1f} p99.9 {found['ping_p999']:7.1f}   "
            f"publish worst {found['publish_max']:8.1f} p99.9 {found['publish_p999']:7.1f} ms   "
            f"took {found['took_s']:6.1f} s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names of operations, separated by commas")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--sides", default="ours,peer")
    parser.add_argument("--json", default="out/stalls.json")
    arguments = parser.parse_args()
    chosen = [ROWS[name] for name in arguments.only.split(",")] if arguments.only else list(ROWS.values())
    everything: dict[str, Any] = {}
    for each in chosen:
        results = {}
        for side in arguments.sides.split(",") if each.peer else ["ours"]:
            results[side] = measure(COMMANDS[side], each, arguments.scale)
        everything[each.name] = {"title": each.title, **results}
        show(each, results)
    Path(arguments.json).parent.mkdir(parents=True, exist_ok=True)
    Path(arguments.json).write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    sys.exit(main())
