"""`headrace consumer ...`: look at consumers, make, change, pause, reset and remove them. Reading is `consumer_reading`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli import consumer_options, show
from headrace.cli.arguments import Consumer, Force, NewName, Stream
from headrace.cli.consumer_reading import reading_commands
from headrace.cli.failures import MISUSED, Failure
from headrace.cli.link import Link, configured, connected

consumer_app = typer.Typer(
    help="Consumers of a stream: make them, read through them, reset them.", no_args_is_help=True
)
consumer_app.add_typer(reading_commands)
_NEVER = "0001-01-01T00:00:00Z"


@consumer_app.command("ls")
@connected
async def ls(
    link: Link,
    stream: Stream,
    only_names: Annotated[bool, typer.Option("--names", "-n", help="Only their names.")] = False,
) -> None:
    """List the consumers of a stream."""
    found = await link.listed(f"CONSUMER.LIST.{stream}", "consumers")
    found.sort(key=lambda info: str(info["name"]))
    if only_names:
        for each in found:
            print(each["name"])
    elif link.json:
        show.document(found)
    elif not found:
        show.note(f"{stream} has no consumers; 'headrace consumer add {stream} NAME' makes one")
    else:
        columns = ("name", "kind", "filter", "delivered", "unprocessed", "ack pending", "ack floor", "state")
        show.table(columns, map(_row, found))


def _row(info: dict[str, Any]) -> tuple[object, ...]:
    return (
        info["name"],
        _kind(info["config"]),
        ", ".join(_filters(info["config"])),
        f"{info['delivered']['stream_seq']:,}",
        f"{info['num_pending']:,}",
        f"{info['num_ack_pending']:,}",
        f"{info['ack_floor']['stream_seq']:,}",
        "paused" if info.get("paused") else "",
    )


def _kind(config: dict[str, Any]) -> str:
    way = "push" if config.get("deliver_subject") else "pull"
    return way if config.get("durable_name") else f"{way}, ephemeral"


def _filters(config: dict[str, Any]) -> list[str]:
    single = config.get("filter_subject")
    return [single] if single else list(config.get("filter_subjects") or ())


@consumer_app.command()
@connected
async def info(link: Link, stream: Stream, consumer: Consumer) -> None:
    """Show a consumer's configuration and state."""
    present(link, await link.api(f"CONSUMER.INFO.{stream}.{consumer}"))


def present(link: Link, found: dict[str, Any]) -> None:
    """A consumer as people or programs read it."""
    if link.json:
        show.document(found)
        return
    config = found["config"]
    show.facts(f"Consumer {found['name']} of {found['stream_name']}", _config_facts(config))
    left = found.get("pause_remaining")
    show.facts(
        "State",
        {
            "delivered": _place(found["delivered"]),
            "ack floor": _place(found["ack_floor"]),
            "unprocessed": f"{found['num_pending']:,}",
            "ack pending": f"{found['num_ack_pending']:,}",
            "redelivered": f"{found['num_redelivered']:,}",
            "waiting pulls": f"{found['num_waiting']:,}" if not config.get("deliver_subject") else None,
            "paused for": show.span(left) if left else None,
        },
    )


def _config_facts(config: dict[str, Any]) -> dict[str, object]:
    return {
        "description": config.get("description"),
        "kind": _kind(config),
        "deliver subject": config.get("deliver_subject"),
        "deliver group": config.get("deliver_group"),
        "filter": _filters(config),
        "start": config["deliver_policy"],
        "start sequence": config.get("opt_start_seq"),
        "start time": show.moment(config.get("opt_start_time")),
        "acknowledge": config["ack_policy"],
        "ack wait": show.span(config["ack_wait"]) if config.get("ack_wait") else None,
        "max deliveries": show.limit(config.get("max_deliver")),
        "backoff": [show.span(wait) for wait in config.get("backoff") or ()],
        "max ack pending": show.limit(config.get("max_ack_pending")),
        "replay": config["replay_policy"],
        "removed when unused": show.span(config["inactive_threshold"])
        if config.get("inactive_threshold")
        else None,
        "paused until": show.moment(config.get("pause_until")),
        "on": ", ".join(key for key, value in config.items() if value is True),
        "metadata": [f"{key}={value}" for key, value in (config.get("metadata") or {}).items()],
    }


def _place(at: dict[str, Any]) -> str:
    return f"stream {at['stream_seq']:,}, consumer {at['consumer_seq']:,}"


@consumer_app.command()
@connected
@configured(consumer_options.OPTIONS, into="given")
async def add(
    link: Link,
    stream: Stream,
    name: NewName,
    given: dict[str, Any],
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="It goes when nobody uses it.")] = False,
    for_sourcing: Annotated[
        bool,
        typer.Option("--for-sourcing", help="One that a mirror or source reads through; needs --deliver."),
    ] = False,
) -> None:
    """Make a consumer: durable and pulled, unless options say otherwise."""
    if for_sourcing:
        await _add_for_sourcing(link, stream, name, given)
        return
    config = {"name": name, "ack_policy": "explicit", "deliver_policy": "all", "replay_policy": "instant"}
    config |= {} if ephemeral else {"durable_name": name}
    present(link, await _send(link, stream, name, consumer_options.apply(config, given), "create"))


async def _send(link: Link, stream: str, name: str, config: dict[str, Any], action: str) -> dict[str, Any]:
    call = f"CONSUMER.CREATE.{stream}.{name}"
    if config.get("filter_subject"):
        call += f".{config['filter_subject']}"
    return await link.api(call, {"stream_name": stream, "config": config, "action": action})


async def _add_for_sourcing(link: Link, stream: str, name: str, given: dict[str, Any]) -> None:
    """The consumer that `client.sourcing` makes, and how the copying stream names it."""
    from nats.js.api import DeliverPolicy, ReplayPolicy

    allowed = {"filters", "start", "deliver", "replay", "max_pending", "description", "metadata"}
    if other := given.keys() - allowed:
        flags = ", ".join(f"--{option.replace('_', '-')}" for option in sorted(other))
        raise Failure(f"{flags} cannot be chosen for a sourcing consumer: it needs fixed ones", MISUSED)
    if not given.get("deliver"):
        raise Failure("to which subject shall it deliver? Give --deliver SUBJECT", MISUSED)
    wanted = consumer_options.apply({}, given)
    policy = wanted.get("deliver_policy")
    explicit = policy if policy in ("all", "new", "last", "last_per_subject") else None
    start = wanted.get("opt_start_time")
    made = await link.js.create_sourcing_consumer(
        stream,
        name,
        wanted["deliver_subject"],
        filter_subjects=given.get("filters") or (),
        start_seq=wanted.get("opt_start_seq"),
        start_time=consumer_options.time_of(start) if start else None,
        deliver_policy=DeliverPolicy(explicit) if explicit else None,
        replay_policy=ReplayPolicy(wanted.get("replay_policy", "instant")),
        max_ack_pending=wanted.get("max_ack_pending"),
        description=wanted.get("description"),
        metadata=wanted.get("metadata"),
    )
    present(link, await link.api(f"CONSUMER.INFO.{stream}.{made.name}"))
    through = f"--source {stream} --through {name}:{wanted['deliver_subject']}"
    show.note(f"now: headrace stream add COPY {through}")


@consumer_app.command()
@connected
@configured(consumer_options.OPTIONS, into="given")
async def edit(
    link: Link,
    stream: Stream,
    consumer: Consumer,
    given: dict[str, Any],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
) -> None:
    """Change a consumer; what is not named stays as it is."""
    now = (await link.api(f"CONSUMER.INFO.{stream}.{consumer}"))["config"]
    wanted = consumer_options.apply(now, given)
    changed = {key: wanted.get(key) for key in {**now, **wanted} if wanted.get(key) != now.get(key)}
    if dry_run:
        show.changes(link.json, now, changed)
        return
    if not changed:
        show.note(f"{consumer} is like that already")
    present(link, await _send(link, stream, consumer, wanted, "update"))


@consumer_app.command()
@connected
async def rm(link: Link, stream: Stream, consumer: Consumer, force: Force = False) -> None:
    """Remove a consumer; the stream's messages stay."""
    await link.api(f"CONSUMER.INFO.{stream}.{consumer}")
    show.confirm(f"Remove consumer {consumer} of {stream}, and how far it is?", force)
    await link.api(f"CONSUMER.DELETE.{stream}.{consumer}")
    show.done(link.json, {"stream": stream, "consumer": consumer}, f"removed {consumer} of {stream}")


@consumer_app.command()
@connected
async def reset(
    link: Link,
    stream: Stream,
    consumer: Consumer,
    seq: Annotated[
        int | None, typer.Option(min=1, help="Deliver from this sequence; else from the ack floor.")
    ] = None,
    force: Force = False,
) -> None:
    """Let a consumer deliver again, from its ack floor or from a sequence."""
    place = "its ack floor" if seq is None else f"sequence {seq}"
    show.confirm(f"Let {consumer} of {stream} deliver again from {place}?", force)
    done = await link.js.reset_consumer(stream, consumer, seq)
    facts = {"stream": stream, "consumer": consumer, "reset_seq": done.reset_seq}
    show.done(link.json, facts, f"{consumer} delivers again from sequence {done.reset_seq:,}")


@consumer_app.command()
@connected
async def pause(
    link: Link,
    stream: Stream,
    consumer: Consumer,
    until: Annotated[str, typer.Argument(help="How long, or until when: 10m, 2030-01-31T12:00:00Z.")],
) -> None:
    """Deliver nothing for a while."""
    time = consumer_options.time_of(until, future=True)
    await _pause(link, stream, consumer, f"{time:%Y-%m-%dT%H:%M:%SZ}")


@consumer_app.command()
@connected
async def resume(link: Link, stream: Stream, consumer: Consumer) -> None:
    """Deliver again."""
    await _pause(link, stream, consumer, _NEVER)


async def _pause(link: Link, stream: str, consumer: str, until: str) -> None:
    answer = await link.api(f"CONSUMER.PAUSE.{stream}.{consumer}", {"pause_until": until})
    left = show.span(answer.get("pause_remaining"))
    text = f"{consumer} is paused for {left}" if answer.get("paused") else f"{consumer} delivers"
    show.done(link.json, answer, text)
