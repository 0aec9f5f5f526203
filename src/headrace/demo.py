"""`make demo`: the story of Headrace in a few steps, each shown, and checked.

Starts a broker on a free port, acts on it with the standard client, and ends with a table; a step that does
not do what it says makes the exit code 1.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from rich.console import Console
from rich.table import Table

from headrace import COMPATIBLE_VERSION, __version__
from headrace.server import Server

PATIENCE_S = 5.0
WORKERS, JOBS = 3, 300


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to see: what it shows, and the act, which returns what was seen or fails an assertion."""

    title: str
    shows: str
    act: Callable[[Server], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Outcome:
    step: Step
    ok: bool
    seen: str
    took_s: float


async def connect(server: Server) -> Client:
    return await nats.connect(server.url, connect_timeout=PATIENCE_S)


async def publish_and_subscribe(server: Server) -> str:
    client = await connect(server)
    messages = await client.subscribe("mill.*.level")
    await client.publish("mill.north.level", b"2.31 m")
    await client.publish("mill.north.flow", b"not asked for")
    message = await messages.next_msg(PATIENCE_S)
    assert (message.subject, message.data) == ("mill.north.level", b"2.31 m")
    assert messages.pending_msgs == 0
    await client.close()
    return f"{message.subject}: {message.data.decode()}"


async def share_work(server: Server) -> str:
    workers = [await connect(server) for _ in range(WORKERS)]
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


async def ask_and_answer(server: Server) -> str:
    client = await connect(server)

    async def answer(message: Msg) -> None:
        await message.respond(message.data.upper())

    await client.subscribe("shout", cb=answer)
    reply = await client.request("shout", b"water", timeout=PATIENCE_S)
    assert reply.data == b"WATER"
    await client.close()
    return "water -> WATER"


async def nobody_answers(server: Server) -> str:
    client = await connect(server)
    started = time.perf_counter()
    try:
        await client.request("nobody.home", b"?", timeout=PATIENCE_S)
    except NoRespondersError:
        took_ms = (time.perf_counter() - started) * 1000
    else:
        raise AssertionError("a request without anybody to answer should fail at once")
    await client.close()
    return f"told after {took_ms:.1f} ms instead of waiting {PATIENCE_S:.0f} s"


async def headers_travel(server: Server) -> str:
    client = await connect(server)
    messages = await client.subscribe("letters")
    await client.publish("letters", b"body", headers={"From": "the miller"})
    message = await messages.next_msg(PATIENCE_S)
    assert message.headers == {"From": "the miller"}
    await client.close()
    return f"From: {message.headers['From']}"


STEPS: tuple[Step, ...] = (
    Step(
        "Publish and subscribe", "a wildcard picks what it matches, and nothing else", publish_and_subscribe
    ),
    Step("A queue group", "work is shared: each message goes to one of many", share_work),
    Step("Request and reply", "a service is a subscription that answers", ask_and_answer),
    Step("No responders", "a question nobody hears fails at once", nobody_answers),
    Step("Headers", "facts about a message travel beside it", headers_travel),
)


async def perform(step: Step, server: Server) -> Outcome:
    started = time.perf_counter()
    try:
        seen, ok = await step.act(server), True
    except Exception as error:
        seen, ok = f"{type(error).__name__}: {error}", False
    return Outcome(step, ok, seen, time.perf_counter() - started)


def summary(outcomes: Sequence[Outcome]) -> Table:
    table = Table(title="What was shown")
    for column in ("", "step", "what it shows", "seen"):
        table.add_column(column)
    table.add_column("ms", justify="right")
    for outcome in outcomes:
        mark = "[green]ok[/]" if outcome.ok else "[red]failed[/]"
        step = outcome.step
        table.add_row(mark, step.title, step.shows, outcome.seen, f"{outcome.took_s * 1000:.0f}")
    return table


async def tell(console: Console, *, stay: bool) -> int:
    async with Server() as server:
        console.print(
            f"Headrace {__version__} (compatible with nats-server {COMPATIBLE_VERSION}) on {server.url}\n"
        )
        outcomes = []
        for step in STEPS:
            console.print(f"[bold]{step.title}[/]: {step.shows}")
            outcomes.append(await perform(step, server))
            console.print(f"   {outcomes[-1].seen}\n", markup=False)
        console.print(summary(outcomes))
        if stay:
            console.print(f"\nThe broker stays up: nats://127.0.0.1:{server.port}. Ctrl-C ends it.")
            await server.wait_stopped()
    return 0 if all(outcome.ok for outcome in outcomes) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo", description="The story of Headrace in a few steps.")
    parser.add_argument("--exit", action="store_true", help="end after the last step")
    chosen = parser.parse_args(arguments)
    try:
        return asyncio.run(tell(Console(), stay=not chosen.exit))
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
