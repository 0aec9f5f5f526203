"""`headrace export`: messages of a stream as a Parquet, CSV or JSON lines file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli import output, row_files, stream_scan
from headrace.cli.session import CliSession, with_connection
from headrace.cli.shared_options import Force, Limit, Since, Stream, Subjects, Until
from headrace.extras import require_extra

export_app = typer.Typer(add_completion=False)


@export_app.command()
@with_connection
async def export(
    session: CliSession,
    stream: Stream,
    file: Annotated[Path, typer.Argument(help="File to write: .parquet, .csv, .jsonl or .ndjson.")],
    since: Since = "",
    until: Until = "",
    subject: Subjects = None,
    limit: Limit = 0,
    force: Force = False,
) -> None:
    """Write the messages of a stream to a file.

    The ending of the file name chooses the format. The columns are seq, time, subject, headers and data. The file
    appears when it is complete; an export that is interrupted leaves none. Requires the extra headrace[read].
    """
    require_extra("read", "pyarrow")
    file_format = row_files.choose_format(file)
    scan_range = await stream_scan.resolve_range(session, stream, since, until)
    if file.exists():
        output.confirm(f"Replace {file}?", force)
    batches = stream_scan.iter_batches(session.target, stream, scan_range, subject, limit)
    started = time.monotonic()
    rows = await stream_scan.run_blocking(
        session, lambda: _write_file(file, file_format, batches, scan_range, f"exporting {stream}")
    )
    values = {"stream": stream, "file": str(file), "messages": rows, "bytes": file.stat().st_size}
    elapsed = output.format_duration(round((time.monotonic() - started) * 1e9))
    text = f"exported {rows:,} messages of {stream} to {file}, {output.format_size(file.stat().st_size)}, in {elapsed}"
    output.print_result(session.json, values, text)


def _write_file(
    file: Path,
    file_format: str,
    batches: stream_scan.Batches,
    scan_range: stream_scan.ScanRange,
    label: str,
) -> int:
    """Write all batches to a file; return the number of rows."""
    rows, position = 0, scan_range.start
    schema = stream_scan.make_schema()
    with (
        row_files.open_writer(file_format, file, schema) as writer,
        output.progress_bar(label, scan_range.length) as step,
    ):
        for batch in batches:
            writer.write(batch)
            rows += batch.num_rows
            if batch.num_rows:
                last = batch.column("seq")[-1].as_py()
                step(last + 1 - position)
                position = last + 1
    return rows
