"""Measures `js.consume` beside nats-py's own fetch and beside raw pulls, and kills the server while it runs.

    python bench/consume.py rate [--messages 100000] [--rounds 5]
    python bench/consume.py kills [--kills 100] [--side ours|peer]

`rate` compares the three on the same connection, in turns, with acks. Raw pulls are requests and a callback of nats-py
without anything else: what a program would write that needs no reconnects, heartbeats or limits. `kills` publishes and
consumes while the server is killed and started again; each acknowledged publish must be consumed, and a message may come
twice only as a redelivery.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

import nats.errors  # noqa: E402
import nats.js.errors  # noqa: E402
from nats.aio.msg import Msg  # noqa: E402

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


async def raw_rate(js: JetStream, name: str, count: int) -> float:
    """Keep up to BATCH messages requested, and acknowledge each, with the plain connection."""
    await js.add_consumer("S", durable_name=name, ack_policy="explicit")
    nc, inbox, half = js.connection, js.connection.new_inbox(), BATCH // 2
    subject = f"{js.api_prefix}.CONSUMER.MSG.NEXT.S.{name}"
    request = json.dumps({"batch": half, "expires": 30 * 10**9}).encode()
    received, finished = 0, asyncio.Event()

    async def on_message(message: Msg) -> None:
        nonlocal received
        if received % half == 0:  # the next half is on its way while this one is handled
            await nc.publish(subject, request, reply=inbox)
        await message.ack()
        received += 1
        if received == count:
            finished.set()

    subscription = await nc.subscribe(inbox, cb=on_message, pending_msgs_limit=-1, pending_bytes_limit=-1)
    begun = time.perf_counter()
    await nc.publish(subject, request, reply=inbox)
    await finished.wait()
    rate = count / (time.perf_counter() - begun)
    await subscription.unsubscribe()
    return rate


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
                rounds_of = [await measure_round(js, number, count) for number in range(rounds)]
        fetch, raw, consume = (statistics.median(each) for each in zip(*rounds_of, strict=True))
        to_fetch = statistics.median(third / first for first, _, third in rounds_of)
        to_raw = statistics.median(third / second for _, second, third in rounds_of)
        print(
            f"{kind}: fetch {fetch:,.0f}/s, raw pull {raw:,.0f}/s, consume {consume:,.0f}/s; "
            f"consume / fetch {to_fetch:.2f}, consume / raw pull {to_raw:.2f}"
        )


async def measure_round(js: JetStream, number: int, count: int) -> tuple[float, float, float]:
    """Return the rates of fetch, raw pulls and consume."""
    return (
        await fetch_rate(js, f"f{number}", count),
        await raw_rate(js, f"r{number}", count),
        await consume_rate(js, f"c{number}", count),
    )


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
