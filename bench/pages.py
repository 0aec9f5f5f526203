#!/usr/bin/env python3
"""Measures how fast the web page's data arrives on a large server: `bench/pages.py [--streams 10000] [--consumers 10000]`.

Each request of the page, and `/metrics`, is made again and again; meanwhile another client pings. The table has the
median and the longest response time, and the longest time that a ping waited, in milliseconds. The goals are
50 ms for a response and 10 ms for a turn of the event loop, which a ping waits for at most once.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time

from load import Connection
from perf import COMMANDS, Server
from stalls_data import Client, fill

PAGES = (
    "/headrace/summary",
    "/headrace/overview",
    "/headrace/history",
    "/headrace/streams",
    "/headrace/streams?sort=-messages&offset=5000",
    "/headrace/streams?search=S99",
    "/headrace/streams?search=nothing",
    "/headrace/stream?stream=S77",
    "/headrace/consumers",
    "/headrace/consumers?sort=-pending&offset=5000",
    "/headrace/consumers?search=c77",
    "/headrace/consumers?search=nothing",
    "/headrace/consumer?stream=S77&name=c77",
    "/headrace/dead_letters",
    "/headrace/connections",
    "/headrace/route?subject=S77.x",
    "/headrace/messages?stream=BIG",
    "/headrace/search?stream=BIG&text=nothing",
    "/headrace/subjects?stream=BIG",
    "/headrace/subjects?stream=BIG&subject=BIG.k.99",
    "/varz",
    "/healthz",
    "/metrics",
)
GOAL_RESPONSE_S, GOAL_PING_S = 0.050, 0.020


def ping(port: int, longest_s: multiprocessing.Value, stop: multiprocessing.Event) -> None:
    """Ping until stopped; `longest_s` has the longest wait since it was set to 0."""
    connection = Connection(port)
    while not stop.is_set():
        start_s = time.perf_counter()
        connection.socket.sendall(b"PING\r\n")
        while connection.line() != b"PONG":
            pass
        longest_s.value = max(longest_s.value, time.perf_counter() - start_s)
        time.sleep(0.0005)


def prepare(client: Client, streams: int, consumers: int, subjects: int) -> None:
    for number in range(streams):
        client.stream(f"S{number}", storage="memory")
    for number in range(consumers):
        client.consumer(f"S{number % streams}", f"c{number}", ack_policy="explicit", mem_storage=True)
    client.stream("BIG")
    fill(client, [b"BIG.k.%d" % number for number in range(subjects)])


def measure(client: Client, path: str, rounds: int) -> list[float]:
    found = []
    for _ in range(rounds):
        start_s = time.perf_counter()
        client.get_page(path)
        found.append(time.perf_counter() - start_s)
        time.sleep(0.01)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--consumers", type=int, default=10_000)
    parser.add_argument("--subjects", type=int, default=100_000, help="of one more stream")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    server = Server(COMMANDS["ours"] + " -m {http}")
    longest_s, stop = multiprocessing.Value("d", 0.0), multiprocessing.Event()
    beside = multiprocessing.Process(target=ping, args=(server.port, longest_s, stop))
    try:
        client = Client(server)
        prepare(client, options.streams, options.consumers, options.subjects)
        beside.start()
        time.sleep(1)
        print(f"{'page':58} {'median':>8} {'longest':>8} {'ping':>8}   (ms)")
        for path in PAGES:
            client.get_page(path)
            longest_s.value = 0.0
            found = measure(client, path, options.rounds)
            missed = max(found) > GOAL_RESPONSE_S or longest_s.value > GOAL_PING_S
            figures = (
                f"{statistics.median(found) * 1e3:8.1f} {max(found) * 1e3:8.1f} {longest_s.value * 1e3:8.1f}"
            )
            print(f"{path:58} {figures}{'  *' if missed else ''}", flush=True)
    finally:
        stop.set()
        if beside.pid is not None:
            beside.join()
        stalls = [line for line in server.read_log().decode().splitlines() if "All clients waited" in line]
        server.close()
    print(*stalls, sep="\n")


if __name__ == "__main__":
    main()
