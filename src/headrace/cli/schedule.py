"""`headrace schedule ...`: messages that a stream with `allow_msg_schedules` publishes later, once or again and again."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli import completion_names, output
from headrace.cli.exit_codes import NOT_FOUND, USAGE_ERROR, CliError
from headrace.cli.messages import parse_headers, read_payload
from headrace.cli.session import CliSession, with_connection
from headrace.cli.shared_options import Force, Headers, Payload
from headrace.cli.stream_messages import decode_headers
from headrace.cli.subject_streams import find_stream, list_subjects

schedule_app = typer.Typer(help="Add, list and remove scheduled messages.", no_args_is_help=True)

ScheduleSubject = Annotated[str, typer.Argument(help="Subject that the schedule is stored under.")]
_SCHEDULE, _TARGET, _TTL = "Nats-Schedule", "Nats-Schedule-Target", "Nats-Schedule-TTL"


@schedule_app.command("add")
@with_connection
async def add(
    session: CliSession,
    subject: ScheduleSubject,
    when: Annotated[str, typer.Argument(help="10m, a time, '@every 5m', '@daily' or a cron expression.")],
    target: Annotated[str, typer.Argument(help="Subject to publish to; in the same stream.")],
    payload: Payload = None,
    ttl: Annotated[str, typer.Option(metavar="DURATION", help="TTL of the published messages.")] = "",
    header: Headers = None,
) -> None:
    """Schedule a message: once after a duration or at a time, or repeatedly.

    A subject has one schedule; adding another replaces it. The stream needs --allow-schedules.
    """
    stream = await find_stream(session, subject)
    config = (await session.api_request(f"STREAM.INFO.{stream}"))["config"]
    if not config.get("allow_msg_schedules"):
        raise CliError(
            f"stream {stream} has no schedules: allow them with 'headrace stream edit {stream} --allow-schedules'",
            USAGE_ERROR,
        )
    headers = {**(parse_headers(header) or {}), _SCHEDULE: parse_when(when), _TARGET: target}
    headers |= {_TTL: ttl} if ttl else {}
    ack = await session.js.publish(subject, await read_payload(payload), headers=headers)
    values = {
        "stream": stream,
        "seq": ack.seq,
        "subject": subject,
        "schedule": headers[_SCHEDULE],
        "target": target,
    }
    output.print_result(session.json, values, f"scheduled {target}: {headers[_SCHEDULE]}, as {subject}")


def parse_when(text: str) -> str:
    """Return a schedule as the server reads it; a duration or a time becomes `@at`."""
    from headrace.cli.consumer_options import parse_time

    if text.startswith("@") or " " in text.strip():
        return text.strip()
    return f"@at {parse_time(text, future=True):%Y-%m-%dT%H:%M:%SZ}"


@schedule_app.command("ls")
@with_connection
async def ls(
    session: CliSession,
    stream: Annotated[
        str,
        typer.Argument(
            help="Stream name; default: all with schedules.", autocompletion=completion_names.complete_streams
        ),
    ] = "",
) -> None:
    """List the schedules of a stream, or of all streams."""
    if stream:
        names = [(await session.api_request(f"STREAM.INFO.{stream}"))["config"]["name"]]
    else:
        infos = await session.list_all("STREAM.LIST", "streams")
        names = sorted(info["config"]["name"] for info in infos if info["config"].get("allow_msg_schedules"))
    rows = []
    for name in names:
        subjects = await list_subjects(session, name)
        with output.progress_bar(f"schedules of {name}", len(subjects)) as step:
            for subject in subjects:
                rows += [found] if (found := await _find_schedule(session, name, subject)) else []
                step()
    if session.json:
        output.print_json(rows)
    elif not rows:
        output.print_note("no schedules; add one with 'headrace schedule add SUBJECT WHEN TARGET'")
    else:
        output.print_table(tuple(rows[0]), [tuple(row.values()) for row in rows])


async def _find_schedule(session: CliSession, stream: str, subject: str) -> dict[str, Any] | None:
    """Return the schedule of a subject; None if its last message is not one."""
    from headrace.client.errors import NotFound

    try:
        body = {"last_by_subj": subject}
        stored = (await session.api_request(f"STREAM.MSG.GET.{stream}", body))["message"]
    except NotFound:
        return None
    headers = decode_headers(stored.get("hdrs"))
    if _SCHEDULE not in headers:
        return None
    return {
        "stream": stream,
        "subject": subject,
        "schedule": headers[_SCHEDULE],
        "target": headers.get(_TARGET, ""),
        "added": output.format_time(stored["time"]),
    }


@schedule_app.command("rm")
@with_connection
async def rm(session: CliSession, subject: ScheduleSubject, force: Force = False) -> None:
    """Remove the schedule of a subject."""
    stream = await find_stream(session, subject)
    found = await _find_schedule(session, stream, subject)
    if found is None:
        raise CliError(f"{subject} has no schedule; list them with 'headrace schedule ls'", NOT_FOUND)
    output.confirm(f"Remove the schedule {found['schedule']} of {subject}?", force)
    await session.api_request(f"STREAM.PURGE.{stream}", {"filter": subject})
    output.print_result(session.json, found, f"removed the schedule of {subject}")
