#!/usr/bin/env python3
"""Measure consumers that keep order per key: `bench/keyed.py [--rounds 5] [--messages 200000]`.

Two figures, each from rounds that take turns: the throughput of a pull consumer with 100,000 keys in random order, with
order per key over plain; and the 99th percentile of the time from publish to delivery on other keys, while one key
is stuck with thousands of messages over without it. Server and client run on one machine.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from contextlib import closing

from load import CHUNK, Connection, publication
from perf import COMMANDS, Server
from workloads import _acknowledge_all

KEYS = 100_000
LATENCY_KEYS = 1_000


def fill(connection: Connection, messages: int) -> None:
    """Store messages on keys in random order."""
    rng = random.Random(1)
    for start in range(0, messages, CHUNK):
        count = min(CHUNK, messages - start)
        parts = (publication(b"k.%d" % rng.randrange(KEYS), b"x" * 128, b"ack") for _ in range(count))
        connection.socket.sendall(b"".join(parts))
        connection.skip_acks(count)


def pull(port: int, messages: int, limit: int) -> float:
    """Pull and acknowledge everything; return messages per second."""
    body = json.dumps({"batch": 500, "expires": 5_000_000_000}).encode()
    with Connection(port) as connection, Connection(port) as control:
        config = {"max_ack_pending_per_subject": limit} if limit else {}
        control.consumer("K", "D", ack_policy="explicit", max_ack_pending=5000, **config)
        connection.subscribe(b"pull")
        ask = publication(b"$JS.API.CONSUMER.MSG.NEXT.K.D", body, b"pull")
        started_s = time.perf_counter()
        connection.socket.sendall(ask * 2)
        _acknowledge_all(connection, messages, 500, ask)
        while control.api("CONSUMER.INFO.K.D")["num_ack_pending"]:
            pass
        took_s = time.perf_counter() - started_s
        control.api("CONSUMER.DELETE.K.D")
    return messages / took_s


def latencies(port: int, stuck: int, count: int) -> list[float]:
    """Return the seconds from publish to delivery of messages on other keys; `stuck` messages wait on one key."""
    with Connection(port) as connection, Connection(port) as control:
        control.stream("L", subjects=["l.*"])
        control.consumer(
            "L", "D", ack_policy="explicit", ack_wait=300_000_000_000, max_ack_pending_per_subject=1
        )
        connection.subscribe(b"pull")
        if stuck:
            control.subscribe(b"ack")
            control.socket.sendall(
                b"".join(publication(b"l.stuck", b"x" * 128, b"ack") for _ in range(stuck))
            )
            control.skip_acks(stuck)
        body = json.dumps({"batch": count + 1, "expires": 60_000_000_000}).encode()
        connection.socket.sendall(publication(b"$JS.API.CONSUMER.MSG.NEXT.L.D", body, b"pull"))
        if stuck:
            connection.message()  # never acknowledged
        found = []
        for number in range(count):
            started_s = time.perf_counter()
            connection.socket.sendall(publication(b"l.%d" % (number % LATENCY_KEYS), b"x" * 128))
            _, reply, _, _ = connection.message()
            found.append(time.perf_counter() - started_s)
            connection.socket.sendall(publication(reply, b"+ACK"))
            if stuck and number % 10 == 0:
                connection.socket.sendall(publication(b"l.stuck", b"x" * 128))
        control.api("STREAM.DELETE.L")
    return found


def measure_throughput(port: int, messages: int, rounds: int) -> None:
    with Connection(port) as connection:
        connection.stream("K", subjects=["k.*"])
        connection.subscribe(b"ack")
        fill(connection, messages)
    plain, keyed = [], []
    for limit in (0, 1):
        pull(port, messages, limit)
    for number in range(rounds):
        for limit in (0, 1) if number % 2 else (1, 0):
            (keyed if limit else plain).append(pull(port, messages, limit))
    ratios = [one / other for one, other in zip(keyed, plain, strict=True)]
    print(
        f"plain {statistics.median(plain):,.0f}/s, order per key {statistics.median(keyed):,.0f}/s with {KEYS:,} keys"
    )
    print(f"ratio {statistics.median(ratios):.2f} (rounds: {', '.join(f'{each:.2f}' for each in ratios)})")


def measure_latency(port: int, stuck: int, count: int, rounds: int) -> None:
    free, held = [], []
    latencies(port, 0, count)
    for number in range(rounds):
        for size in (0, stuck) if number % 2 else (stuck, 0):
            found = sorted(latencies(port, size, count))
            (held if size else free).append(found[int(0.99 * count)])
    change = statistics.median(one / other for one, other in zip(held, free, strict=True)) - 1
    print(f"p99 without a stuck key {1e3 * statistics.median(free):.2f} ms, with {stuck:,} messages stuck "
          f"{1e3 * statistics.median(held):.2f} ms: {change:+.1%}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--stuck", type=int, default=20_000)
    parser.add_argument("--count", type=int, default=3_000)
    given = parser.parse_args()
    with closing(Server(COMMANDS["ours"])) as server:
        measure_throughput(server.port, given.messages, given.rounds)
        measure_latency(server.port, given.stuck, given.count, given.rounds)


if __name__ == "__main__":
    main()
