"""`headrace consumer next` and `sub`: messages through a consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli import show
from headrace.cli.arguments import Consumer, Count, Raw, Stream
from headrace.cli.failures import MISUSED, NO_ANSWER, Failure
from headrace.cli.link import Link, connected
from headrace.cli.messages import present

if TYPE_CHECKING:
    from nats.aio.msg import Msg

reading_commands = typer.Typer()

Answer = Annotated[
    Literal["ack", "nak", "term", "none"],
    typer.Option(
        "--answer",
        metavar="ack|nak|term|none",
        help="What the server is told: done, deliver again, give up, or nothing.",
    ),
]
_PULL = 100
_PULL_WAIT_S = 5.0


@reading_commands.command("next")
@connected
async def next_messages(
    link: Link,
    stream: Stream,
    consumer: Consumer,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How many.")] = 1,
    answer: Answer = "ack",
    raw: Raw = False,
) -> int | None:
    """Pull messages through a consumer; ends with 6 if none comes in time."""
    from nats.errors import TimeoutError as Late

    await _pulled(link, stream, consumer)
    pulling = await link.js.pull_subscribe_bind(consumer, stream=stream)
    seen = 0
    while seen < count:
        try:
            found = await pulling.fetch(min(_PULL, count - seen), timeout=link.timeout)
        except Late:
            break
        for message in found:
            await _take(link, message, answer, raw)
        seen += len(found)
    await link.nc.flush()
    if not seen:
        raise Failure(f"no message within {link.timeout:g} s", NO_ANSWER)
    return None


async def _pulled(link: Link, stream: str, consumer: str) -> dict[str, Any]:
    info = await link.api(f"CONSUMER.INFO.{stream}.{consumer}")
    if info["config"].get("deliver_subject"):
        raise Failure(f"{consumer} pushes; read it with 'headrace consumer sub'", MISUSED)
    return info


async def _take(link: Link, message: Msg, answer: str, raw: bool) -> None:
    told = message.metadata
    facts = {"sequence": told.sequence.stream, "delivery": told.num_delivered}
    reply, message.reply = message.reply, ""
    present(message, link.json, raw, **facts)
    message.reply = reply
    if answer == "ack":
        await message.ack()
    elif answer == "nak":
        await message.nak()
    elif answer == "term":
        await message.term()


@reading_commands.command()
@connected
async def sub(
    link: Link,
    stream: Stream,
    consumer: Consumer,
    count: Count = 0,
    answer: Answer = "ack",
    raw: Raw = False,
) -> None:
    """Show messages through a consumer as they come, pulled or pushed."""
    info = await link.api(f"CONSUMER.INFO.{stream}.{consumer}")
    link.stay()
    source = _pushes if info["config"].get("deliver_subject") else _pulls
    seen = 0
    async for message in source(link, stream, consumer):
        await _take(link, message, answer, raw)
        seen += 1
        if seen == count:
            break
    await link.nc.flush()


async def _pulls(link: Link, stream: str, consumer: str) -> Any:
    from nats.errors import TimeoutError as Late

    pulling = await link.js.pull_subscribe_bind(consumer, stream=stream)
    show.note(f"Pulling {consumer} of {stream}")
    while True:
        try:
            found = await pulling.fetch(1, timeout=_PULL_WAIT_S)
        except Late:
            continue
        for message in found:
            yield message


async def _pushes(link: Link, stream: str, consumer: str) -> Any:
    config = (await link.js.consumer_info(stream, consumer)).config
    pushed = await link.js.subscribe_bind(stream, config, consumer, manual_ack=True)
    await link.nc.flush()
    show.note(f"Listening to {consumer} of {stream}")
    async for message in pushed.messages:
        yield message
