"""Steps without a stream: messages, queue groups, requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from headrace.demo.steps import TIMEOUT_S, DemoContext, Step

WORKERS, JOBS = 3, 300


async def publish_and_subscribe(context: DemoContext) -> str:
    client = await context.connect()
    messages = await client.subscribe("mill.*.level")
    await client.publish("mill.north.level", b"2.31 m")
    await client.publish("mill.north.flow", b"no subscriber")
    message = await messages.next_msg(TIMEOUT_S)
    assert (message.subject, message.data) == ("mill.north.level", b"2.31 m")
    assert messages.pending_msgs == 0
    await client.close()
    return f"{message.subject}: {message.data.decode()}"


async def share_work(context: DemoContext) -> str:
    workers = [await context.connect() for _ in range(WORKERS)]
    done = [0] * WORKERS
    finished = asyncio.Event()

    def worker(number: int) -> Callable[[Msg], Awaitable[None]]:
        async def work(_: Msg) -> None:
            done[number] += 1
            if sum(done) == JOBS:
                finished.set()

        return work

    for number, client in enumerate(workers):
        await client.subscribe("jobs", queue="workers", cb=worker(number))
        await client.flush()
    for _ in range(JOBS):
        await workers[0].publish("jobs", b"grind")
    await asyncio.wait_for(finished.wait(), TIMEOUT_S)
    for client in workers:
        await client.drain()
    assert sum(done) == JOBS
    return f"{JOBS} jobs, each delivered once, per worker: {' + '.join(map(str, done))}"


async def request_and_reply(context: DemoContext) -> str:
    client = await context.connect()

    async def answer(message: Msg) -> None:
        await message.respond(message.data.upper())

    await client.subscribe("shout", cb=answer)
    reply = await client.request("shout", b"water", timeout=TIMEOUT_S)
    assert reply.data == b"WATER"
    await client.close()
    return "water -> WATER"


async def request_without_responders(context: DemoContext) -> str:
    client = await context.connect()
    started = time.perf_counter()
    try:
        await client.request("nobody.home", b"?", timeout=TIMEOUT_S)
    except NoRespondersError:
        duration_ms = (time.perf_counter() - started) * 1000
    else:
        raise AssertionError("a request without responders should fail at once")
    await client.close()
    return f"failed after {duration_ms:.1f} ms, without waiting for the timeout of {TIMEOUT_S:.0f} s"


async def send_headers(context: DemoContext) -> str:
    client = await context.connect()
    messages = await client.subscribe("letters")
    await client.publish("letters", b"body", headers={"From": "the miller"})
    message = await messages.next_msg(TIMEOUT_S)
    assert message.headers == {"From": "the miller"}
    await client.close()
    return f"From: {message.headers['From']}"


STEPS = (
    Step(
        "Publish and subscribe",
        "a wildcard subscription receives matching subjects only",
        publish_and_subscribe,
    ),
    Step("Queue group", "each message is delivered to one member of the group", share_work),
    Step("Request and reply", "a subscriber replies to requests", request_and_reply),
    Step("No responders", "a request without subscribers fails at once", request_without_responders),
    Step("Headers", "a message can carry headers", send_headers),
)
