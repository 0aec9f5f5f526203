"""Output of commands: tables for people, JSON for programs, and no control characters from messages on a terminal.

On a terminal tables are drawn with rich; a pipe gets plain columns, not truncated. Must not know connections.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Protocol

import typer

from headrace.cli.exit_codes import FAILED, USAGE_ERROR, CliError

_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_NUMBER = re.compile(r"[-+]?\d[\d,._]*( ?[A-Za-zµ%/]{1,6})?")
_SECOND_NS = 1_000_000_000


def is_terminal() -> bool:
    return sys.stdout.isatty()


def escape_control(text: str) -> str:
    """Make control characters visible: a payload must not move the cursor or change the window's title."""
    return _CONTROL_CHARACTERS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def format_payload(data: bytes) -> str:
    """Format a payload for reading; on a terminal without control characters."""
    text = data.decode(errors="backslashreplace")
    return escape_control(text) if is_terminal() else text


def encode_payload(data: bytes) -> dict[str, str]:
    """Encode a payload for JSON: as text if it is UTF-8, otherwise in base64."""
    try:
        return {"payload": data.decode()}
    except UnicodeDecodeError:
        import base64

        return {"payload_base64": base64.b64encode(data).decode()}


def print_message(
    head: str, headers: Mapping[str, str] | None, payload: bytes, *, raw: bool = False, ending: bytes = b""
) -> None:
    """Print a message: its source, its headers, its payload; raw is the payload alone, byte by byte."""
    if raw:
        sys.stdout.buffer.write(payload + ending)
        sys.stdout.buffer.flush()
        return
    lines = [head, *(f"{name}: {value}" for name, value in (headers or {}).items())]
    typer.echo("\n".join([*map(escape_control, lines), format_payload(payload)]))


def print_json(value: Any) -> None:
    """Print one JSON document."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """Print a JSON document on one line."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def print_result(json: bool, values: Mapping[str, object], text: str) -> None:
    """Print what was done, for programs or for people."""
    if json:
        print_json(values)
    else:
        typer.echo(escape_control(text))


def print_note(text: str) -> None:
    """Print a note, separate from the result."""
    typer.echo(text, err=True)


def bold(text: str) -> str:
    plain = not is_terminal() or os.environ.get("NO_COLOR")
    return text if plain else f"\x1b[1m{text}\x1b[0m"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table; numbers are right-aligned."""
    cells = [[escape_control("" if cell is None else str(cell)) for cell in row] for row in rows]
    align_right = [
        bool(cells) and all(not row[at] or _NUMBER.fullmatch(row[at]) for row in cells)
        for at in range(len(columns))
    ]
    if is_terminal():
        _print_rich_table(columns, cells, align_right, title)
    else:
        _print_plain_table(columns, cells, align_right)


def _print_rich_table(
    columns: Sequence[str], cells: list[list[str]], align_right: list[bool], title: str
) -> None:
    from rich.box import ROUNDED
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=title or None, box=ROUNDED, title_justify="left", header_style="bold")
    for name, numeric in zip(columns, align_right, strict=True):
        drawn.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    Console().print(drawn)


def _print_plain_table(columns: Sequence[str], cells: list[list[str]], align_right: list[bool]) -> None:
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for row in ([name.upper() for name in columns], *cells):
        padded = [
            cell.rjust(width) if numeric else cell.ljust(width)
            for cell, width, numeric in zip(row, widths, align_right, strict=True)
        ]
        typer.echo("  ".join(padded).rstrip())


def print_changes(json: bool, current: Mapping[str, object], changed: Mapping[str, object]) -> None:
    """Print what would change, field by field."""
    if json:
        print_json(changed)
    else:
        print_table(
            ("field", "current", "new"), [(key, current.get(key), new) for key, new in changed.items()]
        )


def print_fields(title: str, values: Mapping[str, object]) -> None:
    """Print named values under a title; None and empty values are omitted."""
    shown = {name: value for name, value in values.items() if value not in (None, "", [], {})}
    width = max((len(name) for name in shown), default=0)
    typer.echo(bold(escape_control(title)))
    for name, value in shown.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        typer.echo(f"  {name.rjust(width)}  {escape_control(text)}")


def format_size(count: float) -> str:
    """Format bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_limit(count: int | None) -> str:
    return "unlimited" if count is None or count < 0 else f"{count:,}"


def format_size_limit(count: int | None) -> str:
    return "unlimited" if count is None or count < 0 else format_size(count)


def format_duration(nanoseconds: int | None) -> str:
    """Format a duration in its two largest units."""
    if not nanoseconds:
        return "0s"
    seconds = nanoseconds / _SECOND_NS
    if seconds < 1:
        return f"{seconds * 1000:g}ms"
    units = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    for (unit, length), (next_unit, next_length) in pairwise(units):
        if seconds >= length:
            whole, rest = divmod(seconds, length)
            smaller = int(rest // next_length)
            return f"{int(whole)}{unit}" + (f"{smaller}{next_unit}" if smaller else "")
    return f"{seconds:.3g}s"


def trim_time(text: str) -> str:
    """Remove the zeros at the end of a fraction of a second, as servers do."""
    whole, dot, fraction = text.removesuffix("Z").partition(".")
    return f"{whole}{dot}{fraction}".rstrip("0").removesuffix(".") + "Z" if dot else text


def format_time(text: str | None) -> str:
    """Format a server's time to the millisecond; empty for none."""
    if not text or text.startswith("0001-"):
        return ""
    trimmed = re.sub(r"(\.\d{3})\d+", r"\1", text).replace("Z", "+00:00")
    return f"{datetime.fromisoformat(trimmed).astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def format_age(text: str | None) -> str:
    """Format how long ago a server's time was."""
    if not text or text.startswith("0001-"):
        return "never"
    then = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text).replace("Z", "+00:00"))
    return format_duration(max(0, round((datetime.now(UTC) - then).total_seconds())) * _SECOND_NS)


def confirm(question: str, force: bool) -> None:
    """Ask for confirmation on the terminal; raise CliError if it is declined or there is no terminal."""
    if force:
        return
    if not sys.stdin.isatty():
        raise CliError(f"{question} Cannot ask for confirmation without a terminal: add --force", USAGE_ERROR)
    if _read_line(f"{escape_control(question)} [y/N]: ").strip().lower() not in ("y", "yes"):
        raise CliError("cancelled; nothing was changed", FAILED)


def _read_line(question: str) -> str:
    """Read a line from the terminal. Ctrl-C ends the wait: the event loop's own handler would only record it."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        typer.echo(question, nl=False, err=True)
        return sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, handler)


class ProgressCallback(Protocol):
    """Counts completed work."""

    def __call__(self, done: int = 1) -> None: ...


def ask_next_page(position: str) -> bool:
    """Return whether to continue: on a terminal Enter continues and q ends; elsewhere there are no pages."""
    if not (is_terminal() and sys.stdin.isatty()):
        return True
    answer = _read_line(f"-- {escape_control(position)}; Enter: next page, q: quit -- ")
    return bool(answer) and not answer.strip().lower().startswith("q")


@contextmanager
def progress_bar(label: str, total: int | None, *, hidden: bool = False) -> Iterator[ProgressCallback]:
    """Show a progress bar on a terminal, nothing elsewhere. Call the yielded function with each piece of work done."""
    if hidden or not sys.stderr.isatty():
        yield lambda done=1: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(label, total=total)
        yield lambda done=1: bars.advance(task, done)
