"""Measures the archive: `ack: remote` beside a replicated stream of three nats-servers, and the CPU cost of `ack: local`.

    python bench/archive.py remote [--seconds 5] [--targets seaweed file]
    python bench/archive.py local [--seconds 1] [--rounds 40] [--rate 0]

`remote` publishes 128 bytes with many, 1,000 and 1 messages in flight, first to the cluster (R3, `sync_interval: always`),
then to a server with `ack: remote` for each target. `local` publishes half of what the server can, or at a rate, to a server
with an archive that costs nothing and to one without, in turns, and compares their CPU time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT), str(ROOT / "bench")]

from intervals import estimate  # noqa: E402
from load import Connection  # noqa: E402
from sampling import cpu_s  # noqa: E402

from claims.object_stores import Weed  # noqa: E402
from support.cluster import Cluster  # noqa: E402
from support.processes import Serving, serving  # noqa: E402

PAYLOAD = b"x" * 128
MANY, SOME, ONE = 40_000, 1_000, 1
_ACK = b'"seq":'


class Publisher:
    """Publishes to a stream, with a number of messages in flight; replies arrive in order."""

    def __init__(self, port: int, subject: bytes) -> None:
        self._connection = Connection(port)
        inbox = self._connection.inbox
        self._message = b"PUB %s %s.1 %d\r\n%s\r\n" % (subject, inbox, len(PAYLOAD), PAYLOAD)
        self._sent: deque[tuple[float, int]] = deque()
        self._tail = b""

    def _send(self, count: int) -> None:
        self._sent.append((time.perf_counter(), count))
        self._connection.socket.sendall(self._message * count)

    def _receive(self) -> tuple[int, list[tuple[float, int]]]:
        """Wait for replies; return how many came, and latencies with how many messages had them."""
        data = self._connection.socket.recv(1 << 20)
        assert data, "the server closed the connection"
        now, data = time.perf_counter(), self._tail + data
        assert b'"error"' not in data, data[data.index(b'"error"') :][:200]
        count = left = data.count(_ACK)
        self._tail = data[-len(_ACK) + 1 :]
        found = []
        while left:
            sent_s, waiting = self._sent.popleft()
            taken = min(left, waiting)
            if taken < waiting:
                self._sent.appendleft((sent_s, waiting - taken))
            found.append((now - sent_s, taken))
            left -= taken
        return count, found

    def run(self, in_flight: int, seconds: float) -> dict[str, float]:
        """Return the rate, and quantiles of the latency in milliseconds."""
        start = time.perf_counter()
        done, latencies = 0, []
        self._send(in_flight)
        waiting = in_flight
        while waiting:
            count, found = self._receive()
            done, waiting = done + count, waiting - count
            latencies += found
            if count and time.perf_counter() - start < seconds:
                self._send(count)
                waiting += count
        elapsed = time.perf_counter() - start
        return {
            "rate": done / elapsed,
            "p50": find_quantile(latencies, 0.5),
            "p99": find_quantile(latencies, 0.99),
        }

    def run_paced(self, rate: float, seconds: float) -> int:
        """Publish at a rate; return how many messages were sent."""
        start, sent, done = time.perf_counter(), 0, 0
        while (now := time.perf_counter() - start) < seconds:
            if due := int(now * rate) - sent:
                self._send(due)
                sent += due
            while done < sent:
                done += self._receive()[0]
            time.sleep(0.002)
        return done


def find_quantile(latencies: list[tuple[float, int]], share: float) -> float:
    """Return a quantile in milliseconds of latencies with their numbers."""
    left = share * sum(count for _, count in latencies)
    for latency, count in sorted(latencies):
        left -= count
        if left <= 0:
            return latency * 1e3
    return 0.0


def create_stream(port: int, name: str, replicas: int) -> None:
    config = {"name": name, "subjects": [name], "num_replicas": replicas, "storage": "file"}
    _, payload = Connection(port).request(
        b"$JS.API.STREAM.CREATE." + name.encode(), json.dumps(config).encode()
    )
    assert b'"error"' not in payload, payload


def measure(title: str, port: int, seconds: float) -> float:
    publisher = Publisher(port, b"S")
    publisher.run(SOME, seconds / 4)
    rate = 0.0
    for in_flight in (MANY, SOME, ONE):
        found = publisher.run(in_flight, seconds)
        rate = rate or found["rate"]
        print(
            f"{title:34} {in_flight:6} in flight {found['rate']:10,.0f}/s  p50 {found['p50']:8.2f} ms"
            f"  p99 {found['p99']:8.2f} ms",
            flush=True,
        )
    return rate


@contextlib.contextmanager
def headrace(folder: Path, archive: str, program: tuple[str, ...] = ("-m", "headrace")) -> Iterator[Serving]:
    folder.mkdir()
    config = folder / "server.conf"
    config.write_text(f'jetstream {{ store_dir: "{folder}/data"\n{archive} }}\nhttp: -1\n')
    with serving(folder, "-c", str(config), program=program, may_stall=True) as server:
        yield server


def measure_remote(folder: Path, seconds: float, targets: list[str]) -> None:
    cluster = Cluster(folder / "cluster")
    for node in cluster.nodes:
        config = folder / f"{node.name}.conf"
        config.write_text("jetstream { sync_interval: always }\n")
        node._command += ["-c", str(config)]
    with cluster:
        create_stream(cluster.nodes[0].port, "S", 3)
        base = measure("nats-server R3, sync always", cluster.leader_of("S").port, seconds)
    for target in targets:
        with contextlib.ExitStack() as stack:
            url = f"file://{folder}/archive"
            if target == "seaweed":
                weed = Weed()
                stack.callback(weed.close)
                os.environ["AWS_ACCESS_KEY_ID"] = weed.KEYS["access_key_id"]
                os.environ["AWS_SECRET_ACCESS_KEY"] = weed.KEYS["secret_access_key"]
                os.environ["AWS_ENDPOINT_URL"] = weed.endpoint
                url = "s3://archive-bench/p"
            archive = f'archive {{ url: "{url}", ack: remote }}'
            server = stack.enter_context(headrace(folder / target, archive))
            create_stream(server.port, "S", 1)
            rate = measure(f"headrace, ack: remote, {target}", server.port, seconds)
            print(f"  {rate / base:.1f} times the rate of nats-server R3", flush=True)


def wait_for_base(server: Serving) -> None:
    """Wait until the first base is made: it has what was there before."""
    port = server.log.rpartition("Starting http monitor on ")[2].split()[0].rpartition(":")[2]
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
            if "headrace_archive_bases_total 0" not in response.read().decode():
                return
        time.sleep(0.05)


def measure_cost(server: Serving, publisher: Publisher, rate: float, seconds: float) -> float:
    """Publish at a rate; return the CPU time of the server for each message, in microseconds."""
    before_s = cpu_s(server.process.pid)
    count = publisher.run_paced(rate, seconds)
    return (cpu_s(server.process.pid) - before_s) / count * 1e6


def measure_local(folder: Path, seconds: float, rounds: int, rate: float) -> None:
    """Compare two servers in short rounds; the one that is first alternates."""
    program = (str(ROOT / "bench" / "discarding_archive.py"),)
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(headrace(folder / "plain", "", program))
        archive = f'archive {{ url: "file://{folder}/discarded" }}'
        archived = stack.enter_context(headrace(folder / "archived", archive, program))
        wait_for_base(archived)
        pair = []
        for server in (plain, archived):
            create_stream(server.port, "S", 1)
            pair.append((server, Publisher(server.port, b"S")))
        peaks = [publisher.run(MANY, 3.0)["rate"] for _, publisher in pair]
        rate = rate or peaks[0] / 2
        print(f"{rate:,.0f} messages a second", flush=True)
        costs: tuple[list[float], list[float]] = ([], [])
        for number in range(-1, rounds):  # the first round does not count
            found = [0.0, 0.0]
            for which in (0, 1) if number % 2 else (1, 0):
                found[which] = measure_cost(*pair[which], rate, seconds)
            if number >= 0:
                costs[0].append(found[0])
                costs[1].append(found[1])
        report_costs(*costs)


def report_costs(plain: list[float], archived: list[float]) -> None:
    for name, costs in (("without archive", plain), ("with archive", archived)):
        middle, low, high = statistics.median(costs), min(costs), max(costs)
        print(f"{name:16} {middle:5.2f} us of CPU for each message (median; {low:.2f} to {high:.2f})")
    logs = [math.log(new / old) for old, new in zip(plain, archived, strict=True)]
    found = estimate(logs, 0.95)
    percent = [100 * (each - 1) for each in (found.ratio, found.low, found.high)]
    print("CPU with archive: {:+.1f} % (95 % interval {:+.1f} to {:+.1f})".format(*percent), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=("remote", "local", "all"), nargs="?", default="all")
    parser.add_argument("--seconds", type=float, default=0.0, help="of a run (5) or a round of `local` (1)")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--rate", type=float, default=0.0, help="of `local`; 0: half of what it can")
    parser.add_argument("--targets", nargs="+", choices=("seaweed", "file"), default=["seaweed", "file"])
    arguments = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.part != "local":
            measure_remote(Path(folder), arguments.seconds or 5.0, arguments.targets)
        if arguments.part != "remote":
            measure_local(Path(folder), arguments.seconds or 1.0, arguments.rounds, arguments.rate)
    print(f"load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
