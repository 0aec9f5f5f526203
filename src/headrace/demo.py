"""`make demo`: the story of Headrace in a few steps, each shown, and checked.

Starts a broker on a free port, acts on it with the standard client, and ends with a table; a step that does
not do what it says makes the exit code 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from rich.console import Console
from rich.table import Table

import headrace.client
import headrace.errors
from headrace import COMPATIBLE_VERSION, __version__
from headrace.server import Server

PATIENCE_S = 5.0
WORKERS, JOBS = 3, 300
CRASH_JOBS, CRASH_DONE = 20, 8
_LISTENING = re.compile(rb"Listening for client connections on (\S+)")


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


async def keep_messages(server: Server) -> str:
    client = await connect(server)
    js = headrace.client.jetstream(client)
    await js.add_stream(name="LEVELS", subjects=["level.>"])
    acks = [await js.publish(f"level.{mill}", b"2.31 m") for mill in ("north", "south")]
    assert [ack.seq for ack in acks] == [1, 2]
    last = await js.get_last_msg("LEVELS", "level.south")
    await client.close()
    return f"level.south is message {last.seq}, on disk before it was acknowledged"


async def expire_with_a_marker(server: Server) -> str:
    client = await connect(server)
    bucket = await headrace.client.jetstream(client).create_key_value(bucket="gates", limit_markers=60)
    watcher = await bucket.watchall()
    await bucket.create("east", b"open", ttl=1)
    seen = []
    async with asyncio.timeout(PATIENCE_S):
        async for entry in watcher:
            if entry is not None:
                seen.append(entry.operation)
            if len(seen) == 2:
                break
    await client.close()
    assert seen == ["PUT", "PURGE"], seen
    return "the watcher saw PUT, and a second later PURGE: the key had its own lifetime"


async def all_or_nothing(server: Server) -> str:
    client = await connect(server)
    js = headrace.client.jetstream(client)
    bucket = await js.create_key_value(bucket="address", allow_atomic=True)
    await bucket.create_many({"street": b"Mill Lane 1", "city": b"Waterside", "code": b"12345"})
    try:
        await bucket.update_many({"city": (b"Hillside", 2), "code": (b"99999", 77)})
    except headrace.errors.HeadraceError:
        pass
    else:
        raise AssertionError("a batch with a wrong revision should be refused")
    city = await bucket.get("city")
    await client.close()
    assert city.value == b"Waterside"
    return "one revision was wrong, so the whole update was refused: the city is still Waterside"


async def crash_and_go_on(server: Server) -> str:
    """A broker in a process of its own is killed in the middle of its work."""
    with tempfile.TemporaryDirectory() as folder:
        async with running(folder) as client:
            js = client.jetstream()
            await js.add_stream(name="WORK", subjects=["work"], retention="workqueue")
            for number in range(CRASH_JOBS):
                await js.publish("work", b"%d" % number)
            worker = await js.pull_subscribe("work", "miller")
            for message in await worker.fetch(CRASH_DONE, timeout=PATIENCE_S):
                await message.ack_sync()
        async with running(folder) as client:
            js = client.jetstream()
            worker = await js.pull_subscribe("work", "miller")
            left = await worker.fetch(CRASH_JOBS, timeout=PATIENCE_S)
            await client.close()
    assert [int(message.data) for message in left] == list(range(CRASH_DONE, CRASH_JOBS))
    return f"killed after {CRASH_DONE} of {CRASH_JOBS} jobs; the other {len(left)} were there, none twice"


@contextlib.asynccontextmanager
async def running(folder: str) -> AsyncIterator[Client]:
    """A client of a broker in a process of its own, which is killed without warning at the end."""
    command = [sys.executable, "-m", "headrace", "serve", "-p", "-1", "-js", "-sd", folder]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        async with asyncio.timeout(30):
            while not (found := _LISTENING.search(await process.stderr.readline())):
                pass
        client = await nats.connect(f"nats://{found[1].decode()}", error_cb=_ignore, allow_reconnect=False)
        yield client
    finally:
        process.kill()
        await process.communicate()


async def _ignore(_: Exception) -> None:
    """The end of the connection is what this is about."""


STEPS: tuple[Step, ...] = (
    Step(
        "Publish and subscribe", "a wildcard picks what it matches, and nothing else", publish_and_subscribe
    ),
    Step("A queue group", "work is shared: each message goes to one of many", share_work),
    Step("Request and reply", "a service is a subscription that answers", ask_and_answer),
    Step("No responders", "a question nobody hears fails at once", nobody_answers),
    Step("Headers", "facts about a message travel beside it", headers_travel),
    Step("A stream", "messages are kept, and acknowledged when they are on disk", keep_messages),
    Step("A key with a lifetime", "when it ends a marker tells those who watch", expire_with_a_marker),
    Step("An atomic batch", "several keys change together or not at all", all_or_nothing),
    Step("A crash", "a killed broker goes on where it was", crash_and_go_on),
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
    with tempfile.TemporaryDirectory() as folder:
        return await _tell(console, folder, stay=stay)


async def _tell(console: Console, folder: str, *, stay: bool) -> int:
    async with Server(folder) as server:
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
