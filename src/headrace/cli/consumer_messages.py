"""`headrace consumer next` and `sub`: receive messages through a consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli import output
from headrace.cli.exit_codes import NO_ANSWER, USAGE_ERROR, CliError
from headrace.cli.messages import print_received
from headrace.cli.session import CliSession, with_connection
from headrace.cli.shared_options import Consumer, Count, Raw, Stream

if TYPE_CHECKING:
    from nats.aio.msg import Msg

reading_commands = typer.Typer()

AckChoice = Annotated[
    Literal["ack", "nak", "term", "none"],
    typer.Option(
        "--answer",
        metavar="ack|nak|term|none",
        help="Acknowledgement to send: ack, nak (redeliver), term (do not redeliver), or none.",
    ),
]
_PULL_BATCH = 100
_PULL_WAIT_S = 5.0


@reading_commands.command("next", rich_help_panel="Messages")
@with_connection
async def next_messages(
    session: CliSession,
    stream: Stream,
    consumer: Consumer,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="Number of messages.")] = 1,
    answer: AckChoice = "ack",
    raw: Raw = False,
) -> int | None:
    """Pull messages from a consumer; exits with 6 if none arrives before the timeout."""
    from nats.errors import TimeoutError as Late

    await _require_pull_consumer(session, stream, consumer)
    subscription = await session.js.pull_subscribe_bind(consumer, stream=stream)
    received = 0
    while received < count:
        try:
            found = await subscription.fetch(min(_PULL_BATCH, count - received), timeout=session.timeout)
        except Late:
            break
        for message in found:
            await _print_and_ack(session, message, answer, raw)
        received += len(found)
    await session.nc.flush()
    if not received:
        raise CliError(f"no message arrived within {session.timeout:g} s", NO_ANSWER)
    return None


async def _require_pull_consumer(session: CliSession, stream: str, consumer: str) -> dict[str, Any]:
    info = await session.api_request(f"CONSUMER.INFO.{stream}.{consumer}")
    if info["config"].get("deliver_subject"):
        raise CliError(f"{consumer} is a push consumer; use 'headrace consumer sub'", USAGE_ERROR)
    return info


async def _print_and_ack(session: CliSession, message: Msg, ack_choice: str, raw: bool) -> None:
    metadata = message.metadata
    details = {"sequence": metadata.sequence.stream, "delivery": metadata.num_delivered}
    reply, message.reply = message.reply, ""
    print_received(message, session.json, raw, **details)
    message.reply = reply
    if ack_choice == "ack":
        await message.ack()
    elif ack_choice == "nak":
        await message.nak()
    elif ack_choice == "term":
        await message.term()


@reading_commands.command(rich_help_panel="Messages")
@with_connection
async def sub(
    session: CliSession,
    stream: Stream,
    consumer: Consumer,
    count: Count = 0,
    answer: AckChoice = "ack",
    raw: Raw = False,
) -> None:
    """Print messages of a pull or push consumer as they arrive."""
    info = await session.api_request(f"CONSUMER.INFO.{stream}.{consumer}")
    session.enable_reconnect()
    source = _iter_pushed if info["config"].get("deliver_subject") else _iter_pulled
    received = 0
    async for message in source(session, stream, consumer):
        await _print_and_ack(session, message, answer, raw)
        received += 1
        if received == count:
            break
    await session.nc.flush()


async def _iter_pulled(session: CliSession, stream: str, consumer: str) -> Any:
    from nats.errors import TimeoutError as Late

    subscription = await session.js.pull_subscribe_bind(consumer, stream=stream)
    output.print_note(f"Pulling from {consumer} of {stream}")
    while True:
        try:
            found = await subscription.fetch(1, timeout=_PULL_WAIT_S)
        except Late:
            continue
        for message in found:
            yield message


async def _iter_pushed(session: CliSession, stream: str, consumer: str) -> Any:
    config = (await session.js.consumer_info(stream, consumer)).config
    subscription = await session.js.subscribe_bind(stream, config, consumer, manual_ack=True)
    await session.nc.flush()
    output.print_note(f"Subscribed to {consumer} of {stream}")
    async for message in subscription.messages:
        yield message
