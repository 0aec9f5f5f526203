"""Measures `js.publisher` beside nats-py's own ways to publish, and kills the server while it runs.

    python bench/client.py rate [--messages 100000] [--rounds 5] [--size 128]
    python bench/client.py kills [--kills 100] [--side ours|peer] [--single]

`rate` compares on the same connection, in turns: `publisher` with fast-ingest batches and with single messages, both forms
of the synchronous client, and nats-py's `publish_async`. `kills` publishes with message ids while the server is killed and
started again; every message that was reported as stored must be in the stream, once and in order.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

from conformance.servers import KINDS, Server  # noqa: E402
from headrace.client import JetStream, connect, sync  # noqa: E402


async def with_publisher(js: JetStream, stream: str, count: int, payload: bytes) -> None:
    async with js.publisher(stream) as publisher:
        for _ in range(count):
            await publisher.publish(stream, payload)
    assert publisher.stored == count


async def with_sync_publisher(js: JetStream, stream: str, count: int, payload: bytes) -> None:
    def publish() -> None:
        with sync.connect(str(js.connection.connected_url.geturl())) as client:
            with client.publisher(stream) as publisher:
                for _ in range(count):
                    publisher.publish(stream, payload)
            assert publisher.stored == count

    await asyncio.to_thread(publish)


async def with_publish_async(js: JetStream, stream: str, count: int, payload: bytes) -> None:
    for _ in range(count):
        await js.publish_async(stream, payload)
    await js.publish_async_completed()


WAYS = {
    "publisher, fast ingest": (with_publisher, "FAST"),
    "publisher, single messages": (with_publisher, "SINGLE"),
    "sync publisher, fast ingest": (with_sync_publisher, "FAST"),
    "nats-py publish_async": (with_publish_async, "SINGLE"),
}


async def measure_rate(count: int, rounds: int, size: int) -> None:
    payload = b"x" * size
    for kind in KINDS:
        rates: dict[str, list[float]] = {way: [] for way in WAYS}
        with Server(kind) as server:
            async with await connect(server.url) as nc:
                js = nc.jetstream(publish_async_max_pending=4000)
                await js.add_stream(name="FAST", subjects=["FAST"], allow_batched=True, max_msgs=count)
                await js.add_stream(name="SINGLE", subjects=["SINGLE"], max_msgs=count)
                for _ in range(rounds):
                    for way, (run, stream) in WAYS.items():
                        begun = time.perf_counter()
                        await run(js, stream, count, payload)
                        rates[way].append(count / (time.perf_counter() - begun))
        base = statistics.median(rates["nats-py publish_async"])
        for way, found in rates.items():
            rate = statistics.median(found)
            print(f"{kind}: {way:28} {rate:9,.0f}/s, {rate / base:4.1f} x publish_async", flush=True)


async def ignore_error(error: Exception) -> None:
    """The server is away again and again."""


async def read_numbers(js: JetStream) -> list[int]:
    count = (await js.stream_info("S")).state.messages
    numbers: list[int] = []
    async with js.consume("S", ack_policy="none") as messages, asyncio.timeout(120):
        while len(numbers) < count:
            numbers.append(int((await anext(messages)).data))
    return numbers


def check(numbers: list[int], count: int) -> None:
    lost = sorted(set(range(count)) - set(numbers))
    assert not lost, f"lost: {lost[:10]}"
    assert len(numbers) == count, f"{len(numbers) - count} stored twice"
    wrong = next((place for place, number in enumerate(numbers) if place != number), None)
    assert wrong is None, f"out of order: {numbers[wrong - 5 : wrong + 10]}"


async def kill_repeatedly(kills: int, kind: str, *, fast: bool) -> None:
    with Server(kind) as server:
        nc = await connect(
            server.url, reconnect_time_wait=0.02, max_reconnect_attempts=-1, error_cb=ignore_error
        )
        js = nc.jetstream()
        await js.add_stream(name="S", subjects=["s"], allow_batched=fast or None, duplicate_window=600)
        number = 0
        async with js.publisher("S", max_pending=500, timeout=60) as publisher:
            for kill in range(kills):
                until = time.monotonic() + random.uniform(0.05, 1.0)
                while time.monotonic() < until:
                    await publisher.publish("s", b"%d" % number, msg_id=str(number))
                    number += 1
                    if number % 50 == 0:
                        await asyncio.sleep(0.005)
                server.kill()
                await asyncio.to_thread(server.start)
                if kill % 10 == 9:
                    print(f"{kill + 1} kills, {publisher.stored:,} stored", flush=True)
        numbers = await read_numbers(js)
        await nc.close()
    assert publisher.stored == number, (publisher.stored, number)
    check(numbers, number)
    print(f"{number:,} stored once and in order")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["rate", "kills"])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--side", choices=["ours", "peer"], default="ours")
    parser.add_argument("--single", action="store_true", help="a stream without fast ingest")
    arguments = parser.parse_args()
    if arguments.what == "rate":
        asyncio.run(measure_rate(arguments.messages, arguments.rounds, arguments.size))
    else:
        side = KINDS[arguments.side == "peer"]
        asyncio.run(kill_repeatedly(arguments.kills, side, fast=not arguments.single))


if __name__ == "__main__":
    main()
