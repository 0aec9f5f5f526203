"""`headrace table ...`: streams as Apache Iceberg tables.

Owns the arguments and the output; the tables are in `headrace.tables`, which is imported when a command runs.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import output
from headrace.cli.exit_codes import CONFLICT, FAILED, USAGE_ERROR, CliError
from headrace.cli.session import CliSession, with_target, without_connection
from headrace.cli.table_session import (
    catalog_errors,
    load_selected,
    make_config,
    open_reader,
    open_table,
    parse_options,
    to_connection,
)
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.tables.service import TableService

table_app = typer.Typer(
    help="Write streams to Apache Iceberg tables, each message once.", no_args_is_help=True
)

ConfigFile = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", help="File with the tables (YAML).")
]
Name = Annotated[str, typer.Argument(help="Name of the table in the file; 'add' uses the stream's name.")]
_DEFAULT_FILE = Path("tables.yaml")


@table_app.command()
@with_target
def add(
    session: CliSession,
    stream: Annotated[str, typer.Argument(help="Stream to write to a table.")],
    table: Annotated[str, typer.Option(metavar="NAMESPACE.NAME", help="Name of the table in the catalog.")],
    catalog: Annotated[
        str, typer.Option(metavar="URL", help="Catalog: sqlite:///FILE, another SQL database, or http(s)://.")
    ],
    warehouse: Annotated[str, typer.Option(metavar="URL", help="Folder or s3://BUCKET for the files.")] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", metavar="KEY=VALUE", help="Other key of the table in the file; repeatable."
        ),
    ] = None,
    config: ConfigFile = _DEFAULT_FILE,
) -> None:
    """Create a table for a stream and add it to the file. 'headrace table run' writes it.

    Values of other keys are YAML, such as 'subject_columns={customer: 2}'. Keys with a dot, such as s3.endpoint=URL, and
    credential, token and scope are properties of the catalog.
    """
    from headrace.tables.catalog import create_table, open_catalog
    from headrace.tables.config import load_tables, save_tables

    tables = load_tables(config)
    if stream in tables:
        raise CliError(f"{config} has table {stream!r} already; change it there", CONFLICT)
    values = {"table": table, "catalog": catalog, "warehouse": warehouse, **parse_options(option or [])}
    new = make_config(stream, values)
    with open_reader(session.target, stream, new) as reader:
        reader.check_stream()
    with catalog_errors(new):
        create_table(open_catalog(new), new)
    save_tables(config, {**tables, stream: new})
    output.print_result(
        session.json,
        {"name": stream, "table": table, "config": str(config)},
        f"stream {new.stream} will be written to table {table}; start with 'headrace table run'",
    )


@table_app.command()
@with_target
def run(
    session: CliSession,
    names: Annotated[list[str] | None, typer.Argument(help="Tables; default: all in the file.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Write what the streams have now, then exit.")] = False,
    accept_new_stream: Annotated[
        bool,
        typer.Option(
            "--accept-new-stream", help="Append the messages of a stream that was deleted and created again."
        ),
    ] = False,
    metrics_port: Annotated[
        int, typer.Option(metavar="PORT", help="Serve /metrics for Prometheus and /tablez on this port.")
    ] = 0,
    metrics_host: Annotated[
        str, typer.Option(metavar="HOST", help="Address to listen on for --metrics-port.")
    ] = "127.0.0.1",
    stop_with_input: Annotated[
        bool, typer.Option("--stop-with-input", hidden=True, help="Stop when standard input ends.")
    ] = False,
    config: ConfigFile = _DEFAULT_FILE,
) -> int:
    """Write streams to their tables until it is stopped. Exits with 1 if a table stopped with an error."""
    from headrace.tables.config import load_connection, load_metrics_address
    from headrace.tables.service import RunOptions, TableService

    tables = load_selected(config, names)
    metrics = (metrics_host, metrics_port) if metrics_port else load_metrics_address(config)
    service = TableService(
        tables,
        {**to_connection(session.target), **load_connection(config)},
        RunOptions(once, accept_new_stream),
        lambda name, text: output.print_note(f"headrace: table {name}: {text}"),
    )
    if stop_with_input:
        _stop_with_input(service.stop)
    with _stop_on_signals(service.stop), _serve_metrics(service, *metrics):
        errors = service.run()
    if session.json:
        output.print_json({name: asdict(stats) for name, stats in service.stats.items()})
    return FAILED if errors else 0


@table_app.command()
@without_connection
def check(config: ConfigFile = _DEFAULT_FILE) -> None:
    """Check the file with the tables, without contacting catalogs or servers."""
    from headrace.extras import require_extra

    require_extra("tables", "pyiceberg", "pyarrow", "yaml")
    from headrace.tables.config import load_connection, load_metrics_address

    tables = load_selected(config, None)
    load_connection(config)
    load_metrics_address(config)
    typer.echo(f"{config}: {len(tables)} tables, no errors")


@table_app.command()
@with_target
def status(session: CliSession, config: ConfigFile = _DEFAULT_FILE) -> int:
    """Show how far the tables are. Exits with 1 if one of them needs attention."""
    from headrace.tables.inspection import TableStatus, fill_status

    found = []
    for name, settings in load_selected(config, None).items():
        shown = TableStatus(name, settings.stream, settings.table)
        try:
            with open_table(session.target, name, settings) as (table, reader):
                fill_status(shown, table, reader)
        except (HeadraceError, CliError) as error:
            shown.error = str(error)
        found.append(shown)
    if session.json:
        output.print_json([each.to_json() for each in found])
    else:
        rows = [
            (
                each.name,
                each.table,
                each.seq,
                each.lag_messages,
                each.rows,
                each.files,
                _format_age(each.age_s),
            )
            for each in found
        ]
        output.print_table(("name", "table", "sequence", "lag", "rows", "files", "last commit"), rows)
        for each in found:
            if each.error:
                output.print_note(f"headrace: table {each.name}: {each.error}")
    return FAILED if any(each.error for each in found) else 0


@table_app.command()
@without_connection
def history(
    name: Name,
    config: ConfigFile = _DEFAULT_FILE,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the snapshots of a table, and the position of each."""
    from headrace.tables.catalog import load_table, open_catalog
    from headrace.tables.inspection import list_history

    each = load_selected(config, [name])[name]
    with catalog_errors(each):
        entries = list_history(load_table(open_catalog(each), each))
    if json:
        output.print_json([asdict(entry) for entry in entries])
        return
    rows = [
        (
            entry.snapshot_id,
            f"{datetime.fromtimestamp(entry.time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}",
            entry.operation,
            entry.added_rows,
            entry.rows,
            entry.seq,
            entry.gap,
        )
        for entry in entries
    ]
    output.print_table(("snapshot", "time (UTC)", "operation", "added", "rows", "sequence", "gap"), rows)


@table_app.command()
@with_target
def verify(session: CliSession, name: Name, config: ConfigFile = _DEFAULT_FILE) -> int:
    """Check that a table has each message once, and all that the stream still has up to its position."""
    from headrace.tables.inspection import verify_table

    each = load_selected(config, [name])[name]
    with open_table(session.target, name, each) as (table, reader):
        report = verify_table(table, reader)
    for problem in report.problems:
        output.print_note(f"headrace: table {name}: {problem}")
    result = f"{len(report.problems)} problems" if report.problems else "no problems"
    output.print_result(
        session.json,
        asdict(report),
        f"{report.rows:,} rows up to sequence {report.seq:,}, {report.compared:,} compared with the stream: {result}",
    )
    return FAILED if report.problems else 0


@table_app.command()
@without_connection
def maintain(
    name: Name,
    config: ConfigFile = _DEFAULT_FILE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Expire old snapshots and delete files that nothing refers to, as 'headrace table run' does every hour and day."""
    from headrace.tables.maintenance import maintain_table

    each = load_selected(config, [name])[name]
    with catalog_errors(each):
        report = maintain_table(each, dry_run=dry_run)
    output.print_result(
        json,
        asdict(report),
        f"{report.expired_snapshots} snapshots expired, {report.orphan_files} orphan files ({report.orphan_bytes:,} bytes) "
        f"removed{' (dry run)' if dry_run else ''}",
    )


@table_app.command("rm")
@with_target
def remove(
    session: CliSession,
    name: Name,
    config: ConfigFile = _DEFAULT_FILE,
    drop: Annotated[
        bool, typer.Option("--drop", help="Also remove the table from the catalog; its files stay.")
    ] = False,
) -> None:
    """Remove a table from the file: its stream is no longer written to it. The table stays, unless --drop is given."""
    from headrace.tables.catalog import open_catalog
    from headrace.tables.config import load_tables, save_tables

    each = load_selected(config, [name])[name]
    with open_reader(session.target, name, each) as reader:
        try:
            reader.delete_consumer()
        except HeadraceError as error:
            output.print_note(
                f"headrace: table {name}: {error}. If its stream has interest or workqueue retention, delete consumer "
                f"headrace-table-{name}, or the stream keeps all messages for it"
            )
    if drop:
        with catalog_errors(each):
            open_catalog(each).drop_table(each.table)
    save_tables(config, {key: value for key, value in load_tables(config).items() if key != name})
    typer.echo(
        f"removed {name} from {config}" + (f", and table {each.table} from the catalog" if drop else "")
    )


@table_app.command()
@with_target
def resync(
    session: CliSession,
    name: Name,
    position: Annotated[
        int | None,
        typer.Option(
            metavar="SEQ",
            min=0,
            help="Last sequence that the table has; default: that of the snapshot it was rolled back to.",
        ),
    ] = None,
    allow_duplicates: Annotated[
        bool,
        typer.Option(
            "--allow-duplicates",
            help="Also set a --position below rows that the table has; sequences then occur twice.",
        ),
    ] = False,
    config: ConfigFile = _DEFAULT_FILE,
) -> None:
    """Set the position of a table that was rolled back, or whose stream was restored or moved."""
    from headrace.tables import inspection

    each = load_selected(config, [name])[name]
    with open_table(session.target, name, each) as (table, reader):
        new = inspection.resync(table, reader, position, allow_duplicates=allow_duplicates)
    output.print_result(
        session.json, {"name": name, **asdict(new)}, f"table {name} continues after sequence {new.seq:,}"
    )


@contextmanager
def _stop_on_signals(stop: Any) -> Iterator[None]:
    """Let SIGTERM and Ctrl-C end the run after the commit that was begun."""
    signals = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: stop()) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop_with_input(stop: Callable[[], None]) -> None:
    """End the run when the process ends that started this one, whatever ends it."""

    def wait() -> None:
        # Not sys.stdin, whose lock would be held when the interpreter ends.
        while os.read(0, 1 << 16):
            """Nothing is said there."""
        stop()

    threading.Thread(target=wait, name="headrace-table-input", daemon=True).start()


@contextmanager
def _serve_metrics(service: TableService, host: str, port: int) -> Iterator[None]:
    if not port:
        yield
        return
    from headrace.tables.metrics import MetricsServer

    try:
        server = MetricsServer(service, host, port)
    except OSError as error:
        raise CliError(f"metrics on {host}:{port}: {error}", USAGE_ERROR) from error
    try:
        yield
    finally:
        server.close()


def _format_age(age_s: float | None) -> str:
    return "never" if age_s is None else output.format_duration(round(age_s) * 1_000_000_000)
