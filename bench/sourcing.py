"""Measures how fast streams are copied within a server and across a leafnode connection, with Headrace ("ours") and
nats-server in one run.

    sourcing.py [--messages 100000] [--size 128] [--rounds 3] [--json FILE]

Rows: a mirror that catches up with a full stream on the same server; sources that catch up with an ephemeral and with a
durable consumer (ours: server-managed; flow-control replies acknowledge messages, so the ratio shows the cost of
durability); a mirror across a leafnode connection, for each combination of servers. The best round of each counts.

Rates are messages per second. The CPU time per message in the servers, in microseconds, is more reliable on a busy
machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from load import Connection
from workloads import CHUNK, publish

BIN = Path(sys.executable).parent
KINDS = {"ours": [sys.executable, "-m", "headrace", "serve"], "peer": [str(BIN / "nats-server")]}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Figures(NamedTuple):
    """Messages per second, and CPU microseconds per message in all servers involved."""

    rate: float
    cpu_us: float


class Running(NamedTuple):
    port: int
    pid: int

    def cpu_s(self) -> float:
        """Return the CPU time that the process has used so far."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def server(kind: str, domain: str, leafnodes: str = "") -> Iterator[Running]:
    """Run a server in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="sourcing-") as folder:
        port, path = free_port(), Path(folder)
        (path / "server.conf").write_text(
            f"server_name: {domain}\njetstream {{ domain: {domain}, store_dir: '{folder}/store' }}\n{leafnodes}\n"
        )
        with (path / "log").open("wb") as log:
            command = [*KINDS[kind], "-a", "127.0.0.1", "-p", str(port), "-c", f"{folder}/server.conf"]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait(port, process)
            yield Running(port, process.pid)
        finally:
            process.terminate()
            process.wait(20)


def wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            Connection(port).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the server did not start") from None
            time.sleep(0.02)


def copied(servers: list[Running], messages: int, **config: Any) -> Figures:
    """Create a stream on the last server and wait until it has everything; timing starts with the first copy."""
    with Connection(servers[-1].port) as connection:
        before = sum(each.cpu_s() for each in servers)
        start = begun = time.perf_counter()
        connection.api("STREAM.CREATE.C", {"name": "C", **config})
        have = first = 0
        while have < messages:
            time.sleep(0.005)
            have = connection.api("STREAM.INFO.C")["state"]["messages"]
            if not first and have:
                first, begun = have, time.perf_counter()
            if time.perf_counter() - start > 120:
                raise AssertionError(f"{have} of {messages} copied after two minutes")
        done = time.perf_counter()
        cpu_us = 1e6 * (sum(each.cpu_s() for each in servers) - before) / messages
        connection.api("STREAM.DELETE.C")
        rate = messages / (done - start) if first == messages else (messages - first) / (done - begun)
        return Figures(rate, cpu_us)


def best(rounds: int, servers: list[Running], messages: int, **config: Any) -> Figures:
    found = [copied(servers, messages, **config) for _ in range(rounds)]
    return Figures(max(each.rate for each in found), min(each.cpu_us for each in found))


def within(kind: str, messages: int, size: int, rounds: int) -> dict[str, Figures]:
    """Measure copies on one server."""
    with server(kind, "ONE") as one:
        publish(one.port, messages // CHUNK, size)
        rows = {"mirror": best(rounds, [one], messages, mirror={"name": "B"})}
        rows["source"] = best(rounds, [one], messages, sources=[{"name": "B"}])
        if kind == "ours":
            durable = {"name": "B", "consumer": {"name": "D", "server_managed": True}}
            rows["durable"] = best(rounds, [one], messages, sources=[durable])
        return rows


def across(origin: str, copy: str, messages: int, size: int, rounds: int) -> Figures:
    """Measure a mirror on a server that connects to the upstream's server as a leafnode."""
    port = free_port()
    with (
        server(origin, "UP", f"leafnodes {{ listen: '127.0.0.1:{port}' }}") as upper,
        server(
            copy, "DOWN", f"leafnodes {{ remotes: [ {{ url: 'nats-leaf://127.0.0.1:{port}' }} ] }}"
        ) as lower,
    ):
        publish(upper.port, messages // CHUNK, size)
        mirror = {"name": "B", "external": {"api": "$JS.UP.API", "deliver": ""}}
        return best(rounds, [upper, lower], messages, mirror=mirror)


def row(name: str, ours: Figures, peer: Figures) -> dict[str, float]:
    ratios = {"rate": ours.rate / peer.rate, "cpu": peer.cpu_us / max(ours.cpu_us, 0.01)}
    print(
        f"{name:28} {ours.rate:10,.0f} {peer.rate:10,.0f} {ratios['rate']:6.2f}"
        f"   {ours.cpu_us:6.2f} us {peer.cpu_us:6.2f} us {ratios['cpu']:6.2f}",
        flush=True,
    )
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    args = parser.parse_args()
    shape = (args.messages, args.size, args.rounds)
    print(
        f"{args.messages} messages of {args.size} bytes, best of {args.rounds}, load {os.getloadavg()[0]:.1f}"
    )
    print(f"{'':28} {'ours':>10} {'peer':>10} {'ratio':>6}   {'CPU ours':>9} {'peer':>9} {'ratio':>6}")
    ours, peer = within("ours", *shape), within("peer", *shape)
    rows = {name: row(name, ours[name], peer[name]) for name in ("mirror", "source")}
    rows["durable"] = row("durable / ephemeral", ours["durable"], ours["source"])
    base = across("peer", "peer", *shape)
    for origin, copy in (("ours", "ours"), ("ours", "peer"), ("peer", "ours")):
        rows[f"leaf_{origin}_{copy}"] = row(
            f"leafnode, {origin} to {copy}", across(origin, copy, *shape), base
        )
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
