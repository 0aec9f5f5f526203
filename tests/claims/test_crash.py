"""Processes that are killed at any moment: nothing is lost, and nothing stays forever."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from typing import Any

import pytest

from claims.claims_harness import ClaimsHarness
from headrace.claims import PRESETS, Received, SystemClock

PROGRAM = """
import asyncio, json, sys
import nats
from headrace.claims import PRESETS, ClaimConfig, Claims

facts = json.loads(sys.argv[1])

def payload(number):
    return (b"%08d" % number) * 12_500

async def produce(claims):
    for number in range(facts["first"], facts["first"] + 500):
        await claims.producer.publish(facts["stream"] + ".a", payload(number), msg_id=f"m{number}")
        print(number, flush=True)

async def consume(claims):
    async def hand_over(received):
        number = int(received.data[:8])
        assert received.data == payload(number)
        print(number, flush=True)
    while True:
        # What is there and no waiting for more: a server with virtual time would never end such a request.
        for message in await claims.jetstream.pull(facts["stream"], "c", 5):
            await claims.consumer.handle(message, hand_over)
        await asyncio.sleep(0.01)

async def main():
    connection = await nats.connect(facts["url"], connect_timeout=60)
    store = {"path": facts["folder"], "sync": False}
    config = ClaimConfig(facts["namespace"], threshold=65536, ttl=PRESETS["aggressive"], store=store)
    claims = Claims(connection, config, timeout_s=60)
    await {"produce": produce, "consume": consume}[facts["role"]](claims)

asyncio.run(main())
"""


async def killed(
    world: ClaimsHarness, stream: str, role: str, first: int, after_s: float, signs: int = 1
) -> list[int]:
    """Run a program and kill it this long after its first output; return the numbers that it printed."""
    facts = {
        "url": world.url,
        "folder": str(world.folder),
        "namespace": world.name,
        "stream": stream,
        "role": role,
        "first": first,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        json.dumps(facts),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout
    begun = b""
    try:
        async with asyncio.timeout(150):
            for _ in range(signs):
                begun += await process.stdout.readline()
        await asyncio.sleep(after_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    rest, complaint = await process.communicate()
    assert b"Traceback" not in complaint, complaint.decode()
    lines = (begun + rest).split(b"\n")[:-1]  # an incomplete last line does not count
    return [int(line) for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(600)  # four programs start one after the other
async def test_killed_producers_and_consumers_lose_nothing_and_leave_nothing(world: ClaimsHarness) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    claims = await world.claims(ttl=PRESETS["aggressive"])
    stream = await world.stream()
    await world.consumer(stream, "c", ack_wait=10**9)
    sent, handed = 0, set()
    for _ in range(2):
        # The first message may already be read: the previous program may have published it without printing its
        # number. The second is new, so the reader finds at least one message whatever a killed reader holds.
        told = await killed(world, stream, "produce", sent, chance.uniform(0.0, 0.15), signs=2)
        sent = told[-1] + 1  # the next program retries what this one did not report
        handed |= set(await killed(world, stream, "consume", 0, chance.uniform(0.0, 0.1)))
    # The programs use the machine's clock; a server with virtual time may be hours ahead.
    reader = await world.claims(ttl=PRESETS["aggressive"], clock=SystemClock())
    await reader.producer.publish(f"{stream}.a", (b"%08d" % sent) * 12_500, msg_id=f"m{sent}")
    await _drain(world, reader, stream, handed)
    assert handed == set(range(sent + 1)), f"seed {seed}"
    await world.advance(3 * 3600)
    await claims.collector.collect()
    left = [info.key async for page in claims.store.list(f"{world.name}/") for info in page]
    assert left == [], f"seed {seed}"
    assert [entry async for page in claims.registry.scan(world.name) for entry in page] == []


async def _drain(world: ClaimsHarness, claims: Any, stream: str, handed: set[int]) -> None:
    """Read until the consumer has no message left."""

    async def hand_over(received: Received) -> None:
        handed.add(int(received.data[:8]))

    async with asyncio.timeout(120):
        while True:
            await world.advance(2)  # messages of a killed reader are delivered again
            for message in await claims.jetstream.pull(stream, "c", 50):
                await claims.consumer.handle(message, hand_over)
            info = await world.wire.api_request(f"CONSUMER.INFO.{stream}.c")
            if not info["num_pending"] and not info["num_ack_pending"]:
                return
            await asyncio.sleep(0.02)
