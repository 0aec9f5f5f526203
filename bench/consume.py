"""Measures `js.consume` beside nats-py's own fetch, and kills the server while it runs.

    python bench/consume.py rate [--messages 100000] [--rounds 5]
    python bench/consume.py kills [--kills 100] [--side ours|peer]

`rate` compares both on the same connection, in turns, with acks. `kills` publishes and consumes while the server is killed
and started again; each acknowledged publish must be consumed, and a message may come twice only as a redelivery.
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

import nats.errors  # noqa: E402
import nats.js.errors  # noqa: E402

from conformance.servers import KINDS, Server  # noqa: E402
from headrace.client import JetStream, connect  # noqa: E402

BATCH = 500


async def fill(js: JetStream, count: int) -> None:
    await js.add_stream(name="S", subjects=["s"], storage="memory")
    for start in range(0, count, BATCH):
        await asyncio.gather(*(js.publish("s", b"x" * 128) for _ in range(min(BATCH, count - start))))


async def fetch_rate(js: JetStream, name: str, count: int) -> float:
    subscription = await js.pull_subscribe("s", durable=name)
    begun, left = time.perf_counter(), count
    while left:
        for message in await subscription.fetch(min(BATCH, left)):
            await message.ack()
            left -= 1
    return count / (time.perf_counter() - begun)


async def consume_rate(js: JetStream, name: str, count: int) -> float:
    async with js.consume("S", name, prefetch=BATCH) as messages:
        begun, left = time.perf_counter(), count
        async for message in messages:
            await message.ack()
            left -= 1
            if not left:
                break
        return count / (time.perf_counter() - begun)


async def measure_rate(count: int, rounds: int) -> None:
    for kind in KINDS:
        with Server(kind) as server:
            async with await connect(server.url) as nc:
                js = nc.jetstream()
                await fill(js, count)
                pairs = []
                for number in range(rounds):
                    fetched = await fetch_rate(js, f"f{number}", count)
                    pairs.append((fetched, await consume_rate(js, f"c{number}", count)))
        fetch, consume = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratio = statistics.median(second / first for first, second in pairs)
        print(f"{kind}: fetch {fetch:,.0f}/s, consume {consume:,.0f}/s, ratio {ratio:.2f}")


class Ledger:
    """What was acknowledged as stored, and how each message came: after which start of the server, and its count there.

    A kill may undo a count, so a count says something only until the next start.
    """

    def __init__(self) -> None:
        self.stored: set[int] = set()
        self.deliveries: dict[int, list[tuple[int, int]]] = {}
        self.starts = 0

    def check(self) -> None:
        lost = self.stored - self.deliveries.keys()
        assert not lost, f"lost: {sorted(lost)[:10]}"
        for number, counts in self.deliveries.items():
            assert len(counts) == len(set(counts)), f"{number} came twice as the same delivery: {counts}"
        repeats = sum(len(counts) - 1 for counts in self.deliveries.values())
        print(f"{len(self.stored):,} stored, {len(self.deliveries):,} consumed, {repeats:,} redelivered")


async def publish_always(js: JetStream, ledger: Ledger, stop: asyncio.Event) -> None:
    number = 0
    while not stop.is_set():
        try:
            await js.publish("s", b"%d" % number, timeout=1)
        except (nats.errors.Error, nats.js.errors.Error):
            await asyncio.sleep(0.02)
            number += 1  # unknown: it may be stored
            continue
        ledger.stored.add(number)
        number += 1


async def consume_all(js: JetStream, ledger: Ledger, stop: asyncio.Event) -> None:
    async with js.consume("S", "worker", prefetch=50, ack_wait=2.0, max_ack_pending=100) as messages:
        async for message in messages:
            delivery = (ledger.starts, message.metadata.num_delivered)
            ledger.deliveries.setdefault(int(message.data), []).append(delivery)
            await message.ack()
            if stop.is_set() and ledger.stored <= ledger.deliveries.keys():
                return


async def ignore_error(error: Exception) -> None:
    """The server is away again and again."""


async def kill_repeatedly(kills: int, kind: str) -> None:
    ledger, stop = Ledger(), asyncio.Event()
    with Server(kind) as server:
        nc = await connect(
            server.url, reconnect_time_wait=0.02, max_reconnect_attempts=-1, error_cb=ignore_error
        )
        js = nc.jetstream()
        await js.add_stream(name="S", subjects=["s"])
        tasks = [asyncio.create_task(run(js, ledger, stop)) for run in (publish_always, consume_all)]
        for number in range(kills):
            await asyncio.sleep(random.uniform(0.05, 1.0))
            server.kill()
            while nc.is_connected:
                await asyncio.sleep(0.001)
            ledger.starts += 1
            await asyncio.to_thread(server.start)
            if number % 10 == 9:
                print(f"{number + 1} kills, {len(ledger.stored):,} stored", flush=True)
        stop.set()
        await js.publish("s", b"-1")
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks)
        await nc.close()
    ledger.check()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["rate", "kills"])
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--side", choices=["ours", "peer"], default="ours")
    arguments = parser.parse_args()
    if arguments.what == "rate":
        asyncio.run(measure_rate(arguments.messages, arguments.rounds))
    else:
        asyncio.run(kill_repeatedly(arguments.kills, KINDS[arguments.side == "peer"]))


if __name__ == "__main__":
    main()
