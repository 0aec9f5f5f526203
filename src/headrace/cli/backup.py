"""`headrace backup ...` and `headrace restore`: backups of a whole server, in a folder or an object store."""

from __future__ import annotations

import asyncio
import json as json_module
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import unquote, urlsplit

import typer

from headrace.cli import output
from headrace.cli.exit_codes import FAILED, NO_ANSWER, CliError
from headrace.cli.session import CliSession, with_connection, without_connection

if TYPE_CHECKING:
    from headrace.backup.backup_log import BackupLog
    from headrace.backup.pinned_stores import SourceStore
    from headrace.backup.records import BackupRecord
    from headrace.backup.retention import PruneResult
    from headrace.backup.target import BackupTarget

backup_app = typer.Typer(
    help="Back up a whole server to a folder or an object store; list and verify backups.",
    no_args_is_help=True,
)
restore_app = typer.Typer()

_PIN_SUBJECT, _UNPIN_SUBJECT = "$SYS.REQ.SERVER.PIN", "$SYS.REQ.SERVER.UNPIN"
_PIN_TIMEOUT_S = 120.0
_LEASE_S = 300

Result = TypeVar("Result")
Target = Annotated[
    str, typer.Argument(help="A folder, or s3://, gs:// or az://BUCKET/PREFIX; one for each server.")
]
Keep = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Then keep the newest N backups and remove the others.")
]
Full = Annotated[bool, typer.Option("--full", help="Send everything again, also what the target has.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@backup_app.command()
@with_connection
async def create(
    session: CliSession,
    target: Target,
    keep: Keep = None,
    full: Full = False,
    monitor: Annotated[
        str,
        typer.Option(metavar="URL", help="Monitoring port to fetch files from; default: that of the server."),
    ] = "",
) -> None:
    """Back up a running server: all accounts, streams and consumers, as of one moment.

    Reads the files of the store if it can, otherwise fetches them from the server's monitoring port. Sends only
    what the target lacks. Needs a user of the system account if the server has accounts.
    """
    from headrace.backup.pinned_stores import open_pinned_stores

    _check_packages()
    async with _pin_server(session) as (data, server):
        url = monitor or _make_monitor_url(session, data)
        stores = open_pinned_stores(data, url, session.target.tlsca)
        messages = sum(store["messages"] for store in data["stores"])
        await _back_up(target, stores, _RunOptions(server, messages, full, keep, session.json))


@backup_app.command()
@without_connection
def offline(
    directory: Annotated[
        Path, typer.Argument(help="The --store_dir of a stopped server, or the store of one account.")
    ],
    target: Target,
    keep: Keep = None,
    full: Full = False,
    json: Json = False,
) -> None:
    """Back up the store directory of a stopped server. The server cannot start meanwhile."""
    from headrace.backup.pinned_stores import OfflineStores

    _check_packages()
    source = OfflineStores(_list_offline_stores(directory))
    try:
        _run(_back_up(target, source.stores, _RunOptions("", 0, full, keep, json)))
    finally:
        source.close()


@backup_app.command("ls")
@without_connection
def list_backups(target: Target, json: Json = False) -> None:
    """List the backups of a target."""

    async def work(opened: BackupTarget, log: BackupLog) -> None:
        records = [record for _, record in log.list_backups()]
        if json:
            output.print_json([_describe(record) for record in records])
            return
        rows = [
            (
                record.id,
                f"{datetime.fromtimestamp(record.created_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S}",
                record.server,
                f"{record.streams:,}",
                output.format_size(record.bytes),
                output.format_size(record.sent_bytes),
            )
            for record in records
        ]
        output.print_table(("backup", "created (UTC)", "server", "streams", "size", "sent"), rows)

    _run(_with_log(target, work))


@backup_app.command()
@without_connection
def prune(
    target: Target,
    keep: Annotated[int, typer.Option(metavar="N", min=1, help="Number of the newest backups that remain.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    json: Json = False,
) -> None:
    """Remove older backups and what only they needed, without a new one. Safe while a backup is made."""

    async def work(opened: BackupTarget, log: BackupLog) -> None:
        from headrace.backup.retention import BackupRetention

        if not log.list_backups():
            raise CliError(f"{opened.name} has no backup")
        retention = BackupRetention(opened, log, keep)
        result = await (retention.plan() if dry_run else retention.run())
        for each in [] if json else result.dropped:
            output.print_note(f"backup {each}")
        values = {"dropped": result.dropped, "objects": result.objects, "removed_bytes": result.bytes}
        text = (
            f"{len(result.dropped)} backups and {result.objects} objects, {output.format_size(result.bytes)}"
        )
        output.print_result(json, values, f"{'would remove' if dry_run else 'removed'} {text}")

    # What a record that cannot be read needs is not known.
    _run(_with_log(target, work, is_lenient=False))


@backup_app.command()
@without_connection
def verify(
    target: Target,
    backup: Annotated[str | None, typer.Argument(help="ID of a backup; default: all.")] = None,
    json: Json = False,
) -> int:
    """Read every object of the backups and compare its checksum. Exits with 1 if one is missing or damaged."""
    return _run(_with_log(target, lambda opened, log: _verify(opened, log, backup, json)))


@restore_app.command()
@without_connection
def restore(
    target: Target,
    to: Annotated[
        Path,
        typer.Option(
            metavar="DIRECTORY", help="New --store_dir; must be empty, or have an unfinished restore."
        ),
    ],
    backup: Annotated[str, typer.Option(metavar="ID", help="ID of the backup.")] = "latest",
    json: Json = False,
) -> None:
    """Restore a backup into an empty directory; then start a server with --store_dir DIRECTORY.

    Verifies everything. No server starts on a restore that was interrupted; the same command completes it.
    """
    _run(_with_log(target, lambda opened, log: _restore(opened, log, backup, to, json)))


def _check_packages() -> None:
    """Raise CliError if a package is missing that the object stores of claims need."""
    try:
        import headrace.backup.target  # noqa: F401
    except ModuleNotFoundError as error:
        raise CliError(f"backups require the package {error.name}: pip install 'headrace[claims]'") from None


class _RunOptions:
    """The options of one run."""

    def __init__(self, server: str, messages: int, full: bool, keep: int | None, json: bool) -> None:
        self.server, self.messages = server, messages
        self.full, self.keep, self.json = full, keep, json


async def _back_up(url: str, stores: list[SourceStore], options: _RunOptions) -> None:
    from headrace.backup.backup_log import BackupLog
    from headrace.backup.create import BackupRun, count_bytes
    from headrace.backup.needed_files import find_needed_files
    from headrace.backup.retention import BackupRetention
    from headrace.backup.target import open_target

    target = open_target(url)
    try:
        await target.prepare()
        needed = [await asyncio.to_thread(find_needed_files, store) for store in stores]
        log = await BackupLog.load(target)
        with output.progress_bar("backing up", count_bytes(needed)) as step:
            run = BackupRun(
                target,
                log,
                server=options.server,
                messages=options.messages,
                full=options.full,
                progress=step,
            )
            record = await run.run(needed)
        pruned = await BackupRetention(target, log, options.keep).run() if options.keep is not None else None
        _print_created(target, record, pruned, options.json)
    finally:
        await target.close()


def _print_created(
    target: BackupTarget, record: BackupRecord, pruned: PruneResult | None, json: bool
) -> None:
    values = _describe(record) | {"target": target.name}
    text = (
        f"backup {record.id}: {record.streams:,} streams, {output.format_size(record.bytes)}, "
        f"{output.format_size(record.sent_bytes)} sent to {target.name}"
    )
    if pruned is not None:
        values |= {"dropped": pruned.dropped, "removed_bytes": pruned.bytes}
        text += f"; removed {len(pruned.dropped)} older backups ({output.format_size(pruned.bytes)})"
    output.print_result(json, values, text)


async def _verify(target: BackupTarget, log: BackupLog, backup: str | None, json: bool) -> int:
    from headrace.backup.verify import verify_backups

    records = [log.find(backup)[1]] if backup else [record for _, record in log.list_backups()]
    with output.progress_bar("verifying", None) as step:
        report = await verify_backups(target, log, records, step)
    for number, problem in log.damaged.items():
        report.add(f"record {number}", problem)
    if json:
        output.print_json(
            {
                "backups": report.backups,
                "objects": report.objects,
                "bytes": report.bytes,
                "problems": report.problems,
            }
        )
    else:
        for name, problems in report.problems.items():
            for problem in problems:
                output.print_note(f"backup {name}: {problem}")
        typer.echo(
            f"{report.backups} backups, {report.objects:,} objects, {output.format_size(report.bytes)}: "
            + (f"{len(report.problems)} damaged" if report.problems else "all intact")
        )
    return FAILED if report.problems else 0


async def _restore(target: BackupTarget, log: BackupLog, backup: str, to: Path, json: bool) -> None:
    from headrace.backup.restore import RestoreRun

    record = log.find(backup)[1]
    with output.progress_bar(f"restoring {record.id}", record.bytes) as step:
        await RestoreRun(target, log, record, to, step).run()
    output.print_result(
        json,
        _describe(record) | {"directory": str(to)},
        f"restored backup {record.id} to {to}: {record.streams:,} streams, {output.format_size(record.bytes)}",
    )


async def _with_log(
    url: str,
    work: Callable[[BackupTarget, BackupLog], Coroutine[Any, Any, Result]],
    *,
    is_lenient: bool = True,
) -> Result:
    _check_packages()
    from headrace.backup.backup_log import BackupLog
    from headrace.backup.target import open_target

    target = open_target(url)
    try:
        if not await target.exists():
            raise CliError(f"there are no backups in {target.name}")
        log = await BackupLog.load(target, is_lenient=is_lenient)
        for problem in log.damaged.values():
            output.print_note(f"headrace: {problem}; the backups in other records can be used")
        return await work(target, log)
    finally:
        await target.close()


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner() as runner:
        return runner.run(work)


@asynccontextmanager
async def _pin_server(session: CliSession) -> AsyncIterator[tuple[dict[str, Any], str]]:
    """Pin all stores of the server, and renew the lease until the end."""
    response = await _request(session, _PIN_SUBJECT, {"lease": _LEASE_S})
    data: dict[str, Any] = response["data"]

    async def renew() -> None:
        while True:
            await asyncio.sleep(_LEASE_S / 4)
            # If the server is gone, its files may still be there; if they are not, reading says so.
            with suppress(Exception):
                await _request(session, _PIN_SUBJECT, {"lease": _LEASE_S, "pin": data["pin"]})

    renewing = asyncio.create_task(renew())
    try:
        yield data, str(response["server"]["name"])
    finally:
        renewing.cancel()
        with suppress(Exception):
            await _request(session, _UNPIN_SUBJECT, {"pin": data["pin"]})


async def _request(session: CliSession, subject: str, body: dict[str, Any]) -> dict[str, Any]:
    from nats.errors import NoRespondersError

    try:
        message = await session.run_while_connected(
            session.nc.request(
                subject, json_module.dumps(body).encode(), timeout=max(session.timeout, _PIN_TIMEOUT_S)
            )
        )
    except NoRespondersError:
        raise CliError(
            "the server does not pin its stores for this user: connect to Headrace as a user of the system account",
            NO_ANSWER,
        ) from None
    response: dict[str, Any] = json_module.loads(message.data)
    if "error" in response:
        raise CliError(f"the server refuses: {response['error']['description']}")
    return response


def _make_monitor_url(session: CliSession, data: dict[str, Any]) -> str:
    """Return the URL of the server's monitoring port, "" if it has none."""
    host = urlsplit(session.target.servers[0]).hostname or "127.0.0.1"
    host = f"[{host}]" if ":" in host else host
    if data["http_port"]:
        return f"http://{host}:{data['http_port']}"
    return f"https://{host}:{data['https_port']}" if data["https_port"] else ""


def _list_offline_stores(directory: Path) -> list[tuple[str, str, Path]]:
    """Return account, folder in a backup, and path of each store below a store directory."""
    from headrace.net.jetstream_setup import ACCOUNTS_FOLDER, STORE_FOLDER, find_stores

    found = []
    for path in find_stores(directory):
        is_account = path.parent.name == ACCOUNTS_FOLDER
        folder = f"{ACCOUNTS_FOLDER}/{path.name}" if is_account else STORE_FOLDER
        found.append((unquote(path.name) if is_account else "$G", folder, path))
    return found


def _describe(record: BackupRecord) -> dict[str, Any]:
    return {
        "backup": record.id,
        "created_ns": record.created_ns,
        "server": record.server,
        "version": record.writer,
        "streams": record.streams,
        "messages": record.messages,
        "files": record.files,
        "bytes": record.bytes,
        "sent_bytes": record.sent_bytes,
    }
