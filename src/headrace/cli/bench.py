"""`headrace bench ...`: how fast is this server from here, as one Python process sees it.

The client is a part of what is measured: the figures compare servers, machines and settings, not languages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import show
from headrace.cli.link import Link, connected
from headrace.durations import size_bytes

if TYPE_CHECKING:
    from headrace.client import Client

bench_app = typer.Typer(help="Measure a server quickly.", no_args_is_help=True)

Messages = Annotated[int, typer.Option("--msgs", "-n", min=1, help="Messages in all.")]
Size = Annotated[str, typer.Option("--size", metavar="SIZE", help="Size of a payload: 128, 16KB.")]
Clients = Annotated[int, typer.Option("--clients", "-c", min=1, help="Connections, each with its share.")]
Subject = Annotated[str, typer.Option("--subject", help="The subject.")]
_STEP = 1000
_PATIENCE_S = 60.0
_STREAM = "HEADRACE_BENCH"


def _share(messages: int, clients: int) -> list[int]:
    each, rest = divmod(messages, clients)
    return [each + (number < rest) for number in range(clients)]


async def _clients(link: Link, number: int) -> list[Client]:
    return [link.nc, *[await link.open() for _ in range(number - 1)]]


def _result(link: Link, what: str, messages: int, size: int, seconds: float, **more: Any) -> None:
    rate = messages / seconds
    facts = {
        "test": what,
        "messages": messages,
        "size": size,
        "seconds": round(seconds, 4),
        "messages_per_s": round(rate),
        "bytes_per_s": round(rate * size),
        **more,
    }
    text = f"{what}: {rate:,.0f} messages/s, {show.size(rate * size)}/s ({messages:,} of {size} B in {seconds:.2f} s)"
    text += "".join(f", {name.replace('_', ' ')} {value}" for name, value in more.items())
    if link.json:
        show.line(facts)
    else:
        print(text)


async def _timed(work: Sequence[Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await asyncio.gather(*work)
    return time.perf_counter() - began


async def _publish(client: Client, subject: str, payload: bytes, count: int, step: show.Progress) -> None:
    for number in range(1, count + 1):
        await client.publish(subject, payload)
        if number % _STEP == 0:
            # The loop breathes, so that what was published is also sent.
            await asyncio.sleep(0)
            step(_STEP)
    await client.flush(timeout=60)


@bench_app.command()
@connected
async def pub(
    link: Link,
    subject: Subject = "headrace.bench",
    msgs: Messages = 100_000,
    size: Size = "128",
    clients: Clients = 1,
) -> None:
    """Publish without storing."""
    payload = bytes(size_bytes(size))
    connections = await _clients(link, clients)
    with show.progress("publishing", msgs) as step:
        shares = zip(connections, _share(msgs, clients), strict=True)
        seconds = await _timed([_publish(client, subject, payload, count, step) for client, count in shares])
    _result(link, "pub", msgs, len(payload), seconds)


@bench_app.command()
@connected
async def sub(
    link: Link,
    subject: Subject = "headrace.bench",
    msgs: Messages = 100_000,
    size: Size = "128",
    clients: Clients = 1,
) -> None:
    """Publish from one connection to subscribers, each of which gets everything."""
    payload = bytes(size_bytes(size))
    publisher = await link.open()
    done = [asyncio.Event() for _ in range(clients)]
    with show.progress("delivering", msgs * clients) as step:
        for client, event in zip(await _clients(link, clients), done, strict=True):
            await client.subscribe(
                subject, cb=_counting(msgs, event, step), pending_msgs_limit=-1, pending_bytes_limit=-1
            )
            await client.flush()
        waits = [event.wait() for event in done]
        seconds = await _timed([_publish(publisher, subject, payload, msgs, lambda done=1: None), *waits])
    _result(link, "sub", msgs * clients, len(payload), seconds)


def _counting(messages: int, event: asyncio.Event, step: show.Progress) -> Callable[[Any], Awaitable[None]]:
    left = messages

    async def count(_: Any) -> None:
        nonlocal left
        left -= 1
        if left % _STEP == 0:
            step(_STEP)
        if left == 0:
            event.set()

    return count


@bench_app.command()
@connected
async def js(
    link: Link,
    msgs: Messages = 20_000,
    size: Size = "128",
    clients: Clients = 1,
    window: Annotated[int, typer.Option(min=1, help="Unanswered messages of a connection at most.")] = 500,
    memory: Annotated[bool, typer.Option("--memory", help="A stream in memory instead of on disk.")] = False,
) -> None:
    """Store in a stream of its own (removed afterwards), acknowledged; then read it all through a consumer."""
    payload = bytes(size_bytes(size))
    subject = f"{_STREAM}.{link.nc.client_id}"
    stream = f"{_STREAM}_{link.nc.client_id}"
    storage = "memory" if memory else "file"
    await link.api(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [subject], "storage": storage})
    try:
        connections = await _clients(link, clients)
        waits: list[float] = []
        with show.progress("storing", msgs) as step:
            shares = zip(connections, _share(msgs, clients), strict=True)
            work = [_store(each, subject, payload, count, window, waits, step) for each, count in shares]
            seconds = await _timed(work)
        waits.sort()
        p50, p99 = (round(waits[int(len(waits) * part)] * 1000, 2) for part in (0.5, 0.99))
        _result(link, f"js store ({storage})", msgs, len(payload), seconds, p50_ms=p50, p99_ms=p99)
        with show.progress("reading", msgs) as step:
            seconds = await _timed([_read(link, stream, subject, msgs, step)])
        _result(link, "js read (ordered)", msgs, len(payload), seconds)
    finally:
        await link.api(f"STREAM.DELETE.{stream}")


async def _store(
    client: Client,
    subject: str,
    payload: bytes,
    count: int,
    window: int,
    waits: list[float],
    step: show.Progress,
) -> None:
    """Publish with a window of unanswered messages, as a good producer does."""
    from headrace.client.replies import Replies

    replies = Replies(client)
    turns = asyncio.Semaphore(window)

    async def answered(answer: Any, began: float) -> None:
        await answer.read(_PATIENCE_S)
        waits.append(time.perf_counter() - began)
        turns.release()
        if len(waits) % _STEP == 0:
            step(_STEP)

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            await turns.acquire()
            began = time.perf_counter()
            group.create_task(answered(await replies.send(subject, payload, {}), began))


async def _read(link: Link, stream: str, subject: str, count: int, step: show.Progress) -> None:
    done = asyncio.Event()
    await link.js.subscribe(subject, stream=stream, ordered_consumer=True, cb=_counting(count, done, step))
    await done.wait()
