"""Steps without a stream: messages, groups, questions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from nats.aio.msg import Msg
from nats.errors import NoRespondersError

from headrace.demo.story import PATIENCE_S, Stage, Step

WORKERS, JOBS = 3, 300


async def publish_and_subscribe(stage: Stage) -> str:
    client = await stage.connect()
    messages = await client.subscribe("mill.*.level")
    await client.publish("mill.north.level", b"2.31 m")
    await client.publish("mill.north.flow", b"not asked for")
    message = await messages.next_msg(PATIENCE_S)
    assert (message.subject, message.data) == ("mill.north.level", b"2.31 m")
    assert messages.pending_msgs == 0
    await client.close()
    return f"{message.subject}: {message.data.decode()}"


async def share_work(stage: Stage) -> str:
    workers = [await stage.connect() for _ in range(WORKERS)]
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
    await asyncio.wait_for(finished.wait(), PATIENCE_S)
    for client in workers:
        await client.drain()
    assert sum(done) == JOBS
    return f"{JOBS} jobs, each done once: {' + '.join(map(str, done))}"


async def ask_and_answer(stage: Stage) -> str:
    client = await stage.connect()

    async def answer(message: Msg) -> None:
        await message.respond(message.data.upper())

    await client.subscribe("shout", cb=answer)
    reply = await client.request("shout", b"water", timeout=PATIENCE_S)
    assert reply.data == b"WATER"
    await client.close()
    return "water -> WATER"


async def nobody_answers(stage: Stage) -> str:
    client = await stage.connect()
    started = time.perf_counter()
    try:
        await client.request("nobody.home", b"?", timeout=PATIENCE_S)
    except NoRespondersError:
        took_ms = (time.perf_counter() - started) * 1000
    else:
        raise AssertionError("a request without anybody to answer should fail at once")
    await client.close()
    return f"told after {took_ms:.1f} ms instead of waiting {PATIENCE_S:.0f} s"


async def headers_travel(stage: Stage) -> str:
    client = await stage.connect()
    messages = await client.subscribe("letters")
    await client.publish("letters", b"body", headers={"From": "the miller"})
    message = await messages.next_msg(PATIENCE_S)
    assert message.headers == {"From": "the miller"}
    await client.close()
    return f"From: {message.headers['From']}"


STEPS = (
    Step(
        "Publish and subscribe", "a wildcard picks what it matches, and nothing else", publish_and_subscribe
    ),
    Step("A queue group", "work is shared: each message goes to one of many", share_work),
    Step("Request and reply", "a service is a subscription that answers", ask_and_answer),
    Step("No responders", "a question nobody hears fails at once", nobody_answers),
    Step("Headers", "facts about a message travel beside it", headers_travel),
)
