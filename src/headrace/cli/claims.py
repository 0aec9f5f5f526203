"""`headrace claims ...`: inspect claims, check configurations, and collect expired claims."""

from __future__ import annotations

import json as jsonlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.claims_connection import run_connected, with_target
from headrace.cli.connection_target import ConnectionTarget

if TYPE_CHECKING:
    from nats.aio.client import Client as Connection

    from headrace.claims import ClaimConfig, Claims

claims_app = typer.Typer(
    name="claims",
    help="Large payloads in an object store: inspect, check and collect claims.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigFile = Annotated[
    Path,
    typer.Option(
        "--config",
        "-c",
        envvar="HEADRACE_CLAIMS",
        metavar="FILE",
        help="Claims configuration (YAML), one document per namespace.",
    ),
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", metavar="NAME", help="Only this namespace.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document per line.")]
DEFAULT_FILE = Path("claims.yaml")


@claims_app.command()
@with_target
def lint(
    config: ConfigFile = DEFAULT_FILE,
    stream: Annotated[
        list[str] | None, typer.Option(metavar="STREAM", help="A stream that refers to claims; repeatable.")
    ] = None,
    namespace: Namespace = "",
    *,
    target: ConnectionTarget,
) -> None:
    """Check configurations against streams, consumers, the object store and the published configuration.

    Exits with 1 if there is an error.
    """

    async def work(connection: Connection) -> int:
        found = []
        for item in _load_configs(config, namespace):
            async with _open_claims(connection, item) as claims:
                await claims.registry.ensure()
                found += await claims.lint(stream or ())
        for finding in found:
            typer.echo(str(finding))
        return int(any(finding.level == "error" for finding in found))

    run_connected(target, work)


@claims_app.command()
@with_target
def publish(
    config: ConfigFile = DEFAULT_FILE, namespace: Namespace = "", *, target: ConnectionTarget
) -> None:
    """Publish the namespaces' configurations; other programs check theirs against them."""

    async def work(connection: Connection) -> int:
        from headrace.claims import published_config

        for item in _load_configs(config, namespace):
            async with _open_claims(connection, item) as claims:
                await claims.registry.ensure()
                await published_config.publish(claims.jetstream, item)
                typer.echo(f"published {item.namespace}")
        return 0

    run_connected(target, work)


@claims_app.command()
@with_target
def collect(
    config: ConfigFile = DEFAULT_FILE,
    namespace: Namespace = "",
    watch: Annotated[bool, typer.Option(help="Run until stopped.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Print what would be removed, without removing it.")] = False,
    metrics_port: Annotated[
        int, typer.Option(metavar="PORT", min=0, help="Serve Prometheus metrics on this port; 0: off.")
    ] = 0,
    metrics_host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Serve them on this address; 0.0.0.0: on all.")
    ] = "127.0.0.1",
    *,
    target: ConnectionTarget,
) -> None:
    """Remove claims that are read or expired, and orphaned objects. Several collectors may run at once."""

    async def work(connection: Connection) -> int:
        from headrace.claims import Metrics
        from headrace.claims.background_tasks import run_until_cancelled

        metrics = Metrics()
        if metrics_port:
            from prometheus_client import start_http_server

            start_http_server(metrics_port, addr=metrics_host, registry=metrics.registry)
        failed = 0
        watching: list[Awaitable[None]] = []
        for item in _load_configs(config, namespace):
            claims = _make_claims(connection, item, metrics)
            await claims.set_up()
            if watch:
                watching.append(claims.collector.watch())
                continue
            report = await claims.collector.collect(dry_run=dry_run)
            failed += report.failed
            _print_report(item.namespace, report, dry_run)
            await claims.close()
        await run_until_cancelled(*watching)
        return int(failed > 0)

    run_connected(target, work)


@claims_app.command()
@with_target
def show(
    claim_id: Annotated[str, typer.Argument(help="Claim ID.")],
    json: Json = False,
    *,
    target: ConnectionTarget,
) -> None:
    """Show a claim's record and its audit trail."""

    async def work(connection: Connection) -> int:
        from headrace.claims.audit_trail import Audit
        from headrace.claims.clock import format_rfc3339
        from headrace.claims.jetstream_client import JetStreamClient

        jetstream = JetStreamClient(connection)
        metadata = await _get_claim_metadata(jetstream, claim_id)
        events = [event async for event in Audit(jetstream).events(claim_id=claim_id)]
        if not metadata and not events:
            text = f"claim {claim_id!r} not found, neither in the registry nor in the audit trail"
            typer.echo(f"headrace claims: {text}", err=True)
            return 1
        if metadata:
            typer.echo(jsonlib.dumps(metadata, indent=None if json else 2))
        for event in events:
            line = {"time": format_rfc3339(event.time_ns), "event": event.event, **event.details}
            typer.echo(jsonlib.dumps(line) if json else _format_line(line))
        return 0

    run_connected(target, work)


@claims_app.command("ls")
@with_target
def list_claims(
    namespace: Annotated[str, typer.Argument(help="Namespace; default: all.")] = "*",
    json: Json = False,
    *,
    target: ConnectionTarget,
) -> None:
    """List the claims in the registry, oldest first."""

    async def work(connection: Connection) -> int:
        from headrace.claims.clock import format_rfc3339
        from headrace.claims.jetstream_client import JetStreamClient
        from headrace.claims.registry import Registry

        async for page in Registry(JetStreamClient(connection)).scan(namespace):
            for entry in page:
                line = {
                    "claim": entry.claim_id,
                    "namespace": entry.namespace,
                    "subject": entry.subject,
                    "state": entry.state,
                    "size": entry.original_size,
                    "created": format_rfc3339(entry.created_ns),
                    "expires": format_rfc3339(entry.expires_ns),
                }
                typer.echo(jsonlib.dumps(line) if json else _format_line(line))
        return 0

    run_connected(target, work)


@claims_app.command()
@with_target
def stats(json: Json = False, *, target: ConnectionTarget) -> None:
    """Show live claims and event counts per namespace."""

    async def work(connection: Connection) -> int:
        from headrace.claims.jetstream_client import JetStreamClient
        from headrace.claims.namespace_stats import collect_stats

        for line in await collect_stats(JetStreamClient(connection)):
            typer.echo(jsonlib.dumps(line) if json else _format_line(line))
        return 0

    run_connected(target, work)


def _format_line(values: dict[str, Any]) -> str:
    return "  ".join(f"{key}={value}" for key, value in values.items())


def _print_report(namespace: str, report: Any, dry_run: bool) -> None:
    for line in report.lines if dry_run else ():
        typer.echo(f"{namespace}: {line}")
    verb = "would remove" if dry_run else "removed"
    typer.echo(
        f"{namespace}: {verb} {report.removed} claims ({report.collected} read, {report.expired} expired), "
        f"{report.orphans} orphans found, {report.failed} failed, {report.live} live"
    )


async def _get_claim_metadata(jetstream: Any, claim_id: str) -> dict[str, Any] | None:
    from headrace.claims.registry import STREAM, claim_subject

    found = await jetstream.get_last_per_subject(STREAM, [claim_subject("*", claim_id)])
    return next((_readable(item) for item in found.values() if item.data), None)


def _readable(item: Any) -> dict[str, Any]:
    """Return a claim record as it is stored, or for a rejected one what is wrong with it."""
    from headrace.claims.records import RECORD_FIELDS, MalformedRecord, decode_entry

    try:
        entry = decode_entry(item.subject, item.data, item.seq, item.time_ns)
    except MalformedRecord as error:
        return {"malformed": str(error), "text": item.data[:1000].decode(errors="replace")}
    return {name: getattr(entry, name) for name in RECORD_FIELDS}


def _load_configs(path: Path, namespace: str) -> list[ClaimConfig]:
    from headrace.claims import load_all

    return [item for item in load_all(path) if namespace in ("", item.namespace)]


def _make_claims(connection: Connection, config: ClaimConfig, metrics: Any = None) -> Claims:
    from headrace.claims import Claims

    return Claims(connection, config, metrics=metrics)


@asynccontextmanager
async def _open_claims(connection: Connection, config: ClaimConfig) -> AsyncIterator[Claims]:
    claims = _make_claims(connection, config)
    try:
        yield claims
    finally:
        await claims.close()
