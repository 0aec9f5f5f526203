"""`headrace top`: streams and consumers live, with rates from one look to the next.

Owns the looks and the arithmetic between them; drawing is at the end. It reads only the JetStream API, so it works on any
server and with any account's rights.
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

from headrace.cli import show
from headrace.cli.failures import MISUSED, Failure
from headrace.cli.link import Link, connected
from headrace.cli.server import round_trip_ns

top_app = typer.Typer(add_completion=False)

_CONSUMERS_SHOWN = 15
Sort = Literal["name", "messages", "size", "rate"]


@dataclass(frozen=True)
class Row:
    """A stream at a moment; rates are since the look before."""

    name: str
    messages: int
    bytes: int
    last_seq: int
    consumers: int
    subjects: int
    stored_per_s: float = 0.0
    bytes_per_s: float = 0.0


@dataclass(frozen=True)
class Look:
    """Everything at a moment."""

    at: float
    round_trip_ns: int
    streams: dict[str, Row]
    consumers: list[dict[str, Any]] = field(default_factory=list)


async def look(link: Link, before: Look | None, consumers: bool) -> Look:
    """Ask the server, and compare with the look before."""
    took = await round_trip_ns(link)
    found = await link.listed("STREAM.LIST", "streams")
    at = time.monotonic()
    rows = {}
    for info in found:
        row = _row(info, before, at)
        rows[row.name] = row
    lags = []
    if consumers:
        busy = sorted((row for row in rows.values() if row.consumers), key=lambda row: -row.stored_per_s)
        for row in busy[:_CONSUMERS_SHOWN]:
            lags += await link.listed(f"CONSUMER.LIST.{row.name}", "consumers")
    lags.sort(key=lambda info: (-info["num_pending"], -info["num_ack_pending"], info["name"]))
    return Look(at, took, rows, lags[:_CONSUMERS_SHOWN])


def _row(info: dict[str, Any], before: Look | None, at: float) -> Row:
    config, state = info["config"], info["state"]
    name = config["name"]
    old = before.streams.get(name) if before else None
    seconds = at - before.at if before else 0.0
    stored = growth = 0.0
    if old and seconds > 0:
        stored = max(0, state["last_seq"] - old.last_seq) / seconds
        growth = (state["bytes"] - old.bytes) / seconds
    return Row(
        name,
        state["messages"],
        state["bytes"],
        state["last_seq"],
        state["consumer_count"],
        state.get("num_subjects", 0),
        stored,
        growth,
    )


_ORDERS: dict[str, Any] = {
    "name": lambda row: row.name,
    "messages": lambda row: (-row.messages, row.name),
    "size": lambda row: (-row.bytes, row.name),
    "rate": lambda row: (-row.stored_per_s, row.name),
}


def facts_of(seen: Look, sort: str) -> dict[str, Any]:
    """A look for programs."""
    streams = sorted(seen.streams.values(), key=_ORDERS[sort])
    return {
        "round_trip_ms": round(seen.round_trip_ns / 1e6, 3),
        "streams": [{key: getattr(row, key) for key in row.__dataclass_fields__} for row in streams],
        "consumers": [
            {
                "stream": info["stream_name"],
                "name": info["name"],
                "unprocessed": info["num_pending"],
                "ack_pending": info["num_ack_pending"],
                "redelivered": info["num_redelivered"],
            }
            for info in seen.consumers
        ],
    }


@top_app.command()
@connected
async def top(
    link: Link,
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.1, help="Seconds between looks.")
    ] = 1.0,
    sort: Annotated[
        Sort, typer.Option("--sort", metavar="name|messages|size|rate", help="Which streams come first.")
    ] = "rate",
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, help="End after so many looks; 0 goes on.")
    ] = 0,
    consumers: Annotated[bool, typer.Option("--consumers/--no-consumers", help="Show consumers too.")] = True,
) -> None:
    """Show streams and consumers live: rates, sizes, lag. Ends with q or Ctrl-C.

    Into a pipe, or with --json, every look is printed: one JSON document a line.
    """
    if not (link.json or sys.stdout.isatty() or count):
        raise Failure("this is no terminal: add --json, or --count 1 for one look", MISUSED)
    drawn = sys.stdout.isatty() and not link.json
    before: Look | None = None
    number = 0
    link.stay()
    with _screen() if drawn else _lines(link, sort) as paint, _keys(drawn) as ended:
        while not ended.is_set():
            before = await look(link, before, consumers)
            paint(before, sort, link)
            number += 1
            if number == count:
                return
            try:
                await asyncio.wait_for(ended.wait(), interval)
            except TimeoutError:
                continue


@contextmanager
def _lines(link: Link, sort: str) -> Iterator[Any]:
    def paint(seen: Look, sort: str, link: Link) -> None:
        if link.json:
            show.line(facts_of(seen, sort))
            return
        rows = [_cells(row) for row in sorted(seen.streams.values(), key=_ORDERS[sort])]
        show.table(_COLUMNS, rows)

    yield paint


_COLUMNS = ("stream", "messages", "size", "subjects", "stored/s", "growth/s", "consumers")


def _cells(row: Row) -> tuple[str, ...]:
    growth = f"{'-' if row.bytes_per_s < 0 else ''}{show.size(abs(row.bytes_per_s))}"
    counts = (f"{row.messages:,}", show.size(row.bytes), f"{row.subjects:,}", f"{row.stored_per_s:,.0f}")
    return (row.name, *counts, growth, str(row.consumers))


@contextmanager
def _screen() -> Iterator[Any]:
    """The whole terminal, given back as it was."""
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as live:

        def paint(seen: Look, sort: str, link: Link) -> None:
            live.update(_drawing(seen, sort, link, live.console.size.height), refresh=True)

        yield paint


def _drawing(seen: Look, sort: str, link: Link, height: int) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    def table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]], room: int) -> Table:
        drawn = Table(box=SIMPLE_HEAD, expand=True, pad_edge=False, header_style="bold")
        for number, column in enumerate(columns):
            drawn.add_column(column, justify="right" if number else "left", no_wrap=True)
        for row in rows[: max(1, room)]:
            drawn.add_row(*(Text(show.printable(cell)) for cell in row))
        return drawn

    rate = sum(row.stored_per_s for row in seen.streams.values())
    size = sum(row.bytes for row in seen.streams.values())
    head = Text(
        f"headrace top  {link.target.shown}  round trip {seen.round_trip_ns / 1e6:.2f} ms  "
        f"{len(seen.streams)} streams  {show.size(size)}  {rate:,.0f} stored/s  (q ends)",
        style="reverse",
    )
    lags = [
        (
            f"{info['stream_name']} > {info['name']}",
            f"{info['num_pending']:,}",
            f"{info['num_ack_pending']:,}",
            f"{info['num_redelivered']:,}",
            f"{info['num_waiting']:,}",
        )
        for info in seen.consumers
    ]
    room = height - 5 - (len(lags) + 4 if lags else 0)
    streams = [_cells(row) for row in sorted(seen.streams.values(), key=_ORDERS[sort])]
    parts: list[Any] = [head, table(_COLUMNS, streams, room)]
    if lags:
        parts.append(
            table(("consumer", "unprocessed", "ack pending", "redelivered", "waiting"), lags, len(lags))
        )
    return Group(*parts)


@contextmanager
def _keys(drawn: bool) -> Iterator[asyncio.Event]:
    """Set when q is pressed; the terminal's mode is given back."""
    ended = asyncio.Event()
    if not (drawn and sys.stdin.isatty()):
        yield ended
        return
    import termios
    import tty

    terminal = sys.stdin.fileno()
    mode = termios.tcgetattr(terminal)
    loop = asyncio.get_running_loop()

    def pressed() -> None:
        if sys.stdin.read(1).lower() in ("q", ""):
            ended.set()

    tty.setcbreak(terminal)
    loop.add_reader(terminal, pressed)
    try:
        yield ended
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, mode)
