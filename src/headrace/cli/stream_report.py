"""`headrace stream report`: all streams of an account in one table."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from headrace.cli import output
from headrace.cli.session import CliSession, with_connection

report_commands = typer.Typer()
Sort = Literal["name", "messages", "bytes", "consumers", "lag", "last"]


@report_commands.command()
@with_connection
async def report(
    session: CliSession,
    sort: Annotated[
        Sort, typer.Option(metavar="COLUMN", help="name, messages, bytes, consumers, lag or last.")
    ] = "name",
    reverse: Annotated[bool, typer.Option("--reverse", help="Reverse the order.")] = False,
) -> None:
    """Report on all streams: sizes, consumers, lag, last activity.

    Lag is the number of messages that the slowest consumer has not acknowledged; for a mirror or a stream with
    sources, upstream lag is what it has not copied. Numbers are sorted from large to small, last from new to old.
    """
    found = await session.list_all("STREAM.LIST", "streams")
    rows = []
    with output.progress_bar("streams", len(found)) as step:
        for info in found:
            rows.append(await _make_row(session, info))
            step()
    rows = sort_rows(rows, sort, reverse)
    if session.json:
        output.print_json(rows)
    elif not rows:
        output.print_note("no streams; create one with 'headrace stream add'")
    else:
        _print_rows(rows)


async def _make_row(session: CliSession, info: dict[str, Any]) -> dict[str, Any]:
    config, state = info["config"], info["state"]
    consumers = []
    if state["consumer_count"]:
        consumers = await session.list_all(f"CONSUMER.LIST.{config['name']}", "consumers")
    upstreams = [info["mirror"]] if info.get("mirror") else info.get("sources") or []
    return {
        "stream": config["name"],
        "storage": config["storage"],
        "messages": state["messages"],
        "bytes": state["bytes"],
        "consumers": state["consumer_count"],
        "lag": max((each["num_pending"] + each["num_ack_pending"] for each in consumers), default=None),
        "upstream_lag": max((each["lag"] for each in upstreams), default=None),
        "last": state.get("last_ts"),
    }


def sort_rows(rows: list[dict[str, Any]], sort: str, reverse: bool) -> list[dict[str, Any]]:
    """Return the rows in the order of a column: names from A to Z, numbers and times from large to small."""
    rows = sorted(rows, key=lambda row: str(row["stream"]))
    if sort == "last":
        rows.sort(key=lambda row: str(row["last"] or ""), reverse=True)
    elif sort != "name":
        rows.sort(key=lambda row: -1 if row[sort] is None else int(row[sort]), reverse=True)
    return rows[::-1] if reverse else rows


def _print_rows(rows: list[dict[str, Any]]) -> None:
    columns = ["stream", "storage", "messages", "bytes", "consumers", "lag", "last"]
    if any(row["upstream_lag"] is not None for row in rows):
        columns.insert(6, "upstream_lag")
    titles = [name.replace("_", " ") for name in columns]
    output.print_table(titles, ([_format(name, row[name]) for name in columns] for row in rows))


def _format(name: str, value: Any) -> object:
    if name == "last":
        return output.format_age(value)
    if name == "bytes":
        return output.format_size(value)
    return f"{value:,}" if isinstance(value, int) else value
