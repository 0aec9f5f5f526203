"""`headrace server ...` and `headrace account ...`: server health, round-trip time, and the account's limits."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from headrace.cli import output
from headrace.cli.exit_codes import is_jetstream_missing
from headrace.cli.session import CliSession, nagios_check, with_connection
from headrace.cli.shared_options import Consumer, Stream
from headrace.durations import parse_duration_ns

server_app = typer.Typer(help="Ping, inspect and check a server.", no_args_is_help=True)
account_app = typer.Typer(help="Show an account's JetStream usage and limits.", no_args_is_help=True)
check_app = typer.Typer(
    help="Checks for monitoring systems. Exit codes: 0 OK, 1 warning, 2 critical, 3 unknown.",
    no_args_is_help=True,
)
server_app.add_typer(check_app, name="check")

OK, WARNING, CRITICAL, UNKNOWN = range(4)
_STATUS_NAMES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_MS_NS = 1_000_000
health_check = nagios_check(CRITICAL)

Warn = Annotated[
    str, typer.Option("--warn", metavar="DURATION", help="Warning if the round trip takes this long.")
]
Critical = Annotated[
    str, typer.Option("--critical", metavar="DURATION", help="Critical if the round trip takes this long.")
]


async def measure_round_trip_ns(session: CliSession) -> int:
    start_ns = time.perf_counter_ns()
    await session.nc.flush(timeout=max(1, round(session.timeout)))
    return time.perf_counter_ns() - start_ns


def _get_server_fields(session: CliSession) -> dict[str, Any]:
    nc = session.nc
    url, version = nc.connected_url, nc.connected_server_version
    return {
        "url": f"{url.scheme}://{url.hostname}:{url.port}" if url else "",
        "version": f"{version.major}.{version.minor}.{version.patch}",
        "client_id": nc.client_id,
        "max_payload": nc.max_payload,
    }


@server_app.command()
@with_connection
async def ping(
    session: CliSession,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="Number of pings.")] = 5,
) -> None:
    """Measure the round-trip time to the server."""
    times = [await measure_round_trip_ns(session) for _ in range(count)]
    server_fields = _get_server_fields(session)
    milliseconds = [each / _MS_NS for each in times]
    result = {
        **server_fields,
        "count": count,
        "min_ms": round(min(milliseconds), 3),
        "mean_ms": round(sum(milliseconds) / count, 3),
        "max_ms": round(max(milliseconds), 3),
    }
    text = (
        f"{server_fields['url']} (version {server_fields['version']}): {count} pings, "
        f"min {result['min_ms']} ms, mean {result['mean_ms']} ms, max {result['max_ms']} ms"
    )
    output.print_result(session.json, result, text)


@server_app.command()
@with_connection
async def info(session: CliSession) -> None:
    """Show the server's URL, version and limits, and whether JetStream is enabled."""
    from headrace.client.errors import JetStreamError

    server_fields = _get_server_fields(session)
    try:
        account = await session.api_request("INFO")
        server_fields["jetstream"] = True
        server_fields["api_level"] = account.get("api", {}).get("level", 0)
    except JetStreamError as error:
        if not is_jetstream_missing(error):
            raise
        server_fields["jetstream"] = False
    if session.json:
        output.print_json(server_fields)
        return
    display_fields = {
        **server_fields,
        "max_payload": output.format_size(server_fields["max_payload"]),
        "jetstream": "yes" if server_fields["jetstream"] else "no",
    }
    output.print_fields("Server", {name.replace("_", " "): value for name, value in display_fields.items()})


@account_app.callback()
def account() -> None:
    """Show an account's JetStream usage and limits."""


@account_app.command("info")
@with_connection
async def account_info(session: CliSession) -> None:
    """Show the account's JetStream usage and limits."""
    found = await session.api_request("INFO")
    if session.json:
        output.print_json(found)
        return
    limits, calls = found["limits"], found.get("api", {})

    def format_usage(amount: str, limit: str) -> str:
        return f"{amount} of {limit}"

    output.print_fields(
        "JetStream",
        {
            "domain": found.get("domain"),
            "memory": format_usage(
                output.format_size(found["memory"]), output.format_size_limit(limits["max_memory"])
            ),
            "storage": format_usage(
                output.format_size(found["storage"]), output.format_size_limit(limits["max_storage"])
            ),
            "streams": format_usage(f"{found['streams']:,}", output.format_limit(limits["max_streams"])),
            "consumers": format_usage(
                f"{found['consumers']:,}", output.format_limit(limits["max_consumers"])
            ),
            "API level": calls.get("level"),
            "API requests": f"{calls.get('total', 0):,}, {calls.get('errors', 0):,} errors",
        },
    )


def _print_check(session: CliSession, check: str, status: int, text: str, **figures: float) -> int:
    """Print the line that monitoring systems read; return the status as exit code."""
    if session.json:
        output.print_json({"check": check, "status": _STATUS_NAMES[status], "text": text, **figures})
    else:
        numbers = " ".join(f"{name}={value}" for name, value in figures.items())
        print(f"{check} {_STATUS_NAMES[status]}: {text} | {numbers}")
    return status


def _check_thresholds(value: float, warn: float | None, critical: float | None) -> int:
    if critical is not None and value >= critical:
        return CRITICAL
    return WARNING if warn is not None and value >= warn else OK


@check_app.command("connection")
@health_check
async def check_connection(session: CliSession, warn: Warn = "500ms", critical: Critical = "1s") -> int:
    """Check the round-trip time; critical if the server cannot be reached."""
    rtt_ns = await measure_round_trip_ns(session)
    status = _check_thresholds(rtt_ns, parse_duration_ns(warn), parse_duration_ns(critical))
    return _print_check(
        session, "connection", status, f"round trip {rtt_ns / _MS_NS:.2f} ms", rtt_s=rtt_ns / 1e9
    )


@check_app.command("jetstream")
@health_check
async def check_jetstream(
    session: CliSession,
    warn: Annotated[
        int, typer.Option("--warn", metavar="PERCENT", help="Warning at this percentage of a limit.")
    ] = 75,
    critical: Annotated[
        int, typer.Option("--critical", metavar="PERCENT", help="Critical at this percentage of a limit.")
    ] = 90,
) -> int:
    """Check that JetStream responds and the account is within its limits."""
    found = await session.api_request("INFO")
    limits = found["limits"]
    usage_and_limits = {
        name: (found[name], limits[f"max_{name}"]) for name in ("memory", "storage", "streams", "consumers")
    }
    used = {name: 100 * current / limit for name, (current, limit) in usage_and_limits.items() if limit > 0}
    status = max((_check_thresholds(share, warn, critical) for share in used.values()), default=OK)
    text = f"{found['streams']} streams, {found['consumers']} consumers, {output.format_size(found['storage'])} on disk"
    return _print_check(
        session,
        "jetstream",
        status,
        text,
        **{f"{name}_percent": round(share, 1) for name, share in used.items()},
    )


@check_app.command("stream")
@health_check
async def check_stream(
    session: CliSession,
    stream: Stream,
    min_messages: Annotated[
        int, typer.Option(metavar="N", help="Critical below this number of messages.")
    ] = 0,
    max_messages: Annotated[
        int | None, typer.Option(metavar="N", help="Critical above this number of messages.")
    ] = None,
    max_lag: Annotated[
        int | None, typer.Option(metavar="N", help="Critical if a mirror or source lags by more messages.")
    ] = None,
    max_silence: Annotated[
        str,
        typer.Option(metavar="DURATION", help="Critical if a mirror or source was not active for longer."),
    ] = "",
) -> int:
    """Check the number of messages of a stream, and the lag of its mirror or sources."""
    found = await session.api_request(f"STREAM.INFO.{stream}")
    count = found["state"]["messages"]
    problems = []
    if count < min_messages:
        problems.append(f"fewer than {min_messages} messages")
    if max_messages is not None and count > max_messages:
        problems.append(f"more than {max_messages} messages")
    upstreams = [found["mirror"]] if found.get("mirror") else found.get("sources") or []
    for upstream in upstreams:
        if max_lag is not None and upstream["lag"] > max_lag:
            problems.append(f"lag of {upstream['lag']} messages behind {upstream['name']}")
        idle_ns = upstream.get("active", -1)
        if max_silence and not 0 <= idle_ns <= parse_duration_ns(max_silence):
            problems.append(f"no contact with {upstream['name']} for longer than {max_silence}")
    text = "; ".join(problems) or f"{stream} has {count:,} messages"
    lag = max((upstream["lag"] for upstream in upstreams), default=0)
    return _print_check(session, "stream", CRITICAL if problems else OK, text, messages=count, lag=lag)


@check_app.command("consumer")
@health_check
async def check_consumer(
    session: CliSession,
    stream: Stream,
    consumer: Consumer,
    warn: Annotated[
        int | None,
        typer.Option("--warn", metavar="N", help="Warning at this number of unprocessed messages."),
    ] = None,
    critical: Annotated[
        int | None,
        typer.Option("--critical", metavar="N", help="Critical at this number of unprocessed messages."),
    ] = None,
    max_ack_pending: Annotated[
        int | None, typer.Option(metavar="N", help="Critical at this number of unacknowledged messages.")
    ] = None,
) -> int:
    """Check how many messages a consumer has not processed or acknowledged."""
    found = await session.api_request(f"CONSUMER.INFO.{stream}.{consumer}")
    num_pending, num_ack_pending = found["num_pending"], found["num_ack_pending"]
    status = max(
        _check_thresholds(num_pending, warn, critical),
        _check_thresholds(num_ack_pending, None, max_ack_pending),
    )
    text = f"{num_pending:,} unprocessed, {num_ack_pending:,} unacknowledged"
    if found.get("paused"):
        status, text = max(status, WARNING), f"paused; {text}"
    return _print_check(
        session, "consumer", status, text, unprocessed=num_pending, ack_pending=num_ack_pending
    )
