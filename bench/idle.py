"""Measures idle connections: resident memory of each, and how much they slow down a publisher.

    python bench/idle.py [--connections 5000] [--command 'headrace serve -a 127.0.0.1 -p {port}']

The connections have sent CONNECT and PING and have one subscription, like a waiting client. A publisher sends 128-byte
messages to one subscriber, before and after they connect.
"""

from __future__ import annotations

import argparse
import resource
import shlex
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1}\r\n'
OURS = str(Path(sys.executable).with_name("headrace")) + " serve -a 127.0.0.1 -p {port}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def connect(port: int, more: bytes = b"") -> socket.socket:
    """Connect a client and wait for the handshake."""
    client = socket.create_connection(("127.0.0.1", port), timeout=30)
    client.sendall(CONNECT + more + b"PING\r\n")
    seen = b""
    while b"PONG\r\n" not in seen:
        seen += client.recv(8192)
    return client


def wait_for(port: int) -> float:
    """Return the seconds until the server accepts connections."""
    start = time.perf_counter()
    while True:
        try:
            connect(port).close()
            return time.perf_counter() - start
        except OSError:
            time.sleep(0.005)


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def throughput(port: int, count: int) -> float:
    """Return the messages per second to one subscriber."""
    receiver, sender = connect(port, b"SUB idle.x 9\r\n"), connect(port)
    chunk = b"PUB idle.x 128\r\n%s\r\n" % (b"x" * 128) * 1000
    size = len(b"MSG idle.x 9 128\r\n\r\n") + 128
    state = {"bytes": 0}

    def read() -> None:
        while state["bytes"] < count * size:
            state["bytes"] += len(receiver.recv(1 << 20))

    reader = threading.Thread(target=read)
    start = time.perf_counter()
    reader.start()
    for sent in range(0, count, 1000):
        while sent - state["bytes"] // size > 50_000:
            time.sleep(0.0002)
        sender.sendall(chunk)
    reader.join()
    taken = time.perf_counter() - start
    receiver.close()
    sender.close()
    return count / taken


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--connections", type=int, default=5000)
    arguments.add_argument("--messages", type=int, default=2_000_000)
    arguments.add_argument("--rounds", type=int, default=4)
    arguments.add_argument("--command", default=OURS)
    given = arguments.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    port = free_port()
    server = subprocess.Popen(shlex.split(given.command.format(port=port)), stderr=subprocess.DEVNULL)
    try:
        print(f"accepting after {wait_for(port) * 1000:.0f} ms")
        alone = max(throughput(port, given.messages) for _ in range(given.rounds))
        before = rss(server.pid)
        idle = [connect(port, b"SUB _INBOX.%d.* 1\r\n" % i) for i in range(given.connections)]
        after = rss(server.pid)
        each = (after - before) / given.connections / 1024
        print(f"{each:.2f} KiB for each of {given.connections} connections")
        beside = max(throughput(port, given.messages) for _ in range(given.rounds))
        print(
            f"throughput alone {alone:,.0f}/s, with idle connections {beside:,.0f}/s: ratio {beside / alone:.2f}"
        )
        for client in idle:
            client.close()
    finally:
        server.terminate()
        server.wait(10)


if __name__ == "__main__":
    main()
