"""`headrace stream get` and `rmm`: single messages of a stream."""

from __future__ import annotations

import base64
from typing import Annotated, Any

import typer

from headrace.cli import output
from headrace.cli.exit_codes import NOT_FOUND, USAGE_ERROR, CliError
from headrace.cli.session import CliSession, with_connection
from headrace.cli.shared_options import Force, Raw, Stream

message_commands = typer.Typer()


@message_commands.command(rich_help_panel="Messages")
@with_connection
async def get(
    session: CliSession,
    stream: Stream,
    seq: Annotated[int | None, typer.Argument(min=1, help="Sequence of the message.")] = None,
    last_for: Annotated[
        str, typer.Option(metavar="SUBJECT", help="Get the last message of this subject.")
    ] = "",
    next_for: Annotated[
        str,
        typer.Option(
            metavar="SUBJECT", help="Get the first message of this subject, at or after SEQ if given."
        ),
    ] = "",
    raw: Raw = False,
) -> None:
    """Get a message of a stream."""
    body: dict[str, Any]
    if last_for and not (seq or next_for):
        body = {"last_by_subj": last_for}
    elif next_for and not last_for:
        body = {"next_by_subj": next_for, "seq": seq or 1}
    elif seq and not last_for:
        body = {"seq": seq}
    else:
        raise CliError(
            "no message selected: give a sequence, --last-for, or --next-for (with or without a sequence)",
            USAGE_ERROR,
        )
    stored = await _get_message(session, stream, body)
    headers, payload = decode_headers(stored.get("hdrs")), base64.b64decode(stored.get("data", ""))
    if session.json:
        known = {key: stored[key] for key in ("subject", "seq", "time")}
        output.print_json({**known, "headers": headers, **output.encode_payload(payload)})
        return
    head = f"[{stored['subject']}] sequence {stored['seq']}, {output.format_time(stored['time'])} UTC"
    output.print_message(head, headers, payload, raw=raw)


async def _get_message(session: CliSession, stream: str, body: dict[str, Any]) -> dict[str, Any]:
    from headrace.client.errors import NotFound, StreamNotFound

    try:
        found: dict[str, Any] = (await session.api_request(f"STREAM.MSG.GET.{stream}", body))["message"]
    except StreamNotFound:
        raise
    except NotFound:
        selector_text = " ".join(str(value) for value in body.values())
        raise CliError(f"no message found in {stream} ({selector_text})", NOT_FOUND) from None
    return found


def decode_headers(encoded: str | None) -> dict[str, str]:
    """Decode the headers of a stored message; a repeated name keeps all its values."""
    found: dict[str, str] = {}
    for each in base64.b64decode(encoded or "").decode(errors="replace").split("\r\n")[1:]:
        name, colon, value = each.partition(":")
        if colon:
            found[name] = f"{found[name]}, {value.strip()}" if name in found else value.strip()
    return found


@message_commands.command(rich_help_panel="Messages")
@with_connection
async def rmm(
    session: CliSession,
    stream: Stream,
    seq: Annotated[int, typer.Argument(min=1, help="Sequence of the message.")],
    erase: Annotated[
        bool, typer.Option("--erase", help="Also overwrite its bytes on disk, if the server supports it.")
    ] = False,
    force: Force = False,
) -> None:
    """Remove a message from a stream."""
    await _get_message(session, stream, {"seq": seq})
    output.confirm(f"Remove message {seq} of {stream}?", force)
    await session.api_request(f"STREAM.MSG.DELETE.{stream}", {"seq": seq, "no_erase": not erase})
    output.print_result(session.json, {"stream": stream, "seq": seq}, f"removed message {seq} of {stream}")
