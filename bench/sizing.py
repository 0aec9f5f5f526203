"""Measures the memory and disk space of a server per message, subject, stream, consumer and subscription.

    python bench/sizing.py [--messages 1000000] [--subjects 200000] [--objects 1000]

Each row starts a new server on an empty directory. Memory is the resident set of the server process after the change
minus that before it; disk is the size of the files after a clean shutdown, by folder.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nats

PAYLOAD = b"x" * 128


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def disk_bytes(folder: Path, name: str) -> int:
    """Return the size of the files below the folders of this name."""
    files = (path for found in folder.rglob(name) if found.is_dir() for path in found.rglob("*"))
    return sum(path.stat().st_blocks * 512 for path in files if path.is_file())


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[tuple[int, int]]:
    """Run a server; yield its process id and its port. It is stopped cleanly at the end."""
    port = free_port()
    command = [sys.executable, "-m", "headrace", "serve", "-p", str(port), *flags]
    process = subprocess.Popen(command, stderr=(folder / "log").open("wb"))
    try:
        for _ in range(500):
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.02)
        yield process.pid, port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


async def settle(pid: int) -> int:
    """Return the resident set once it has not changed by more than 1 % for a second."""
    last = 0
    for _ in range(30):
        await asyncio.sleep(1)
        now = rss(pid)
        if abs(now - last) * 100 < now:
            return now
        last = now
    return last


async def publish(client: nats.NATS, subjects: Iterator[str]) -> None:
    """Publish a message of 128 bytes to each subject, and wait until the stream has them all."""
    host, port = client.connected_url.hostname, client.connected_url.port
    reader, writer = await asyncio.open_connection(host, port)
    await reader.readline()
    writer.write(b'CONNECT {"verbose":false}\r\n')
    count = 0
    for subject in subjects:
        writer.write(b"PUB %s 128\r\n%s\r\n" % (subject.encode(), PAYLOAD))
        count += 1
        if count % 1000 == 0:
            await writer.drain()
    await writer.drain()
    while (await client.jetstream().stream_info("M")).state.messages < count:
        await asyncio.sleep(0.1)
    writer.close()


async def messages(client: nats.NATS, count: int) -> None:
    await publish(client, ("m.one" for _ in range(count)))


async def subjects(client: nats.NATS, count: int) -> None:
    await publish(client, (f"m.{number:09}" for number in range(count)))


async def streams(client: nats.NATS, count: int) -> None:
    for number in range(count):
        await client.jetstream().add_stream(name=f"S{number}", subjects=[f"s.{number}"])


async def consumers(client: nats.NATS, count: int) -> None:
    for number in range(count):
        await client.jetstream().add_consumer("M", durable_name=f"C{number}", ack_policy="explicit")


async def subscriptions(client: nats.NATS, count: int) -> None:
    for number in range(count):
        await client.subscribe(f"x.{number}")
    await client.flush()


async def measure(name: str, act: Callable[[nats.NATS, int], Awaitable[None]], count: int) -> None:
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as root:
        folder = Path(root)
        with serving(folder, "-js", "-sd", str(folder / "data")) as (pid, port):
            client = await nats.connect(f"nats://127.0.0.1:{port}", pending_size=1 << 26)
            await client.jetstream().add_stream(name="M", subjects=["m.>"])
            before = await settle(pid)
            await act(client, count)
            after = await settle(pid)
            await client.close()
        disk = {name: disk_bytes(folder / "data", name) for name in ("streams", "journal", "checkpoints")}
    print(
        f"{name}: {count:,}; memory {before / 2**20:.1f} to {after / 2**20:.1f} MiB,"
        f" {(after - before) / count:,.0f} bytes each; disk: "
        + ", ".join(
            f"{kind} {size / 2**20:.1f} MiB ({size / count:,.0f} each)" for kind, size in disk.items()
        ),
        flush=True,
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--subjects", type=int, default=200_000)
    parser.add_argument("--objects", type=int, default=1000, help="number of streams and consumers")
    args = parser.parse_args()
    for flags in ((), ("-js",)):
        with tempfile.TemporaryDirectory() as root:
            where = ["-sd", root] if flags else []
            with serving(Path(root), *flags, *where) as (pid, _):
                print(f"idle server {' '.join(flags)}: {await settle(pid) / 2**20:.1f} MiB", flush=True)
    await measure("streams", streams, args.objects)
    await measure("consumers", consumers, args.objects)
    await measure("subscriptions", subscriptions, 20 * args.objects)
    await measure("subjects", subjects, args.subjects)
    for count in (args.messages // 10, args.messages):
        await measure("messages", messages, count)


asyncio.run(main())
