"""`headrace top`: streams and consumers live, with rates between two polls.

Owns the polls and the arithmetic between them; drawing is at the end. It uses only the JetStream API, so it works with
any server and with any account's permissions.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import typer

from headrace.cli import output
from headrace.cli.exit_codes import USAGE_ERROR, CliError
from headrace.cli.server import measure_round_trip_ns
from headrace.cli.session import CliSession, with_connection

top_app = typer.Typer(add_completion=False)

_CONSUMERS_SHOWN = 15
Sort = Literal["name", "messages", "size", "rate"]


@dataclass(frozen=True)
class StreamRow:
    """A stream at one moment; rates are since the previous sample."""

    name: str
    messages: int
    bytes: int
    last_seq: int
    consumers: int
    subjects: int
    stored_per_s: float = 0.0
    bytes_per_s: float = 0.0


@dataclass(frozen=True)
class Sample:
    """The state of all streams and the busiest consumers at one moment."""

    time_s: float
    round_trip_ns: int
    streams: dict[str, StreamRow]
    consumers: list[dict[str, Any]] = field(default_factory=list)


async def take_sample(session: CliSession, previous: Sample | None, consumers: bool) -> Sample:
    """Query the server, and compare with the previous sample."""
    rtt_ns = await measure_round_trip_ns(session)
    found = await session.list_all("STREAM.LIST", "streams")
    time_s = time.monotonic()
    rows = {}
    for info in found:
        row = _make_row(info, previous, time_s)
        rows[row.name] = row
    consumer_rows = []
    if consumers:
        busy = sorted((row for row in rows.values() if row.consumers), key=lambda row: -row.stored_per_s)
        for row in busy[:_CONSUMERS_SHOWN]:
            consumer_rows += await session.list_all(f"CONSUMER.LIST.{row.name}", "consumers")
    consumer_rows.sort(key=lambda info: (-info["num_pending"], -info["num_ack_pending"], info["name"]))
    return Sample(time_s, rtt_ns, rows, consumer_rows[:_CONSUMERS_SHOWN])


def _make_row(info: dict[str, Any], previous: Sample | None, time_s: float) -> StreamRow:
    config, state = info["config"], info["state"]
    name = config["name"]
    old = previous.streams.get(name) if previous else None
    seconds = time_s - previous.time_s if previous else 0.0
    stored = growth = 0.0
    if old and seconds > 0:
        stored = max(0, state["last_seq"] - old.last_seq) / seconds
        growth = (state["bytes"] - old.bytes) / seconds
    return StreamRow(
        name,
        state["messages"],
        state["bytes"],
        state["last_seq"],
        state["consumer_count"],
        state.get("num_subjects", 0),
        stored,
        growth,
    )


_SORT_KEYS: dict[str, Any] = {
    "name": lambda row: row.name,
    "messages": lambda row: (-row.messages, row.name),
    "size": lambda row: (-row.bytes, row.name),
    "rate": lambda row: (-row.stored_per_s, row.name),
}


def sample_to_json(sample: Sample, sort: str) -> dict[str, Any]:
    """Return a sample for programs."""
    streams = sorted(sample.streams.values(), key=_SORT_KEYS[sort])
    return {
        "round_trip_ms": round(sample.round_trip_ns / 1e6, 3),
        "streams": [{key: getattr(row, key) for key in row.__dataclass_fields__} for row in streams],
        "consumers": [
            {
                "stream": info["stream_name"],
                "name": info["name"],
                "unprocessed": info["num_pending"],
                "ack_pending": info["num_ack_pending"],
                "redelivered": info["num_redelivered"],
            }
            for info in sample.consumers
        ],
    }


@top_app.command()
@with_connection
async def top(
    session: CliSession,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.1, metavar="SECONDS", help="Seconds between updates.")
    ] = 1.0,
    sort: Annotated[
        Sort, typer.Option("--sort", metavar="name|messages|size|rate", help="Sort order of streams.")
    ] = "rate",
    count: Annotated[
        int,
        typer.Option(
            "--count",
            "-n",
            metavar="N",
            min=0,
            help="Stop after this many updates; 0: run until stopped.",
        ),
    ] = 0,
    consumers: Annotated[
        bool, typer.Option("--consumers/--no-consumers", help="Also show consumers.")
    ] = True,
) -> None:
    """Show streams and consumers live: rates, sizes, lag. Press q or Ctrl-C to quit.

    In a pipe or with --json, prints every update; with --json as one JSON document per line.
    """
    if not (session.json or sys.stdout.isatty() or count):
        raise CliError(
            "the output is not a terminal: add --json, or --count 1 for a single update", USAGE_ERROR
        )
    drawn = sys.stdout.isatty() and not session.json
    previous: Sample | None = None
    number = 0
    session.enable_reconnect()
    with (
        _screen_painter() if drawn else _line_painter(session, sort) as paint,
        _quit_on_key(drawn) as quit_event,
    ):
        while not quit_event.is_set():
            previous = await take_sample(session, previous, consumers)
            paint(previous, sort, session)
            number += 1
            if number == count:
                return
            try:
                await asyncio.wait_for(quit_event.wait(), interval)
            except TimeoutError:
                continue


@contextmanager
def _line_painter(session: CliSession, sort: str) -> Iterator[Any]:
    def paint(sample: Sample, sort: str, session: CliSession) -> None:
        if session.json:
            output.print_json_line(sample_to_json(sample, sort))
            return
        rows = [_cells(row) for row in sorted(sample.streams.values(), key=_SORT_KEYS[sort])]
        output.print_table(_COLUMNS, rows)

    yield paint


_COLUMNS = ("stream", "messages", "size", "subjects", "stored/s", "growth/s", "consumers")
_CONSUMER_COLUMNS = ("consumer", "unprocessed", "ack pending", "redelivered", "waiting")


def _cells(row: StreamRow) -> tuple[str, ...]:
    growth = f"{'-' if row.bytes_per_s < 0 else ''}{output.format_size(abs(row.bytes_per_s))}"
    counts = (
        f"{row.messages:,}",
        output.format_size(row.bytes),
        f"{row.subjects:,}",
        f"{row.stored_per_s:,.0f}",
    )
    return (row.name, *counts, growth, str(row.consumers))


@contextmanager
def _screen_painter() -> Iterator[Any]:
    """Use the whole terminal, and restore it afterwards."""
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as live:

        def paint(sample: Sample, sort: str, session: CliSession) -> None:
            live.update(_render(sample, sort, session, live.console.size.height), refresh=True)

        yield paint


def _render(sample: Sample, sort: str, session: CliSession, height: int) -> Any:
    from rich.console import Group
    from rich.text import Text

    rate = sum(row.stored_per_s for row in sample.streams.values())
    size = sum(row.bytes for row in sample.streams.values())
    head = Text(
        f"headrace top  {session.target.display_urls}  round trip {sample.round_trip_ns / 1e6:.2f} ms  "
        f"{len(sample.streams)} streams  {output.format_size(size)}  {rate:,.0f} stored/s  (q: quit)",
        style="reverse",
    )
    consumer_rows = [
        (
            f"{info['stream_name']} > {info['name']}",
            f"{info['num_pending']:,}",
            f"{info['num_ack_pending']:,}",
            f"{info['num_redelivered']:,}",
            f"{info['num_waiting']:,}",
        )
        for info in sample.consumers
    ]
    row_limit = height - 5 - (len(consumer_rows) + 4 if consumer_rows else 0)
    streams = [_cells(row) for row in sorted(sample.streams.values(), key=_SORT_KEYS[sort])]
    parts: list[Any] = [head, _render_table(_COLUMNS, streams, row_limit)]
    if consumer_rows:
        parts.append(_render_table(_CONSUMER_COLUMNS, consumer_rows, len(consumer_rows)))
    return Group(*parts)


def _render_table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], row_limit: int) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=SIMPLE_HEAD, expand=True, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        drawn.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in rows[: max(1, row_limit)]:
        drawn.add_row(*(Text(output.escape_control(cell)) for cell in row))
    return drawn


@contextmanager
def _quit_on_key(drawn: bool) -> Iterator[asyncio.Event]:
    """Yield an event that is set when q is pressed; the terminal's mode is restored."""
    quit_event = asyncio.Event()
    if not (drawn and sys.stdin.isatty()):
        yield quit_event
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    mode = termios.tcgetattr(terminal)
    loop = asyncio.get_running_loop()

    def on_key() -> None:
        if sys.stdin.read(1).lower() in ("q", ""):
            quit_event.set()

    tty.setcbreak(terminal)
    loop.add_reader(terminal, on_key)
    try:
        yield quit_event
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, mode)
