"""`headrace stream get` and `rmm`: single messages of a stream."""

from __future__ import annotations

import base64
from typing import Annotated, Any

import typer

from headrace.cli import show
from headrace.cli.arguments import Force, Raw, Stream
from headrace.cli.failures import MISUSED, NOT_FOUND, Failure
from headrace.cli.link import Link, connected

message_commands = typer.Typer()


@message_commands.command()
@connected
async def get(
    link: Link,
    stream: Stream,
    seq: Annotated[int | None, typer.Argument(min=1, help="The message's sequence.")] = None,
    last_for: Annotated[str, typer.Option(metavar="SUBJECT", help="The last message of a subject.")] = "",
    next_for: Annotated[
        str, typer.Option(metavar="SUBJECT", help="The first of a subject at or after SEQ (or 1).")
    ] = "",
    raw: Raw = False,
) -> None:
    """Show a message of a stream."""
    body: dict[str, Any]
    if last_for and not (seq or next_for):
        body = {"last_by_subj": last_for}
    elif next_for and not last_for:
        body = {"next_by_subj": next_for, "seq": seq or 1}
    elif seq and not last_for:
        body = {"seq": seq}
    else:
        raise Failure(
            "which message? Give a sequence, or --last-for, or --next-for with or without one", MISUSED
        )
    stored = await _stored(link, stream, body)
    headers, payload = headers_of(stored.get("hdrs")), base64.b64decode(stored.get("data", ""))
    if link.json:
        known = {key: stored[key] for key in ("subject", "seq", "time")}
        show.document({**known, "headers": headers, **show.payload_json(payload)})
        return
    head = f"[{stored['subject']}] sequence {stored['seq']}, {show.moment(stored['time'])} UTC"
    show.message(head, headers, payload, raw=raw)


async def _stored(link: Link, stream: str, body: dict[str, Any]) -> dict[str, Any]:
    from headrace.client.errors import NotFound, StreamNotFound

    try:
        found: dict[str, Any] = (await link.api(f"STREAM.MSG.GET.{stream}", body))["message"]
    except StreamNotFound:
        raise
    except NotFound:
        which = " ".join(str(value) for value in body.values())
        raise Failure(f"{stream} has no such message ({which})", NOT_FOUND) from None
    return found


def headers_of(encoded: str | None) -> dict[str, str]:
    """The headers of a stored message; a name that comes several times keeps all its values."""
    found: dict[str, str] = {}
    for each in base64.b64decode(encoded or "").decode(errors="replace").split("\r\n")[1:]:
        name, colon, value = each.partition(":")
        if colon:
            found[name] = f"{found[name]}, {value.strip()}" if name in found else value.strip()
    return found


@message_commands.command()
@connected
async def rmm(
    link: Link,
    stream: Stream,
    seq: Annotated[int, typer.Argument(min=1, help="The message's sequence.")],
    erase: Annotated[
        bool, typer.Option("--erase", help="Overwrite its bytes on disk, where the server can.")
    ] = False,
    force: Force = False,
) -> None:
    """Remove a message from a stream."""
    await _stored(link, stream, {"seq": seq})
    show.confirm(f"Remove message {seq} of {stream}?", force)
    await link.api(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": not erase})
    show.done(link.json, {"stream": stream, "seq": seq}, f"removed message {seq} of {stream}")
