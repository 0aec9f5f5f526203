"""Measures a million messages that expire within one second: the rate of removal, and a publisher's latency meanwhile.

    python bench/expiry.py [--messages 1000000]

Messages get a `Nats-TTL` such that all expire in the same second. The rate, from the first removal to the last, is
computed from the stream's state; another connection measures the latency of one publish after another.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PORT = 4622
LIFE_S = 25


class Peer:
    """A client on a raw socket."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")
        self.file.readline()
        self.inbox = b"_B.%d" % id(self)
        self.socket.sendall(b'CONNECT {"verbose":false,"headers":true}\r\nSUB %s 1\r\nPING\r\n' % self.inbox)
        while self.file.readline() != b"PONG\r\n":
            pass

    def request(self, subject: bytes, body: bytes = b"") -> bytes:
        self.socket.sendall(b"PUB %s %s %d\r\n%s\r\n" % (subject, self.inbox, len(body), body))
        return self.answer()

    def answer(self) -> bytes:
        while True:
            line = self.file.readline()
            if line.startswith(b"PING"):
                self.socket.sendall(b"PONG\r\n")
            elif line.startswith(b"MSG"):
                return self.file.read(int(line.split()[-1]) + 2)[:-2]

    def state(self) -> dict[str, int]:
        found: dict[str, int] = json.loads(self.request(b"$JS.API.STREAM.INFO.T"))["state"]
        return found


def fill(peer: Peer, count: int, started: float) -> None:
    """Publish in chunks, each with the TTL that makes it expire together with all others."""
    sent = 0
    while sent < count:
        left = LIFE_S - int(time.monotonic() - started)
        block = b"NATS/1.0\r\nNats-TTL: %d\r\n\r\n" % left
        head = b"HPUB t.%%d %d %d\r\n%b%b\r\n" % (
            len(block),
            len(block) + 64,
            block.replace(b"%", b"%%"),
            b"x" * 64,
        )
        peer.socket.sendall(b"".join(head % (i % 1000) for i in range(5000)))
        sent += 5000
    while peer.state()["messages"] < count:
        time.sleep(0.05)


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def measure(port: int, pid: int, count: int) -> None:
    peer, other = Peer(port), Peer(port)
    for name in (b"T", b"O"):
        config = {"name": name.decode(), "subjects": [name.decode().lower() + ".>"], "allow_msg_ttl": True}
        peer.request(b"$JS.API.STREAM.CREATE." + name, json.dumps(config).encode())
    started = time.monotonic()
    fill(peer, count, started)
    print(f"stored {count:,} in {time.monotonic() - started:.1f} s, server at {rss(pid) >> 20} MiB")
    quiet = [timed(other) for _ in range(500)]
    while time.monotonic() < started + LIFE_S - 1.2:
        time.sleep(0.05)
    busy, first, last, left = [], 0.0, 0.0, count
    while left:
        busy += [timed(other) for _ in range(20)]
        left, now = peer.state()["messages"], time.monotonic()
        first = first or (now if left < count else 0.0)
        last = now
    rate = count / max(last - first, 1e-9)
    print(f"expired at {rate:,.0f}/s; publish p50/p99 ms: before {shown(quiet)}, during expiry {shown(busy)}")


def timed(peer: Peer) -> float:
    started = time.perf_counter()
    peer.request(b"o.a", b"x")
    return (time.perf_counter() - started) * 1000


def shown(values: list[float]) -> str:
    return f"{statistics.median(values):.2f}/{sorted(values)[int(len(values) * 0.99)]:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "headrace",
            "serve",
            "-a",
            "127.0.0.1",
            "-p",
            str(PORT),
            "-js",
            "-sd",
            folder,
        ]
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                try:
                    Peer(PORT).socket.close()
                    break
                except OSError:
                    time.sleep(0.05)
            measure(PORT, server.pid, options.messages)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
