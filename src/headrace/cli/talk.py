"""`headrace pub`, `sub` and `req`: a few words with any NATS server, for a first look and for scripts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

import nats
import typer
from nats.aio.client import Client
from nats.aio.msg import Msg

PATIENCE_S = 5.0


def converse(talk: Coroutine[Any, Any, None]) -> None:
    """Run a conversation; what goes wrong is said in a line, and Ctrl-C is a normal end."""
    try:
        asyncio.run(talk)
    except KeyboardInterrupt:
        return
    except (nats.errors.Error, OSError) as error:
        typer.echo(f"headrace: {str(error) or type(error).__name__}", err=True)
        raise typer.Exit(1) from None


async def connect(server: str) -> Client:
    async def ignore(_: Exception) -> None:
        """The error is raised by connect itself."""

    return await nats.connect(
        server,
        allow_reconnect=False,
        max_reconnect_attempts=1,
        reconnect_time_wait=0.1,
        connect_timeout=PATIENCE_S,
        error_cb=ignore,
    )


def headers_of(lines: Sequence[str]) -> dict[str, str] | None:
    """Headers from `Name: value` lines."""
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise typer.BadParameter(f"{line!r} is not a header: write Name:value")
        headers[name.strip()] = value.strip()
    return headers or None


def payload_of(text: str | None) -> bytes:
    """The payload: the argument, or all of standard input when there is none."""
    return sys.stdin.buffer.read() if text is None else text.encode()


def show(message: Msg) -> None:
    head = f"[{message.subject}]" + (f" reply {message.reply}" if message.reply else "")
    lines = [head, *(f"{name}: {value}" for name, value in (message.headers or {}).items())]
    typer.echo("\n".join([*lines, message.data.decode(errors="backslashreplace")]))


async def publish(
    server: str, subject: str, payload: bytes, headers: dict[str, str] | None, count: int
) -> None:
    client = await connect(server)
    for _ in range(count):
        await client.publish(subject, payload, headers=headers)
    await client.drain()


async def subscribe(server: str, subject: str, queue: str, count: int) -> None:
    client = await connect(server)
    messages = await client.subscribe(subject, queue=queue)
    await client.flush()
    typer.echo(f"Listening on {subject}", err=True)
    seen = 0
    async for message in messages.messages:
        show(message)
        seen += 1
        if seen == count:
            break
    await client.close()


async def request(
    server: str, subject: str, payload: bytes, headers: dict[str, str] | None, timeout_s: float
) -> None:
    client = await connect(server)
    try:
        show(await client.request(subject, payload, timeout=timeout_s, headers=headers))
    finally:
        await client.close()
