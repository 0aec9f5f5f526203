"""`headrace stream view`, `find` and `gaps`: look into a stream without consuming it."""

from __future__ import annotations

import base64
import sys
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import output, stream_scan
from headrace.cli.exit_codes import NOT_FOUND, CliError
from headrace.cli.message_search import Search, make_search
from headrace.cli.session import CliSession, with_connection, with_options
from headrace.cli.shared_options import Headers, Raw, Since, Stream, Subjects, Until
from headrace.cli.stream_messages import decode_headers
from headrace.extras import require_extra

if TYPE_CHECKING:
    import pyarrow as pa

view_commands = typer.Typer()


@view_commands.command(rich_help_panel="Messages")
@with_connection
async def view(
    session: CliSession,
    stream: Stream,
    page: Annotated[int, typer.Option(metavar="N", min=1, help="Messages per page on a terminal.")] = 10,
    since: Since = "",
    subject: Annotated[str, typer.Option(metavar="SUBJECT", help="Only this subject.")] = ">",
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=0, help="At most this many; 0: all.")
    ] = 0,
    raw: Raw = False,
) -> None:
    """Page through the messages of a stream.

    On a terminal, Enter shows the next page and q ends. A pipe gets all messages.
    """
    scan_range = await stream_scan.resolve_range(session, stream, since)
    shown = 0
    async for stored in _iter_stored(session, stream, scan_range, subject):
        if (
            shown
            and shown % page == 0
            and not session.json
            and not output.ask_next_page(f"{stream}: {shown:,} shown")
        ):
            return
        _print_stored(session, stored, raw)
        shown += 1
        if shown == count:
            return
    if not shown:
        output.print_note(f"{stream} has no such messages")


async def _iter_stored(
    session: CliSession, stream: str, scan_range: stream_scan.ScanRange, subject: str
) -> AsyncIterator[dict[str, Any]]:
    """Yield the messages of a range, one request each: it works for every stream, and needs no extra."""
    from headrace.client.errors import NotFound, StreamNotFound

    seq = scan_range.start
    while seq < scan_range.end:
        body = {"seq": max(seq, 1), "next_by_subj": subject}
        try:
            stored = (await session.api_request(f"STREAM.MSG.GET.{stream}", body))["message"]
        except StreamNotFound:
            raise
        except NotFound:
            return
        seq = stored["seq"] + 1
        if seq <= scan_range.end:
            yield stored


def _print_stored(session: CliSession, stored: dict[str, Any], raw: bool) -> None:
    headers, payload = decode_headers(stored.get("hdrs")), base64.b64decode(stored.get("data", ""))
    _print_found(session, {**stored, "headers": headers}, payload, raw)


def _print_found(session: CliSession, found: dict[str, Any], payload: bytes, raw: bool) -> None:
    """Print a message as `stream get` does; JSON on one line."""
    if session.json:
        known = {key: found[key] for key in ("subject", "seq", "time", "headers")}
        output.print_json_line({**known, **output.encode_payload(payload)})
        return
    head = f"[{found['subject']}] sequence {found['seq']}, {output.format_time(found['time'])} UTC"
    output.print_message(head, found["headers"], payload, raw=raw, ending=b"\n")


#: Conditions of `find`, all of which must hold.
CONDITIONS: dict[str, Any] = {
    "regex": Annotated[bool | None, typer.Option("--regex", "-E", help="TEXT is a regular expression.")],
    "ignore_case": Annotated[bool | None, typer.Option("--ignore-case", "-i", help="Ignore case.")],
    "header": Headers,
    "subject": Subjects,
    "since": Since,
    "until": Until,
}


@view_commands.command(rich_help_panel="Messages")
@with_connection
@with_options(CONDITIONS, into="given")
async def find(
    session: CliSession,
    stream: Stream,
    given: dict[str, Any],
    text: Annotated[str, typer.Argument(help="Text in the payload; default: any.")] = "",
    count: Annotated[
        int, typer.Option("--count", "-n", metavar="N", min=0, help="Stop after this many; 0: find all.")
    ] = 0,
    raw: Raw = False,
) -> None:
    """Find messages by content, subject, header and time.

    All conditions must hold. --header NAME finds messages that have the header, --header NAME:VALUE those with that
    value. Exits with 3 if there is none. Requires the extra headrace[read].
    """
    require_extra("read", "pyarrow")
    search = make_search(text, bool(given.get("regex")), bool(given.get("ignore_case")), given.get("header"))
    scan_range = await stream_scan.resolve_range(
        session, stream, given.get("since", ""), given.get("until", "")
    )
    batches = stream_scan.iter_batches(session.target, stream, scan_range, given.get("subject"))

    def work() -> int:
        found = 0
        for row in _iter_matches(batches, search, scan_range, f"searching {stream}"):
            _print_found(session, row, row["data"], raw)
            found += 1
            if found == count:
                break
        return found

    if not await stream_scan.run_blocking(session, work):
        raise CliError(f"no such message in {stream}; sequences searched: {scan_range.length:,}", NOT_FOUND)


def _iter_matches(
    batches: Iterator[pa.RecordBatch], search: Search, scan_range: stream_scan.ScanRange, label: str
) -> Iterator[dict[str, Any]]:
    """Yield the rows that match. The progress bar is hidden while rows are printed to the same terminal."""
    from headrace.cli.row_files import iter_json_rows

    position = scan_range.start
    is_quiet = sys.stdout.isatty()
    with output.progress_bar(label, scan_range.length, hidden=is_quiet) as step:
        for batch in batches:
            matching = search.filter(batch)
            payloads = matching.column("data").to_pylist()
            for row, payload in zip(iter_json_rows(matching), payloads, strict=True):
                headers = {name: ", ".join(values) for name, values in (row["headers"] or {}).items()}
                yield {**row, "time": output.trim_time(row["time"]), "headers": headers, "data": payload}
            if batch.num_rows:
                last = batch.column("seq")[-1].as_py()
                step(last + 1 - position)
                position = last + 1


@view_commands.command(rich_help_panel="Messages")
@with_connection
async def gaps(session: CliSession, stream: Stream) -> None:
    """List the ranges of deleted messages in a stream."""
    info = await session.api_request(f"STREAM.INFO.{stream}", {"deleted_details": True})
    ranges = group_ranges(info["state"].get("deleted") or [])
    if session.json:
        output.print_json(
            [{"first": first, "last": last, "count": last - first + 1} for first, last in ranges]
        )
    elif not ranges:
        output.print_note(f"{stream} has no deleted messages between its first and its last")
    else:
        rows = [(f"{first:,}", f"{last:,}", f"{last - first + 1:,}") for first, last in ranges]
        output.print_table(("first", "last", "messages"), rows)


def group_ranges(seqs: list[int]) -> list[tuple[int, int]]:
    """Return the ranges of consecutive sequences, in order."""
    ranges: list[tuple[int, int]] = []
    for seq in sorted(seqs):
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1] = (ranges[-1][0], seq)
        else:
            ranges.append((seq, seq))
    return ranges
