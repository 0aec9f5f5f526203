"""`headrace pub`, `sub`, `req` and `reply`: exchange messages with any NATS server, for interactive use and scripts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import output as show
from headrace.cli import standard_input
from headrace.cli.exit_codes import NO_ANSWER, USAGE_ERROR, CliError
from headrace.cli.session import CliSession, with_connection
from headrace.cli.shared_options import Count, Headers, Payload, Raw, Subject, SubjectPattern

if TYPE_CHECKING:
    from nats.aio.msg import Msg

#: Bytes to publish before the next wait for the server; a message counts 1 KiB more than its payload.
_FLUSH_BYTES = 1 << 20

pub_app, sub_app, req_app, reply_app = (typer.Typer(add_completion=False) for _ in range(4))


def parse_headers(lines: Sequence[str] | None) -> dict[str, str] | None:
    """Parse `Name: value` lines."""
    headers = {}
    for line in lines or ():
        name, colon, value = line.partition(":")
        if not colon or not line.isprintable():
            raise CliError(f"invalid header {line!r}: use Name:value", USAGE_ERROR)
        headers[name.strip()] = value.strip()
    return headers or None


async def read_payload(text: str | None, file: Path | None = None) -> bytes:
    """Return the payload: the argument, a file, or all of standard input if there is neither."""
    if file is not None and text is not None:
        raise CliError("give either a payload or --file, not both", USAGE_ERROR)
    if file is not None:
        return await asyncio.to_thread(file.read_bytes)
    if text is not None:
        return text.encode()
    if sys.stdin.isatty():
        show.print_note("Enter the payload; Ctrl-D on an empty line ends it.")
    return await standard_input.read_all()


def print_received(message: Msg, json: bool, raw: bool = False, **details: Any) -> None:
    """Print a received message for people or programs."""
    if json:
        known = {"subject": message.subject, "reply": message.reply or None, **details}
        shown = {key: value for key, value in known.items() if value is not None}
        show.print_json_line({**shown, "headers": message.headers or {}, **show.encode_payload(message.data)})
        return
    head = f"[{message.subject}]" + (f" reply {message.reply}" if message.reply else "")
    head += "".join(f" {name} {value}" for name, value in details.items())
    show.print_message(head, message.headers, message.data, raw=raw, ending=b"\n")


@pub_app.command()
@with_connection
async def pub(
    session: CliSession,
    subject: Subject,
    payload: Payload = None,
    header: Headers = None,
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=1, help="Number of times to publish the payload.")
    ] = 1,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Read the payload from this file.")
    ] = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Publish each line of standard input as a message.")
    ] = False,
    reply: Annotated[str, typer.Option(metavar="SUBJECT", help="Reply subject.")] = "",
    stored: Annotated[
        bool, typer.Option("--jetstream", "-J", help="Wait for the stream's acknowledgement and print it.")
    ] = False,
    ttl: Annotated[str | None, typer.Option(metavar="DURATION", help="Message TTL (requires -J).")] = None,
    msg_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Message ID for deduplication (requires -J).")
    ] = None,
    expect_last: Annotated[
        int | None, typer.Option(metavar="SEQ", help="Expected last sequence of the stream (requires -J).")
    ] = None,
    expect_last_subject: Annotated[
        int | None,
        typer.Option(metavar="SEQ", help="Expected last sequence of the subject; 0: none (requires -J)."),
    ] = None,
) -> None:
    """Publish messages: an argument, a file, standard input, or each line of it."""
    options: dict[str, Any] = {
        "ttl": ttl,
        "msg_id": msg_id,
        "expect_last_sequence": expect_last,
        "expect_last_subject_sequence": expect_last_subject,
    }
    if not stored and any(value is not None for value in options.values()):
        raise CliError("--ttl, --msg-id and --expect-... require --jetstream", USAGE_ERROR)
    headers = parse_headers(header)
    source = standard_input.read_lines() if lines else _repeat(await read_payload(payload, file), count)
    with show.progress_bar(f"publishing to {subject}", None if lines else count) as step:
        if stored:
            async for data in source:
                _print_ack(session, await session.js.publish(subject, data, headers=headers, **options))
                step()
        else:
            await _publish_unstored(session, source, step, subject=subject, reply=reply, headers=headers)


async def _publish_unstored(
    session: CliSession, source: AsyncIterator[bytes], step: show.ProgressCallback, **options: Any
) -> None:
    """Publish messages that nobody acknowledges, and wait again and again until the server has them.

    Publishing alone never yields to the event loop, which sends the messages and handles Ctrl-C.
    """
    timeout_s = max(1, round(session.timeout))
    unflushed = 0
    async for data in source:
        await session.nc.publish(payload=data, **options)
        step()
        unflushed += len(data) + 1024
        if unflushed >= _FLUSH_BYTES:
            # Shielded, because nats-py reports the PONG of a cancelled flush as an error.
            await asyncio.shield(session.nc.flush(timeout=timeout_s))
            unflushed = 0
    await session.nc.flush(timeout=timeout_s)
    session.check_permissions()


async def _repeat(payload: bytes, count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield payload


def _print_ack(session: CliSession, ack: Any) -> None:
    if session.json:
        show.print_json_line({"stream": ack.stream, "seq": ack.seq, "duplicate": bool(ack.duplicate)})
    else:
        print(f"stored in {ack.stream}, sequence {ack.seq}" + (", duplicate" if ack.duplicate else ""))


@sub_app.command()
@with_connection
async def sub(
    session: CliSession,
    subject: SubjectPattern,
    queue: Annotated[str, typer.Option(metavar="GROUP", help="Queue group.")] = "",
    count: Count = 0,
    raw: Raw = False,
) -> None:
    """Subscribe to a subject and print its messages."""
    session.enable_reconnect()
    messages = await session.nc.subscribe(subject, queue=queue)
    await session.nc.flush()
    session.check_permissions()
    show.print_note(f"Subscribed to {subject}")
    received = 0
    async for message in messages.messages:
        print_received(message, session.json, raw)
        received += 1
        if received == count:
            break


@req_app.command()
@with_connection
async def req(
    session: CliSession,
    subject: Subject,
    payload: Payload = None,
    header: Headers = None,
    replies: Annotated[
        int,
        typer.Option("--replies", metavar="N", min=0, help="Replies to wait for; 0: all until the timeout."),
    ] = 1,
    raw: Raw = False,
) -> int | None:
    """Send a request and print the reply."""
    headers, data = parse_headers(header), await read_payload(payload)
    if replies == 1:
        print_received(
            await session.nc.request(subject, data, timeout=session.timeout, headers=headers),
            session.json,
            raw,
        )
        return None
    inbox = session.nc.new_inbox()
    reply_subscription = await session.nc.subscribe(inbox)
    await session.nc.publish(subject, data, reply=inbox, headers=headers)
    received = 0
    try:
        async with asyncio.timeout(session.timeout):
            async for message in reply_subscription.messages:
                if (message.headers or {}).get("Status") == "503":
                    raise CliError("no responders: nothing is subscribed to this subject", NO_ANSWER)
                print_received(message, session.json, raw)
                received += 1
                if received == replies:
                    return None
    except TimeoutError:
        show.print_note(f"{received} replies within {session.timeout:g} s")
    return 0 if received >= max(replies, 1) else NO_ANSWER


@reply_app.command()
@with_connection
async def reply(
    session: CliSession,
    subject: SubjectPattern,
    payload: Annotated[str, typer.Argument(help="Reply payload.")] = "",
    echo: Annotated[bool, typer.Option("--echo", help="Reply with the request's payload.")] = False,
    command: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="Reply with the output of this command; its standard input is the request.",
        ),
    ] = "",
    queue: Annotated[str, typer.Option(metavar="GROUP", help="Queue group.")] = "replies",
    header: Headers = None,
    count: Count = 0,
) -> None:
    """Reply to requests on a subject."""
    if bool(payload) + echo + bool(command) != 1:
        raise CliError("give exactly one of PAYLOAD, --echo or --command", USAGE_ERROR)
    headers = parse_headers(header)
    session.enable_reconnect()
    requests = await session.nc.subscribe(subject, queue=queue)
    await session.nc.flush()
    session.check_permissions()
    show.print_note(f"Replying to requests on {subject}")
    received = 0
    async for request in requests.messages:
        print_received(request, session.json)
        data = (
            request.data
            if echo
            else await _run_reply_command(command, request)
            if command
            else payload.encode()
        )
        if request.reply:
            await session.nc.publish(request.reply, data, headers=headers)
        received += 1
        if received == count:
            await session.nc.flush()
            break


async def _run_reply_command(command: str, request: Msg) -> bytes:
    """Return what a command prints; the request is its standard input, never part of its arguments."""
    import shlex

    process = await asyncio.create_subprocess_exec(
        *shlex.split(command), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate(request.data)
    return output
