"""`headrace sql`: queries over streams with DuckDB. The tables are in `sql_streams`, the shell in `sql_shell`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from headrace.cli import output, row_files, standard_input, stream_scan
from headrace.cli.exit_codes import USAGE_ERROR, CliError
from headrace.cli.session import CliSession, with_connection
from headrace.cli.shared_options import Force, Since, Subjects, Until
from headrace.cli.sql_streams import ScanSettings, StreamDatabase
from headrace.extras import require_extra

if TYPE_CHECKING:
    import pyarrow as pa

sql_app = typer.Typer(add_completion=False)
Format = Literal["table", "csv", "json", "jsonl", "parquet"]
#: Rows of a table on a terminal; a pipe gets all.
_TERMINAL_ROWS = 1000


@sql_app.command()
@with_connection
async def sql(
    session: CliSession,
    query: Annotated[str | None, typer.Argument(help="SQL; default: standard input, or a shell.")] = None,
    file_format: Annotated[
        Format | None,
        typer.Option("--format", metavar="FORMAT", help="table, csv, json, jsonl or parquet."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the result to this file."),
    ] = None,
    since: Since = "",
    until: Until = "",
    subject: Subjects = None,
    force: Force = False,
) -> None:
    """Query streams with SQL (DuckDB).

    Streams are tables with the columns seq, time, subject, headers and data. Functions: as_text(data),
    as_json(data)->>'$.price', header(headers, 'Nats-Msg-Id'). Quote names with other characters: "MY-STREAM".
    --since, --until and --subject limit what is read of each stream. Requires the extra headrace[sql].
    """
    require_extra("sql", "duckdb", "pyarrow")
    chosen = _choose_format(file_format, file, session.json)
    bounds = stream_scan.parse_bound(since), stream_scan.parse_bound(until)
    settings = ScanSettings(*bounds, tuple(subject or ()))
    is_shell = query is None and sys.stdin.isatty()
    if query is None and not is_shell:
        query = (await standard_input.read_all()).decode()
    if file is not None and file.exists():
        output.confirm(f"Replace {file}?", force)

    def work() -> None:
        with StreamDatabase(session.target, settings) as database:
            if is_shell:
                from headrace.cli.sql_shell import run_shell

                run_shell(database, chosen)
            else:
                run_query(database, query or "", chosen, file)

    await stream_scan.run_blocking(session, work)


def _choose_format(file_format: str | None, file: Path | None, json: bool) -> str:
    """Return the format that was given, or that of the file's name."""
    if file_format == "table" and file is not None:
        raise CliError("--format table is for the terminal: write csv, json, jsonl or parquet", USAGE_ERROR)
    if file_format == "parquet" and file is None:
        raise CliError("Parquet needs a file: add --output FILE.parquet", USAGE_ERROR)
    if file_format:
        return file_format
    if file is not None:
        return "json" if file.suffix.lower() == ".json" else row_files.choose_format(file)
    return "json" if json else "table"


def run_query(database: StreamDatabase, text: str, file_format: str, file: Path | None = None) -> None:
    """Run all statements of a text. Tables are printed for each of them, other formats for the last one."""
    statements = database.split(text)
    if not statements:
        raise CliError("the query is empty", USAGE_ERROR)
    for number, statement in enumerate(statements, 1):
        is_last = number == len(statements)
        rows = database.run(statement)
        if rows is None:
            continue
        try:
            if file_format == "table":
                _print_table(database, rows)
            elif is_last and file is not None:
                _write_file(database, rows, file_format, file)
            elif is_last:
                _print_rows(database, rows, file_format)
            else:
                _drain(database, rows)
        finally:
            # DuckDB runs the next statement only when no result is open.
            rows.close()


def _print_rows(database: StreamDatabase, rows: pa.RecordBatchReader, file_format: str) -> None:
    writer = row_files.make_writer(file_format, sys.stdout.buffer, rows.schema)
    for batch in database.iter_result(rows):
        writer.write(batch)
    writer.close()


def _drain(database: StreamDatabase, rows: pa.RecordBatchReader) -> None:
    """Run a statement to its end: DuckDB computes a result as it is read."""
    for _ in database.iter_result(rows):
        pass


def _print_table(database: StreamDatabase, rows: pa.RecordBatchReader) -> None:
    maximum = _TERMINAL_ROWS if output.is_terminal() else None
    cells: list[list[str]] = []
    with database.counter.show():
        for batch in database.iter_result(rows):
            cells += _format_rows(batch)
            if maximum is not None and len(cells) > maximum:
                break
    output.print_table(rows.schema.names, cells[:maximum])
    if maximum is not None and len(cells) > maximum:
        output.print_note(f"the first {maximum:,} rows; for all of them add --output FILE.csv, or a limit")


def _write_file(database: StreamDatabase, rows: pa.RecordBatchReader, file_format: str, file: Path) -> None:
    count = 0
    with database.counter.show(), row_files.open_writer(file_format, file, rows.schema) as writer:
        for batch in database.iter_result(rows):
            writer.write(batch)
            count += batch.num_rows
    output.print_note(f"wrote {count:,} rows to {file}, {output.format_size(file.stat().st_size)}")


def _format_rows(batch: pa.RecordBatch) -> Iterator[list[str]]:
    names = batch.schema.names
    for row in row_files.iter_json_rows(batch):
        yield [_format_cell(row, name) for name in names]


def _format_cell(row: dict[str, Any], name: str) -> str:
    """Return a value as text; bytes that are not UTF-8 are escaped."""
    import base64
    import json

    if name not in row:
        return base64.b64decode(row[f"{name}_base64"]).decode(errors="backslashreplace")
    value = row[name]
    if value is None:
        return "NULL"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
