"""`headrace counter ...`: counters, each a subject of a stream with `allow_msg_counter`."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any

import typer

from headrace.cli import completion_names, output
from headrace.cli.exit_codes import NOT_FOUND, USAGE_ERROR, CliError
from headrace.cli.session import CliSession, with_connection
from headrace.cli.subject_streams import find_stream, list_subjects

counter_app = typer.Typer(help="Increment, read and list counters.", no_args_is_help=True)

CounterSubject = Annotated[str, typer.Argument(help="Subject of the counter.")]


@counter_app.command("incr", context_settings={"ignore_unknown_options": True})
@with_connection
async def incr(
    session: CliSession,
    subject: CounterSubject,
    value: Annotated[str, typer.Argument(help="Integer to add; -1 subtracts one.")] = "1",
) -> None:
    """Add to a counter, and print its new value.

    A counter exists once it is incremented. Its stream must have been created with --allow-counter.
    """
    from headrace.client.errors import make_error

    try:
        amount = int(value)
    except ValueError:
        raise CliError(f"{value!r} is not an integer", USAGE_ERROR) from None
    await _find_counter_stream(session, subject)
    response = await session.nc.request(
        subject, b"", timeout=session.timeout, headers={"Nats-Incr": f"{amount:+d}"}
    )
    ack: dict[str, Any] = json.loads(response.data)
    if "error" in ack:
        raise make_error(ack["error"])
    _print_value(session, subject, ack["val"])


@counter_app.command("get")
@with_connection
async def get(session: CliSession, subject: CounterSubject) -> None:
    """Print the value of a counter."""
    stream = await _find_counter_stream(session, subject)
    value = await _read_value(session, stream, subject)
    if value is None:
        raise CliError(f"{subject} has no value yet; add to it with 'headrace counter incr'", NOT_FOUND)
    _print_value(session, subject, value)


@counter_app.command("ls")
@with_connection
async def ls(
    session: CliSession,
    stream: Annotated[
        str,
        typer.Argument(
            help="Stream name; default: all with counters.", autocompletion=completion_names.complete_streams
        ),
    ] = "",
    subject: Annotated[str, typer.Option(metavar="SUBJECT", help="Only counters that match this.")] = ">",
) -> None:
    """List counters and their values."""
    infos = await session.list_all("STREAM.LIST", "streams")
    names = [info["config"]["name"] for info in infos if info["config"].get("allow_msg_counter")]
    if stream and stream not in names:
        await session.api_request(f"STREAM.INFO.{stream}")
        raise CliError(f"{stream} has no counters: create a stream with --allow-counter", USAGE_ERROR)
    rows = []
    for name in [stream] if stream else sorted(names):
        for each in await list_subjects(session, name, subject):
            rows.append({"stream": name, "subject": each, "value": await _read_value(session, name, each)})
    if session.json:
        output.print_json(rows)
    elif not rows:
        output.print_note("no counters; add to one with 'headrace counter incr SUBJECT'")
    else:
        output.print_table(("stream", "subject", "value"), [tuple(row.values()) for row in rows])


async def _find_counter_stream(session: CliSession, subject: str) -> str:
    stream = await find_stream(session, subject)
    if not (await session.api_request(f"STREAM.INFO.{stream}"))["config"].get("allow_msg_counter"):
        raise CliError(
            f"stream {stream} has no counters: create one with 'headrace stream add NAME --subjects SUBJECT "
            "--allow-counter'",
            USAGE_ERROR,
        )
    return stream


async def _read_value(session: CliSession, stream: str, subject: str) -> str | None:
    """Return a counter's value, which has any number of digits; None if it was never incremented."""
    from headrace.client.errors import NotFound

    try:
        found = await session.api_request(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
    except NotFound:
        return None
    return str(json.loads(base64.b64decode(found["message"].get("data", "")))["val"])


def _print_value(session: CliSession, subject: str, value: str) -> None:
    output.print_result(session.json, {"subject": subject, "value": value}, value)
