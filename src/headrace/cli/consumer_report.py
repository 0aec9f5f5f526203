"""`headrace consumer report`: how far consumers are behind, those that are stuck first."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from headrace.cli import completion_names, output
from headrace.cli.session import CliSession, with_connection

report_commands = typer.Typer()


@report_commands.command()
@with_connection
async def report(
    session: CliSession,
    stream: Annotated[
        str,
        typer.Argument(
            help="Stream name; default: all streams.", autocompletion=completion_names.complete_streams
        ),
    ] = "",
) -> None:
    """Report on consumers, the stuck ones first.

    Pending messages have not been delivered yet; oldest is the age of the first message that is not acknowledged.
    The state says what keeps a consumer from its messages: paused, max ack pending (no acknowledgements arrive),
    no pulls, no subscriber, or redelivering.
    """
    names = [stream] if stream else await session.list_all("STREAM.NAMES", "streams")
    rows: list[dict[str, Any]] = []
    with output.progress_bar("streams", len(names)) as step:
        for name in names:
            for info in await session.list_all(f"CONSUMER.LIST.{name}", "consumers"):
                rows.append(await _make_row(session, info))
            step()
    rows.sort(key=_rank)
    if session.json:
        output.print_json(rows)
    elif not rows:
        output.print_note("no consumers; create one with 'headrace consumer add STREAM NAME'")
    else:
        _print_rows(rows, show_stream=not stream)


async def _make_row(session: CliSession, info: dict[str, Any]) -> dict[str, Any]:
    unfinished = info["num_pending"] + info["num_ack_pending"]
    oldest = await _find_oldest(session, info) if unfinished else None
    return {
        "stream": info["stream_name"],
        "consumer": info["name"],
        "state": describe_state(info),
        "pending": info["num_pending"],
        "ack_pending": info["num_ack_pending"],
        "redelivered": info["num_redelivered"],
        "oldest": oldest,
        "last_delivery": info["delivered"].get("last_active"),
        "last_ack": info["ack_floor"].get("last_active"),
    }


def describe_state(info: dict[str, Any]) -> str:
    """Return what keeps a consumer from delivering; empty if nothing does."""
    config = info["config"]
    limit = config.get("max_ack_pending") or 0
    if info.get("paused"):
        return "paused"
    if 0 < limit <= info["num_ack_pending"]:
        return "max ack pending"
    if info["num_pending"] and config.get("deliver_subject") and not info.get("push_bound"):
        return "no subscriber"
    if info["num_pending"] and not config.get("deliver_subject") and not info["num_waiting"]:
        return "no pulls"
    return "redelivering" if info["num_redelivered"] else ""


async def _find_oldest(session: CliSession, info: dict[str, Any]) -> str | None:
    """Return the time of the first message after the ack floor that the consumer's filters select."""
    from headrace.client.errors import NotFound

    config = info["config"]
    filters = config.get("filter_subjects") or [config.get("filter_subject") or ">"]
    times = []
    for subject in filters:
        body = {"seq": info["ack_floor"]["stream_seq"] + 1, "next_by_subj": subject}
        try:
            found = await session.api_request(f"STREAM.MSG.GET.{info['stream_name']}", body)
        except NotFound:
            continue
        times.append(str(found["message"]["time"]))
    return min(times, default=None)


def _rank(row: dict[str, Any]) -> tuple[object, ...]:
    """Order rows: stuck consumers, then those that redeliver, then the oldest pending message."""
    is_stuck = row["state"] not in ("", "redelivering")
    is_fine = not row["state"]
    oldest = row["oldest"] or datetime.now(UTC).isoformat()
    return not is_stuck, is_fine, oldest, row["stream"], row["consumer"]


def _print_rows(rows: list[dict[str, Any]], *, show_stream: bool) -> None:
    # The other times are in the JSON only: with them the table does not fit into 80 columns.
    columns = ["consumer", "state", "pending", "ack_pending", "redelivered", "oldest"]
    columns = ["stream", *columns] if show_stream else columns
    titles = [name.replace("_", " ") for name in columns]
    output.print_table(titles, ([_format(name, row[name]) for name in columns] for row in rows))


def _format(name: str, value: Any) -> object:
    if name == "oldest":
        return output.format_age(value) if value else ""
    return f"{value:,}" if isinstance(value, int) else value
