"""`headrace migrate ...`: checks and moves streams between two servers. The work is in `headrace.migrate`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import completion_names, output
from headrace.cli import connection_target as targets
from headrace.cli.exit_codes import NOT_FOUND, OK, REFUSED, TO_CHANGE, USAGE_ERROR, CliError
from headrace.cli.session import CliSession, with_connection
from headrace.cli.shared_options import check_name
from headrace.durations import parse_duration_ns

if TYPE_CHECKING:
    from headrace.migrate.findings import MoveFinding
    from headrace.migrate.inventory import Inventory, StreamItem
    from headrace.migrate.jetstream_server import JetStreamServer
    from headrace.migrate.mover import Mover

migrate_app = typer.Typer(
    help="Move streams to a NATS cluster or another server, and back.", no_args_is_help=True
)


class CopyMethod(StrEnum):
    """How messages are copied."""

    MIRROR = "mirror"
    RESTORE = "restore"


_EXIT_CODES = (OK, TO_CHANGE, REFUSED)
#: Replicas of a stream in a cluster, unless --replicas says otherwise.
_CLUSTER_REPLICAS = 3


def _check_names(names: list[str]) -> list[str]:
    """Return the names, each once."""
    return [check_name(name) for name in dict.fromkeys(names)]


To = Annotated[
    str, typer.Option("--to", metavar="URL", help="The new server; with credentials: user:password@host.")
]
ToContext = Annotated[
    str, typer.Option("--to-context", metavar="NAME", help="The new server as a saved connection.")
]
SomeStreams = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="STREAM...",
        help="Stream names; default: all. Buckets are KV_<bucket> and OBJ_<bucket>.",
        autocompletion=completion_names.complete_streams,
        callback=lambda names: _check_names(names or []),
    ),
]
Streams = Annotated[
    list[str],
    typer.Argument(
        metavar="STREAM...",
        help="Stream names. Buckets are KV_<bucket> and OBJ_<bucket>.",
        autocompletion=completion_names.complete_streams,
        callback=_check_names,
    ),
]
Back = Annotated[bool, typer.Option("--back", help="From the server of --to to the other one.")]
Replicas = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Replicas on the new server; default: 3 in a cluster, otherwise 1."
    ),
]

Copy = Annotated[
    CopyMethod,
    typer.Option(
        "--copy",
        help="mirror: before publishers wait, over a leafnode connection; restore: by a backup while they wait.",
    ),
]


@migrate_app.command()
@with_connection
async def check(
    session: CliSession,
    streams: SomeStreams = None,
    to: To = "",
    to_context: ToContext = "",
    replicas: Replicas = None,
) -> int:
    """Show what the new server refuses or does differently, and what to change. Changes nothing."""
    from headrace.migrate.check_rules import check_servers, check_stream
    from headrace.migrate.findings import get_highest
    from headrace.migrate.inventory import can_reach

    async with _open_target(session, to, to_context) as (old_server, new_server):
        old, new = await _take_inventories(old_server, new_server)
        is_reachable = bool(old.domain) and await can_reach(new_server, old.domain)
    count = _count_replicas(replicas, new.is_clustered)
    entries = [_find_stream(old, name) for name in streams] if streams else old.streams
    found = [
        *check_servers(old, new, is_reachable),
        *(each for entry in entries for each in check_stream(entry, old, new, count)),
    ]
    _print_findings(session, found, len(entries))
    return _EXIT_CODES[get_highest(found)]


@migrate_app.command()
@with_connection
async def move(
    session: CliSession,
    streams: Streams,
    to: To = "",
    to_context: ToContext = "",
    back: Back = False,
    replicas: Replicas = None,
    copy: Copy = CopyMethod.MIRROR,
    ack_wait: Annotated[
        str, typer.Option(metavar="DURATION", help="Time for acks of messages that were delivered before.")
    ] = "1s",
) -> None:
    """Move streams to the new server together, with their consumers, or continue a move that was interrupted."""
    wait_s = parse_duration_ns(ack_wait) / 1e9
    async with _open_mover(session, streams, to, to_context, back, replicas, copy, wait_s) as (mover, _, new):
        receipts = await mover.move()
        if session.json:
            output.print_json(dict(zip(streams, receipts, strict=True)))
            return
        for name, receipt in zip(streams, receipts, strict=True):
            consumers = len(receipt.get("ack_floors") or {})
            print(
                f"moved {name} to {new.name}: {receipt['messages']:,} messages up to {receipt['last_seq']:,}, "
                f"{consumers} consumers, publishers waited {receipt['closed_s']:g} s"
            )


@migrate_app.command()
@with_connection
async def undo(
    session: CliSession,
    streams: Streams,
    to: To = "",
    to_context: ToContext = "",
    back: Back = False,
) -> None:
    """Undo a move that is not finished: remove the copies and open the streams of the old server again."""
    async with _open_mover(session, streams, to, to_context, back) as (mover, old, _):
        await mover.undo()
        names = ", ".join(streams)
        output.print_result(session.json, {"undone": streams}, f"{names}: open on {old.name} again")


@asynccontextmanager
async def _open_mover(
    session: CliSession,
    streams: list[str],
    to: str,
    to_context: str,
    back: bool,
    replicas: int | None = None,
    copy: CopyMethod = CopyMethod.RESTORE,
    ack_wait_s: float = 0.0,
) -> AsyncIterator[tuple[Mover, JetStreamServer, JetStreamServer]]:
    """Connect to both servers; yield the move of these streams, and the old and the new server."""
    from headrace.migrate.mover import Mover, make_record
    from headrace.migrate.stream_move import StreamMove

    async with _open_target(session, to, to_context, back=back) as (old, new):
        domain = await _find_domain(old, new) if copy is CopyMethod.MIRROR else ""
        count = _count_replicas(replicas, new.is_clustered)
        moves = [StreamMove(name, old, new, replicas=count, domain=domain) for name in streams]
        record = make_record(old, new, streams)
        yield Mover(moves, _Steps(streams), record, ack_wait_s=ack_wait_s), old, new


async def _find_domain(old: JetStreamServer, new: JetStreamServer) -> str:
    """Return the JetStream domain of the old server; raise if the new one does not reach it."""
    from headrace.migrate.inventory import can_reach

    domain = str((await old.api("INFO")).get("domain") or "")
    if not domain or not await can_reach(new, domain):
        raise CliError(
            f"{new.name} does not reach the JetStream of {old.name} (domain {domain or 'not set'}): connect them by a "
            "leafnode, each with its own domain, or use --copy restore; see 'headrace migrate check'"
        )
    return domain


def _count_replicas(given: int | None, is_clustered: bool) -> int:
    return given or (_CLUSTER_REPLICAS if is_clustered else 1)


class _Steps:
    """Prints the steps of a move, and the progress of copying."""

    def __init__(self, streams: list[str]) -> None:
        self._label = f"copying {len(streams)} streams" if len(streams) > 1 else f"copying {streams[0]}"

    def on_step(self, step: str) -> None:
        output.print_note(f"headrace: {step}")

    def show_copying(self, total: int) -> AbstractContextManager[Callable[[int], None]]:
        return output.progress_bar(self._label, total)


async def _take_inventories(
    old_server: JetStreamServer, new_server: JetStreamServer
) -> tuple[Inventory, Inventory]:
    from headrace.migrate.inventory import take_inventory

    return await take_inventory(old_server), await take_inventory(new_server, with_consumers=False)


def _find_stream(inventory: Inventory, name: str) -> StreamItem:
    entry = inventory.find(name)
    if entry is None:
        raise CliError(f"stream {name} does not exist; list streams with 'headrace stream ls'", NOT_FOUND)
    return entry


def _print_findings(session: CliSession, found: list[MoveFinding], checked: int) -> None:
    if session.json:
        output.print_json([each.to_json() for each in found])
        return
    ordered = sorted(found, key=lambda each: -each.severity)
    if ordered:
        output.print_table(
            ("severity", "what", "name", "difference", "what to do"),
            [(each.severity.name.lower(), each.kind, each.name, each.text, each.remedy) for each in ordered],
        )
    else:
        output.print_note(f"no differences found for {checked} streams")


@asynccontextmanager
async def _open_target(
    session: CliSession, to: str, to_context: str, *, back: bool = False
) -> AsyncIterator[tuple[JetStreamServer, JetStreamServer]]:
    """Connect to the new server; yield the old and the new one, or the other way round for a move back."""
    from headrace.migrate.jetstream_server import JetStreamServer

    if bool(to) == bool(to_context):
        raise CliError("name the new server with --to URL or --to-context NAME", USAGE_ERROR)
    flags = {"server": to} if to else {"context": to_context}
    target = targets.resolve_target({**flags, "timeout": session.timeout}, environment={})
    other = CliSession(target, session.json)
    try:
        await other.open()
        for each in (session, other):
            each.enable_reconnect()
        servers = _make_server(JetStreamServer, session), _make_server(JetStreamServer, other)
        yield (servers[1], servers[0]) if back else servers
    finally:
        await other.close()


def _make_server(kind: type[JetStreamServer], session: CliSession) -> JetStreamServer:
    options = session.target.jetstream_options()
    domain = options.get("domain")
    prefix = options.get("prefix") or (f"$JS.{domain}.API" if domain else "$JS.API")
    return kind(session.nc, session.target.display_urls, prefix=prefix, timeout_s=session.timeout)
