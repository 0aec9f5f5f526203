"""How fast streams are copied: within a server and across a leafnode connection, ours and nats-server in one run.

    sourcing.py [--messages 100000] [--size 128] [--rounds 3] [--json FILE]

Rows: a mirror that catches up with a full stream on the same server; sources that catch up by an ephemeral and by a
durable consumer (ours: server-managed; what acknowledges is the answer to flow control, so the ratio says what being
durable costs); a mirror across a leafnode connection, for each pairing of origin and copy. Best round of each.
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
from typing import Any

from load import Connection
from workloads import CHUNK, publish

BIN = Path(sys.executable).parent
KINDS = {"ours": [sys.executable, "-m", "headrace", "serve"], "peer": [str(BIN / "nats-server")]}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def server(kind: str, domain: str, leafnodes: str = "") -> Iterator[int]:
    """A server in a temporary folder; its port."""
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
            yield port
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


def copied(port: int, messages: int, **config: Any) -> float:
    """Messages a second at which a new stream gets everything; the time begins with the first copy."""
    with Connection(port) as connection:
        connection.api("STREAM.CREATE.C", {"name": "C", **config})
        start = begun = time.perf_counter()
        have = first = 0
        while have < messages:
            time.sleep(0.002)
            have = connection.api("STREAM.INFO.C")["state"]["messages"]
            if not first and have:
                first, begun = have, time.perf_counter()
            if time.perf_counter() - start > 120:
                raise AssertionError(f"{have} of {messages} copied after two minutes")
        seconds = time.perf_counter() - begun
        connection.api("STREAM.DELETE.C")
        return (messages - first) / seconds if first < messages else messages / (time.perf_counter() - start)


def best(rounds: int, measure: Any, *arguments: Any, **config: Any) -> float:
    return max(measure(*arguments, **config) for _ in range(rounds))


def within(kind: str, messages: int, size: int, rounds: int) -> dict[str, float]:
    """Copies on one server."""
    with server(kind, "ONE") as port:
        publish(port, messages // CHUNK, size)
        rows = {"mirror": best(rounds, copied, port, messages, mirror={"name": "B"})}
        rows["source"] = best(rounds, copied, port, messages, sources=[{"name": "B"}])
        if kind == "ours":
            durable = {"name": "B", "consumer": {"name": "D", "server_managed": True}}
            rows["source_durable"] = best(rounds, copied, port, messages, sources=[durable])
        return rows


def across(origin: str, copy: str, messages: int, size: int, rounds: int) -> float:
    """A mirror on a server that dialled the origin's."""
    port = free_port()
    with (
        server(origin, "UP", f"leafnodes {{ listen: '127.0.0.1:{port}' }}") as upper,
        server(
            copy, "DOWN", f"leafnodes {{ remotes: [ {{ url: 'nats-leaf://127.0.0.1:{port}' }} ] }}"
        ) as lower,
    ):
        publish(upper, messages // CHUNK, size)
        mirror = {"name": "B", "external": {"api": "$JS.UP.API", "deliver": ""}}
        return best(rounds, copied, lower, messages, mirror=mirror)


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
    ours, peer = within("ours", *shape), within("peer", *shape)
    rows: dict[str, float] = {}
    for name in ("mirror", "source"):
        rows[name] = ours[name] / peer[name]
        print(f"{name:28} {ours[name]:12,.0f} {peer[name]:12,.0f} {rows[name]:6.2f}")
    rows["durable"] = ours["source_durable"] / ours["source"]
    print(
        f"{'durable : ephemeral source':28} {ours['source_durable']:12,.0f} {ours['source']:12,.0f} {rows['durable']:6.2f}"
    )
    base = across("peer", "peer", *shape)
    for origin, copy in (("ours", "ours"), ("ours", "peer"), ("peer", "ours")):
        rate = across(origin, copy, *shape)
        rows[f"leaf_{origin}_{copy}"] = rate / base
        print(f"{f'leafnode, {origin} to {copy}':28} {rate:12,.0f} {base:12,.0f} {rate / base:6.2f}")
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
