"""`headrace server ...` and `headrace account ...`: is the server well, how far away is it, what may this account use."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from headrace.cli import show
from headrace.cli.arguments import Consumer, Stream
from headrace.cli.failures import no_jetstream
from headrace.cli.link import Link, connected, graded
from headrace.durations import duration_ns

server_app = typer.Typer(help="Is the server well? Reach it, ask it, check it.", no_args_is_help=True)
account_app = typer.Typer(help="What the account uses and may use.", no_args_is_help=True)
check_app = typer.Typer(
    help="Checks for a monitoring system: one line, and 0 is OK, 1 a warning, 2 critical, 3 unknown.",
    no_args_is_help=True,
)
server_app.add_typer(check_app, name="check")

OK, WARNING, CRITICAL, UNKNOWN = range(4)
_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_MS = 1_000_000
checked = graded(CRITICAL)

Warn = Annotated[str, typer.Option("--warn", metavar="DURATION", help="Warn when the answer takes longer.")]
Critical = Annotated[
    str, typer.Option("--critical", metavar="DURATION", help="Critical when it takes longer.")
]


async def round_trip_ns(link: Link) -> int:
    began = time.perf_counter_ns()
    await link.nc.flush(timeout=max(1, round(link.timeout)))
    return time.perf_counter_ns() - began


def _facts(link: Link) -> dict[str, Any]:
    nc = link.nc
    url, version = nc.connected_url, nc.connected_server_version
    return {
        "url": f"{url.scheme}://{url.hostname}:{url.port}" if url else "",
        "version": f"{version.major}.{version.minor}.{version.patch}",
        "client_id": nc.client_id,
        "max_payload": nc.max_payload,
    }


@server_app.command()
@connected
async def ping(
    link: Link, count: Annotated[int, typer.Option("--count", "-n", min=1, help="How often.")] = 5
) -> None:
    """Measure the time to the server and back."""
    times = [await round_trip_ns(link) for _ in range(count)]
    facts = _facts(link)
    milliseconds = [each / _MS for each in times]
    result = {
        **facts,
        "count": count,
        "min_ms": round(min(milliseconds), 3),
        "mean_ms": round(sum(milliseconds) / count, 3),
        "max_ms": round(max(milliseconds), 3),
    }
    text = (
        f"{facts['url']} (version {facts['version']}): {count} answers, "
        f"min {result['min_ms']} ms, mean {result['mean_ms']} ms, max {result['max_ms']} ms"
    )
    show.done(link.json, result, text)


@server_app.command()
@connected
async def info(link: Link) -> None:
    """Show which server this is, and whether it has JetStream."""
    from headrace.client.errors import JetStreamError

    facts = _facts(link)
    try:
        account = await link.api("INFO")
        facts["jetstream"] = True
        facts["api_level"] = account.get("api", {}).get("level", 0)
    except JetStreamError as error:
        if not no_jetstream(error):
            raise
        facts["jetstream"] = False
    if link.json:
        show.document(facts)
        return
    shown = {
        **facts,
        "max_payload": show.size(facts["max_payload"]),
        "jetstream": "yes" if facts["jetstream"] else "no",
    }
    show.facts("Server", {name.replace("_", " "): value for name, value in shown.items()})


@account_app.callback()
def account() -> None:
    """What the account uses and may use."""


@account_app.command("info")
@connected
async def account_info(link: Link) -> None:
    """Show what the account uses of JetStream, and its limits."""
    found = await link.api("INFO")
    if link.json:
        show.document(found)
        return
    limits, calls = found["limits"], found.get("api", {})

    def used(amount: str, limit: str) -> str:
        return f"{amount} of {limit}"

    show.facts(
        "JetStream",
        {
            "domain": found.get("domain"),
            "memory": used(show.size(found["memory"]), show.limit_size(limits["max_memory"])),
            "storage": used(show.size(found["storage"]), show.limit_size(limits["max_storage"])),
            "streams": used(f"{found['streams']:,}", show.limit(limits["max_streams"])),
            "consumers": used(f"{found['consumers']:,}", show.limit(limits["max_consumers"])),
            "API level": calls.get("level"),
            "API requests": f"{calls.get('total', 0):,}, {calls.get('errors', 0):,} refused",
        },
    )


def _verdict(link: Link, what: str, worst: int, text: str, **figures: float) -> int:
    """The line that monitoring systems read; its number is the exit code."""
    if link.json:
        show.document({"check": what, "status": _WORDS[worst], "text": text, **figures})
    else:
        numbers = " ".join(f"{name}={value}" for name, value in figures.items())
        print(f"{what} {_WORDS[worst]}: {text} | {numbers}")
    return worst


def _graded(value: float, warn: float | None, critical: float | None) -> int:
    if critical is not None and value >= critical:
        return CRITICAL
    return WARNING if warn is not None and value >= warn else OK


@check_app.command("connection")
@checked
async def check_connection(link: Link, warn: Warn = "500ms", critical: Critical = "1s") -> int:
    """Is the server reached, and quickly? No server at all is critical."""
    took = await round_trip_ns(link)
    worst = _graded(took, duration_ns(warn), duration_ns(critical))
    return _verdict(link, "connection", worst, f"answered in {took / _MS:.2f} ms", rtt_s=took / 1e9)


@check_app.command("jetstream")
@checked
async def check_jetstream(
    link: Link,
    warn: Annotated[int, typer.Option("--warn", help="Warn above so many per cent of a limit.")] = 75,
    critical: Annotated[int, typer.Option("--critical", help="Critical above so many.")] = 90,
) -> int:
    """Does JetStream answer, and is there room in the account's limits?"""
    found = await link.api("INFO")
    limits = found["limits"]
    pairs = {
        name: (found[name], limits[f"max_{name}"]) for name in ("memory", "storage", "streams", "consumers")
    }
    used = {name: 100 * have / most for name, (have, most) in pairs.items() if most > 0}
    worst = max((_graded(share, warn, critical) for share in used.values()), default=OK)
    text = (
        f"{found['streams']} streams, {found['consumers']} consumers, {show.size(found['storage'])} on disk"
    )
    return _verdict(
        link, "jetstream", worst, text, **{f"{name}_percent": round(share, 1) for name, share in used.items()}
    )


@check_app.command("stream")
@checked
async def check_stream(
    link: Link,
    stream: Stream,
    min_messages: Annotated[int, typer.Option(help="Critical with fewer messages.")] = 0,
    max_messages: Annotated[int | None, typer.Option(help="Critical with more messages.")] = None,
    max_lag: Annotated[int | None, typer.Option(help="Critical when an origin is further ahead.")] = None,
    max_silence: Annotated[
        str, typer.Option(metavar="DURATION", help="Critical when an origin was silent so long.")
    ] = "",
) -> int:
    """Does a stream have its messages, and does it follow its origins?"""
    found = await link.api(f"STREAM.INFO.{stream}")
    count = found["state"]["messages"]
    problems = []
    if count < min_messages:
        problems.append(f"fewer than {min_messages} messages")
    if max_messages is not None and count > max_messages:
        problems.append(f"more than {max_messages} messages")
    origins = [found["mirror"]] if found.get("mirror") else found.get("sources") or []
    for origin in origins:
        if max_lag is not None and origin["lag"] > max_lag:
            problems.append(f"{origin['name']} is {origin['lag']} ahead")
        silent = origin.get("active", -1)
        if max_silence and not 0 <= silent <= duration_ns(max_silence):
            problems.append(f"{origin['name']} was not heard of")
    text = "; ".join(problems) or f"{stream} has {count:,} messages"
    lag = max((origin["lag"] for origin in origins), default=0)
    return _verdict(link, "stream", CRITICAL if problems else OK, text, messages=count, lag=lag)


@check_app.command("consumer")
@checked
async def check_consumer(
    link: Link,
    stream: Stream,
    consumer: Consumer,
    warn: Annotated[
        int | None, typer.Option("--warn", help="Warn from so many unprocessed messages.")
    ] = None,
    critical: Annotated[int | None, typer.Option("--critical", help="Critical from so many.")] = None,
    max_ack_pending: Annotated[int | None, typer.Option(help="Critical from so many unacknowledged.")] = None,
) -> int:
    """Does a consumer keep up?"""
    found = await link.api(f"CONSUMER.INFO.{stream}.{consumer}")
    behind, unacknowledged = found["num_pending"], found["num_ack_pending"]
    worst = max(_graded(behind, warn, critical), _graded(unacknowledged, None, max_ack_pending))
    text = f"{behind:,} unprocessed, {unacknowledged:,} unacknowledged"
    if found.get("paused"):
        worst, text = max(worst, WARNING), f"paused; {text}"
    return _verdict(link, "consumer", worst, text, unprocessed=behind, ack_pending=unacknowledged)
