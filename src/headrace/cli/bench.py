"""`headrace bench ...`: measures a server's throughput from one Python process.

The figures include the cost of the client: use them to compare servers, machines and settings, not languages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import output
from headrace.cli.session import CliSession, with_connection
from headrace.durations import parse_size

if TYPE_CHECKING:
    from headrace.client import Client

bench_app = typer.Typer(help="Benchmark a server.", no_args_is_help=True)

Messages = Annotated[int, typer.Option("--msgs", "-n", metavar="N", min=1, help="Number of messages.")]
Size = Annotated[str, typer.Option("--size", metavar="SIZE", help="Payload size, e.g. 128 or 16KB.")]
Clients = Annotated[int, typer.Option("--clients", "-c", metavar="N", min=1, help="Number of connections.")]
Subject = Annotated[str, typer.Option("--subject", metavar="SUBJECT", help="Subject.")]
_PROGRESS_STEP = 1000
_ACK_TIMEOUT_S = 60.0
_STREAM = "HEADRACE_BENCH"


def _split_evenly(messages: int, clients: int) -> list[int]:
    each, rest = divmod(messages, clients)
    return [each + (number < rest) for number in range(clients)]


async def _open_clients(session: CliSession, number: int) -> list[Client]:
    return [session.nc, *[await session.open() for _ in range(number - 1)]]


def _print_result(
    session: CliSession, test: str, messages: int, size: int, seconds: float, **more: Any
) -> None:
    rate = messages / seconds
    values = {
        "test": test,
        "messages": messages,
        "size": size,
        "seconds": round(seconds, 4),
        "messages_per_s": round(rate),
        "bytes_per_s": round(rate * size),
        **more,
    }
    throughput = output.format_size(rate * size)
    text = f"{test}: {rate:,.0f} messages/s, {throughput}/s ({messages:,} of {size} B in {seconds:.2f} s)"
    text += "".join(f", {name.replace('_', ' ')} {value}" for name, value in more.items())
    if session.json:
        output.print_json_line(values)
    else:
        print(text)


async def _measure_s(work: Sequence[Awaitable[Any]]) -> float:
    start_s = time.perf_counter()
    await asyncio.gather(*work)
    return time.perf_counter() - start_s


async def _publish(
    client: Client, subject: str, payload: bytes, count: int, step: output.ProgressCallback
) -> None:
    for number in range(1, count + 1):
        await client.publish(subject, payload)
        if number % _PROGRESS_STEP == 0:
            # Yields to the event loop, so that published messages are also sent.
            await asyncio.sleep(0)
            step(_PROGRESS_STEP)
    await client.flush(timeout=60)


@bench_app.command()
@with_connection
async def pub(
    session: CliSession,
    subject: Subject = "headrace.bench",
    msgs: Messages = 100_000,
    size: Size = "128",
    clients: Clients = 1,
) -> None:
    """Publish core NATS messages, without a stream."""
    payload = bytes(parse_size(size))
    connections = await _open_clients(session, clients)
    with output.progress_bar("publishing", msgs) as step:
        shares = zip(connections, _split_evenly(msgs, clients), strict=True)
        seconds = await _measure_s(
            [_publish(client, subject, payload, count, step) for client, count in shares]
        )
    _print_result(session, "pub", msgs, len(payload), seconds)


@bench_app.command()
@with_connection
async def sub(
    session: CliSession,
    subject: Subject = "headrace.bench",
    msgs: Messages = 100_000,
    size: Size = "128",
    clients: Clients = 1,
) -> None:
    """Publish from one connection to --clients subscribers; each receives every message."""
    payload = bytes(parse_size(size))
    publisher = await session.open()
    done = [asyncio.Event() for _ in range(clients)]
    with output.progress_bar("delivering", msgs * clients) as step:
        for client, event in zip(await _open_clients(session, clients), done, strict=True):
            await client.subscribe(
                subject, cb=_make_counter(msgs, event, step), pending_msgs_limit=-1, pending_bytes_limit=-1
            )
            await client.flush()
        latencies_s = [event.wait() for event in done]
        seconds = await _measure_s(
            [_publish(publisher, subject, payload, msgs, lambda done=1: None), *latencies_s]
        )
    _print_result(session, "sub", msgs * clients, len(payload), seconds)


def _make_counter(
    messages: int, event: asyncio.Event, step: output.ProgressCallback
) -> Callable[[Any], Awaitable[None]]:
    left = messages

    async def count(_: Any) -> None:
        nonlocal left
        left -= 1
        if left % _PROGRESS_STEP == 0:
            step(_PROGRESS_STEP)
        if left == 0:
            event.set()

    return count


@bench_app.command()
@with_connection
async def js(
    session: CliSession,
    msgs: Messages = 20_000,
    size: Size = "128",
    clients: Clients = 1,
    window: Annotated[
        int, typer.Option(metavar="N", min=1, help="Maximum unacknowledged messages per connection.")
    ] = 500,
    memory: Annotated[
        bool, typer.Option("--memory", help="Use memory storage instead of file storage.")
    ] = False,
) -> None:
    """Publish to a temporary stream and wait for acknowledgements, then read it back with an ordered consumer."""
    payload = bytes(parse_size(size))
    subject = f"{_STREAM}.{session.nc.client_id}"
    stream = f"{_STREAM}_{session.nc.client_id}"
    storage = "memory" if memory else "file"
    await session.api_request(
        f"STREAM.CREATE.{stream}", {"name": stream, "subjects": [subject], "storage": storage}
    )
    try:
        connections = await _open_clients(session, clients)
        latencies_s: list[float] = []
        with output.progress_bar("storing", msgs) as step:
            shares = zip(connections, _split_evenly(msgs, clients), strict=True)
            work = [
                _store(each, subject, payload, count, window, latencies_s, step) for each, count in shares
            ]
            seconds = await _measure_s(work)
        latencies_s.sort()
        p50, p99 = (round(latencies_s[int(len(latencies_s) * part)] * 1000, 2) for part in (0.5, 0.99))
        _print_result(session, f"js store ({storage})", msgs, len(payload), seconds, p50_ms=p50, p99_ms=p99)
        with output.progress_bar("reading", msgs) as step:
            seconds = await _measure_s([_read(session, stream, subject, msgs, step)])
        _print_result(session, "js read (ordered)", msgs, len(payload), seconds)
    finally:
        await session.api_request(f"STREAM.DELETE.{stream}")


async def _store(
    client: Client,
    subject: str,
    payload: bytes,
    count: int,
    window: int,
    latencies_s: list[float],
    step: output.ProgressCallback,
) -> None:
    """Publish with at most `window` unacknowledged messages."""
    from headrace.client.response_mux import ReplyInbox

    reply_inbox = ReplyInbox(client)
    window_slots = asyncio.Semaphore(window)

    async def record_ack(pending_ack: Any, start_s: float) -> None:
        await pending_ack.wait(_ACK_TIMEOUT_S)
        latencies_s.append(time.perf_counter() - start_s)
        window_slots.release()
        if len(latencies_s) % _PROGRESS_STEP == 0:
            step(_PROGRESS_STEP)

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            await window_slots.acquire()
            start_s = time.perf_counter()
            group.create_task(record_ack(await reply_inbox.send(subject, payload, {}), start_s))


async def _read(
    session: CliSession, stream: str, subject: str, count: int, step: output.ProgressCallback
) -> None:
    done = asyncio.Event()
    await session.js.subscribe(
        subject, stream=stream, ordered_consumer=True, cb=_make_counter(count, done, step)
    )
    await done.wait()
