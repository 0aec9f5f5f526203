"""`headrace archive ...`: the archive of a server's journal in an object store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headrace.cli import output
from headrace.cli.exit_codes import FAILED, CliError
from headrace.cli.session import without_connection

if TYPE_CHECKING:
    from headrace.archive.archive_restore import RestorePoint
    from headrace.archive.archive_verify import ArchiveSummary
    from headrace.backup.target import BackupTarget

archive_app = typer.Typer(
    help="Check, list, verify, restore and promote the archive of a server.", no_args_is_help=True
)

Result = TypeVar("Result")
#: A restored state that is older than the moment by more than this gets a note.
_FAR_NS = 60 * 1_000_000_000
Url = Annotated[str, typer.Argument(help="The URL of the archive: s3://, gs://, az://, file:// or nats://.")]
Server = Annotated[
    str, typer.Option("--server-id", metavar="ID", help="Which server, if the archive has several.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Keep = Annotated[str, typer.Option(metavar="DURATION", help="Window for restores, as in the configuration.")]


@archive_app.command()
@without_connection
def check(url: Url, json: Json = False) -> None:
    """Test an object store before use: races of eight writers, reads and lists after writes, clocks."""

    async def work(target: BackupTarget) -> None:
        from headrace.archive.store_check import check_store

        found = await check_store(target)
        if target.warning:
            output.print_note(target.warning)
        output.print_result(
            json,
            found,
            f"{target.name} can be used: {found['rounds']} races of {found['writers']} writers, "
            f"{found['seconds']} s, clock difference {found['clock_difference_s']} s",
        )

    _run(url, work)


@archive_app.command("list")
@without_connection
def list_points(url: Url, json: Json = False) -> None:
    """List the servers of an archive, their bases, and the groups that can be restored."""

    async def work(target: BackupTarget) -> None:
        from headrace.archive.archive_verify import find_servers, summarize
        from headrace.archive.group_format import server_folder

        servers = await find_servers(target)
        found = [await summarize(target.open_folder(server_folder(each)), each) for each in servers]
        if json:
            output.print_json([point for each in found for point in _list_points(each)])
        elif not found:
            output.print_note(f"{target.name} has no archive")
        for each in [] if json else found:
            _print_summary(each)

    _run(url, work)


def _list_points(summary: ArchiveSummary) -> list[dict[str, object]]:
    from headrace.archive.group_format import server_folder

    return [
        {
            "server": server_folder(summary.server),
            "name": record.server,
            "base": record.id,
            "moment": _format_time(record.moment_ns),
            "epoch": record.epoch,
            "group": record.group,
            "bytes": record.bytes,
            "last_group": summary.last,
            "last_moment": _format_time(summary.last_ns),
            "last_epoch": summary.epoch,
            "floor": summary.floor,
        }
        for record in summary.bases
    ]


def _print_summary(summary: ArchiveSummary) -> None:
    """Print what the archive of a server has, in 80 columns."""
    from headrace.archive.group_format import server_folder

    bases = sorted(summary.bases, key=lambda each: (each.epoch, each.moment_ns))
    times = [*(each.moment_ns for each in bases[:1]), summary.last_ns]
    fields = {
        "name": bases[-1].server if bases else "",
        "restorable": " to ".join(map(_format_second, times)) if bases else "nothing yet: it has no base",
        "newest group": f"{summary.last}, epoch {summary.epoch}",
    }
    output.print_fields(f"Server {server_folder(summary.server)}", fields)
    rows = [
        (each.id, _format_second(each.moment_ns), each.epoch, each.group, output.format_size(each.bytes))
        for each in bases
    ]
    if rows:
        output.print_table(("base", "moment", "epoch", "group", "size"), rows)


@archive_app.command()
@without_connection
def verify(url: Url, server_id: Server = "", json: Json = False) -> int:
    """Read every object of an archive and compare its checksum. Exits with 1 if one is missing or damaged."""

    async def work(target: BackupTarget) -> int:
        from headrace.archive.archive_verify import choose_server, verify_archive
        from headrace.archive.group_format import server_folder

        server = await choose_server(target, server_id)
        report = await verify_archive(target.open_folder(server_folder(server)), server)
        values = {
            "groups": report.groups,
            "bases": report.bases,
            "objects": report.objects,
            "bytes": report.bytes,
            "problems": report.problems,
        }
        for problem in [] if json else report.problems:
            output.print_note(problem)
        state = _count(len(report.problems), "problem") if report.problems else "all intact"
        what = f"{_count(report.groups, 'group')}, {_count(report.bases, 'base')}"
        output.print_result(json, values, f"{what}, {output.format_size(report.bytes)}: {state}")
        return FAILED if report.problems else 0

    return _run(url, work)


@archive_app.command()
@without_connection
def restore(
    url: Url,
    directory: Annotated[Path, typer.Argument(help="New --store_dir; must be empty.")],
    at: Annotated[
        str, typer.Option(metavar="TIME", help="Restore this moment: ISO 8601, UTC unless it says otherwise.")
    ] = "",
    group: Annotated[int, typer.Option(metavar="N", min=0, help="Restore the state after this group.")] = 0,
    server_id: Server = "",
    json: Json = False,
) -> None:
    """Restore an archive into an empty directory; by default the newest state.

    The result is a new server, without an archive: it cannot disturb the original.
    """

    async def work(target: BackupTarget) -> None:
        from headrace.archive.archive_restore import ArchiveRestore
        from headrace.archive.archive_verify import choose_server
        from headrace.archive.group_format import server_folder

        point = _parse_point(at, group)
        server = await choose_server(target, server_id)
        folder = target.open_folder(server_folder(server))
        result = await ArchiveRestore(folder, server, directory, point).run()
        if result.skipped_epoch:
            output.print_note(f"epoch {result.skipped_epoch} has no base yet: its groups are not restored")
        if result.skipped_stores:
            output.print_note(
                f"{result.skipped_stores} accounts are newer than the base and are not restored"
            )
        if point.moment_ns - result.time_ns > _FAR_NS:
            output.print_note(
                f"the last group before {at} was sent {(point.moment_ns - result.time_ns) / 1e9:.0f} s earlier; a group "
                "that was sent later may have messages from before that moment"
            )
        moment = _format_time(result.time_ns)
        values = {
            "directory": str(directory),
            "base": result.record.id,
            "group": result.group,
            "moment": moment,
            "frames": result.frames,
        }
        parts = f"base {result.record.id} and {_count(result.frames, 'frame')}"
        output.print_result(json, values, f"restored group {result.group} ({moment}) to {directory}: {parts}")

    _run(url, work)


@archive_app.command()
@without_connection
def promote(
    url: Url,
    directory: Annotated[Path, typer.Argument(help="New --store_dir; must be empty.")],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on without what the archive lacks.")
    ] = False,
    server_id: Server = "",
    json: Json = False,
) -> None:
    """Continue a server whose disk is gone, with ack: local: same identity, same archive, new directory.

    What it acknowledged and had not archived is lost. No sequence is used twice: all streams go on above those that it
    may have used. If the old server is still alive somewhere, it stops.
    """

    async def work(target: BackupTarget) -> None:
        from headrace.archive.archive_verify import choose_server
        from headrace.cli.archive_promote import Promotion, describe_loss

        server = await choose_server(target, server_id)
        promotion = Promotion(target, url, server, directory)
        if not accept_loss:
            raise CliError(await describe_loss(target, server))
        result = await promotion.run()
        values = {
            "directory": str(directory),
            "server": result.server,
            "epoch": result.epoch,
            "group": result.group,
            "moment": _format_time(result.time_ns),
            "reserved": result.reserved,
        }
        output.print_result(json, values, result.describe(directory))

    _run(url, work)


@archive_app.command()
@without_connection
def trim(
    url: Url,
    keep: Keep = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    server_id: Server = "",
    json: Json = False,
) -> None:
    """Remove bases and groups that no restore inside the window needs. A server with an archive does it by itself."""

    async def work(target: BackupTarget) -> None:
        await _trim(target, keep, dry_run, server_id, json)

    _run(url, work)


async def _trim(target: BackupTarget, keep: str, dry_run: bool, server_id: str, json: bool) -> None:
    import time

    from headrace.archive.archive_verify import choose_server
    from headrace.archive.group_format import server_folder
    from headrace.archive.group_log import GroupLog
    from headrace.archive.group_writer import BASE_FOLDER
    from headrace.archive.trimming import find_trim_plan, run_trim
    from headrace.backup.backup_log import BackupLog
    from headrace.durations import parse_duration_ns

    server = await choose_server(target, server_id)
    folder = target.open_folder(server_folder(server))
    groups, bases = GroupLog(folder, server), folder.open_folder(BASE_FOLDER)
    log = await BackupLog.load(bases, is_lenient=True)
    plan = find_trim_plan(log, time.time_ns() - parse_duration_ns(keep))
    floor = min(plan.floor, await groups.find_last() - 1)
    removed = max(0, floor - (await groups.read_floor()).deleted)
    values = {"bases": [each.id for each in plan.dropped], "groups": removed, "floor": floor}
    for each in [] if json else plan.dropped:
        output.print_note(f"base {each.id} of {_format_time(each.moment_ns)}")
    if not dry_run:
        await run_trim(bases, log, groups, plan, floor)
    text = f"{_count(len(plan.dropped), 'base')} and {_count(removed, 'group')}, up to group {floor}"
    output.print_result(json, values, f"{'would remove' if dry_run else 'removed'} {text}")


def _parse_point(at: str, group: int) -> RestorePoint:
    from headrace.archive.archive_restore import RestorePoint

    if at and group:
        raise CliError("use either --at or --group")
    if not at:
        return RestorePoint(group=group)
    try:
        moment = datetime.fromisoformat(at)
    except ValueError:
        raise CliError(f"{at!r} is not a time: use ISO 8601, such as 2026-11-17T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return RestorePoint(moment_ns=int(moment.timestamp() * 1e9))


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"


def _format_second(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns // 1_000_000_000, UTC):%Y-%m-%dT%H:%M:%SZ}" if time_ns else ""


def _format_time(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns / 1e9, UTC):%Y-%m-%dT%H:%M:%S.%fZ}" if time_ns else ""


def _run(url: str, work: Callable[[BackupTarget], Coroutine[Any, Any, Result]]) -> Result:
    try:
        from headrace.archive.archive_target import open_archive
    except ModuleNotFoundError as error:
        raise CliError(f"archives require the package {error.name}: pip install 'headrace[claims]'") from None

    async def run() -> Result:
        target = open_archive(url)
        try:
            return await work(target)
        finally:
            await target.close()

    with asyncio.Runner() as runner:
        return runner.run(run())
