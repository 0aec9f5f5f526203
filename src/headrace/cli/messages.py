"""`headrace pub`, `sub`, `req` and `reply`: words with any NATS server, for a first look and for scripts."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import show
from headrace.cli.arguments import Count, Headers, Payload, Raw, Subject
from headrace.cli.failures import MISUSED, NO_ANSWER, Failure
from headrace.cli.link import Link, connected

if TYPE_CHECKING:
    from nats.aio.msg import Msg

pub_app, sub_app, req_app, reply_app = (typer.Typer(add_completion=False) for _ in range(4))


def headers_of(lines: Sequence[str] | None) -> dict[str, str] | None:
    """Headers from `Name: value` lines."""
    headers = {}
    for line in lines or ():
        name, colon, value = line.partition(":")
        if not colon or not line.isprintable():
            raise Failure(f"{line!r} is not a header: write Name:value", MISUSED)
        headers[name.strip()] = value.strip()
    return headers or None


def payload_of(text: str | None, file: Path | None = None) -> bytes:
    """The payload: the argument, a file, or all of standard input when there is neither."""
    if file is not None and text is not None:
        raise Failure("give the payload or --file, not both", MISUSED)
    if file is not None:
        return file.read_bytes()
    return sys.stdin.buffer.read() if text is None else text.encode()


def present(message: Msg, json: bool, raw: bool = False, **facts: Any) -> None:
    """A message that came, as people or programs read it."""
    if json:
        known = {"subject": message.subject, "reply": message.reply or None, **facts}
        shown = {key: value for key, value in known.items() if value is not None}
        show.line({**shown, "headers": message.headers or {}, **show.payload_json(message.data)})
        return
    head = f"[{message.subject}]" + (f" reply {message.reply}" if message.reply else "")
    head += "".join(f" {name} {value}" for name, value in facts.items())
    show.message(head, message.headers, message.data, raw=raw, ending=b"\n")


@pub_app.command()
@connected
async def pub(
    link: Link,
    subject: Subject,
    payload: Payload = None,
    header: Headers = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="How often.")] = 1,
    file: Annotated[Path | None, typer.Option("--file", help="The payload is in this file.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Each line of standard input is a message.")] = False,
    reply: Annotated[str, typer.Option(help="Where answers shall go.")] = "",
    stored: Annotated[
        bool, typer.Option("--jetstream", "-J", help="Wait until a stream has stored it, and say where.")
    ] = False,
    ttl: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long a stream keeps it (-J).")
    ] = None,
    msg_id: Annotated[str | None, typer.Option(help="Store it once under this id (-J).")] = None,
    expect_last: Annotated[
        int | None, typer.Option(metavar="SEQ", help="Only if this is the stream's last sequence (-J).")
    ] = None,
    expect_last_subject: Annotated[
        int | None, typer.Option(metavar="SEQ", help="... the subject's last sequence, 0 if it is new (-J).")
    ] = None,
) -> None:
    """Publish messages: an argument, a file, standard input, or each of its lines."""
    options: dict[str, Any] = {
        "ttl": ttl,
        "msg_id": msg_id,
        "expect_last_sequence": expect_last,
        "expect_last_subject_sequence": expect_last_subject,
    }
    if not stored and any(value is not None for value in options.values()):
        raise Failure("--ttl, --msg-id and --expect-... are for streams: add --jetstream", MISUSED)
    headers = headers_of(header)
    source = _each_line() if lines else iter([payload_of(payload, file)] * count)
    total = None if lines else count
    with show.progress(f"publishing to {subject}", total) as step:
        for data in source:
            if stored:
                ack = await link.js.publish(subject, data, headers=headers, **options)
                _stored(link, ack)
            else:
                await link.nc.publish(subject, data, reply=reply, headers=headers)
            step()
    await link.nc.flush(timeout=max(1, round(link.timeout)))


def _each_line() -> Iterator[bytes]:
    for line in sys.stdin.buffer:
        yield line.rstrip(b"\r\n")


def _stored(link: Link, ack: Any) -> None:
    if link.json:
        show.line({"stream": ack.stream, "seq": ack.seq, "duplicate": bool(ack.duplicate)})
    else:
        print(f"stored in {ack.stream}, sequence {ack.seq}" + (", a duplicate" if ack.duplicate else ""))


@sub_app.command()
@connected
async def sub(
    link: Link,
    subject: Subject,
    queue: Annotated[str, typer.Option(help="Share the messages with others of this queue group.")] = "",
    count: Count = 0,
    raw: Raw = False,
) -> None:
    """Show the messages of a subject as they come."""
    link.stay()
    messages = await link.nc.subscribe(subject, queue=queue)
    await link.nc.flush()
    show.note(f"Listening on {subject}")
    seen = 0
    async for message in messages.messages:
        present(message, link.json, raw)
        seen += 1
        if seen == count:
            break


@req_app.command()
@connected
async def req(
    link: Link,
    subject: Subject,
    payload: Payload = None,
    header: Headers = None,
    replies: Annotated[
        int, typer.Option("--replies", min=0, help="Answers to wait for; 0 takes all in time.")
    ] = 1,
    raw: Raw = False,
) -> int | None:
    """Ask, and show the answer."""
    headers, data = headers_of(header), payload_of(payload)
    if replies == 1:
        present(await link.nc.request(subject, data, timeout=link.timeout, headers=headers), link.json, raw)
        return None
    inbox = link.nc.new_inbox()
    answers = await link.nc.subscribe(inbox)
    await link.nc.publish(subject, data, reply=inbox, headers=headers)
    seen = 0
    try:
        async with asyncio.timeout(link.timeout):
            async for message in answers.messages:
                if (message.headers or {}).get("Status") == "503":
                    raise Failure("nobody listens there (no responders)", NO_ANSWER)
                present(message, link.json, raw)
                seen += 1
                if seen == replies:
                    return None
    except TimeoutError:
        show.note(f"{seen} answers within {link.timeout:g} s")
    return 0 if seen >= max(replies, 1) else NO_ANSWER


@reply_app.command()
@connected
async def reply(
    link: Link,
    subject: Subject,
    payload: Annotated[str, typer.Argument(help="The answer; with --echo it is the request itself.")] = "",
    echo: Annotated[bool, typer.Option("--echo", help="Answer with the request.")] = False,
    command: Annotated[
        str, typer.Option(metavar="COMMAND", help="Answer with what this prints; it reads the request.")
    ] = "",
    queue: Annotated[
        str, typer.Option(help="Share the requests with others of this queue group.")
    ] = "replies",
    header: Headers = None,
    count: Count = 0,
) -> None:
    """Answer requests on a subject."""
    if bool(payload) + echo + bool(command) != 1:
        raise Failure("what is the answer? Give one of PAYLOAD, --echo or --command", MISUSED)
    headers = headers_of(header)
    link.stay()
    requests = await link.nc.subscribe(subject, queue=queue)
    await link.nc.flush()
    show.note(f"Answering on {subject}")
    seen = 0
    async for request in requests.messages:
        present(request, link.json)
        data = request.data if echo else await _printed(command, request) if command else payload.encode()
        if request.reply:
            await link.nc.publish(request.reply, data, headers=headers)
        seen += 1
        if seen == count:
            await link.nc.flush()
            break


async def _printed(command: str, request: Msg) -> bytes:
    """What a command prints; the request is its standard input, never a part of its words."""
    import shlex

    process = await asyncio.create_subprocess_exec(
        *shlex.split(command), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate(request.data)
    return printed
