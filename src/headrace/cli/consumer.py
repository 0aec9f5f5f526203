"""`headrace consumer ...`: list, create, change, pause, reset and remove consumers. Reading is in `consumer_messages`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headrace.cli import consumer_options, output
from headrace.cli.consumer_dead_letters import dead_letter_app
from headrace.cli.consumer_messages import reading_commands
from headrace.cli.consumer_report import report_commands
from headrace.cli.exit_codes import USAGE_ERROR, CliError
from headrace.cli.session import CliSession, with_connection, with_options
from headrace.cli.shared_options import Consumer, Force, NewName, Stream

consumer_app = typer.Typer(
    help="Create, read, pause, reset and remove consumers of a stream.", no_args_is_help=True
)
consumer_app.add_typer(reading_commands)
consumer_app.add_typer(report_commands)
consumer_app.add_typer(dead_letter_app, name="dlq")
_NEVER = "0001-01-01T00:00:00Z"


@consumer_app.command("ls")
@with_connection
async def ls(
    session: CliSession,
    stream: Stream,
    only_names: Annotated[bool, typer.Option("--names", "-n", help="Print names only.")] = False,
) -> None:
    """List the consumers of a stream."""
    found = await session.list_all(f"CONSUMER.LIST.{stream}", "consumers")
    found.sort(key=lambda info: str(info["name"]))
    if only_names:
        for each in found:
            print(each["name"])
    elif session.json:
        output.print_json(found)
    elif not found:
        output.print_note(f"{stream} has no consumers; create one with 'headrace consumer add {stream} NAME'")
    else:
        columns = ("name", "kind", "filter", "delivered", "unprocessed", "ack pending", "ack floor", "state")
        output.print_table(columns, map(_make_row, found))


def _make_row(info: dict[str, Any]) -> tuple[object, ...]:
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
    mode = "push" if config.get("deliver_subject") else "pull"
    return mode if config.get("durable_name") else f"{mode}, ephemeral"


def _filters(config: dict[str, Any]) -> list[str]:
    single = config.get("filter_subject")
    return [single] if single else list(config.get("filter_subjects") or ())


@consumer_app.command()
@with_connection
async def info(session: CliSession, stream: Stream, consumer: Consumer) -> None:
    """Show a consumer's configuration and state."""
    print_consumer(session, await session.api_request(f"CONSUMER.INFO.{stream}.{consumer}"))


def print_consumer(session: CliSession, found: dict[str, Any]) -> None:
    """Print a consumer for people or programs."""
    if session.json:
        output.print_json(found)
        return
    config = found["config"]
    output.print_fields(f"Consumer {found['name']} of {found['stream_name']}", _make_config_fields(config))
    remaining = found.get("pause_remaining")
    output.print_fields(
        "State",
        {
            "delivered": _format_position(found["delivered"]),
            "ack floor": _format_position(found["ack_floor"]),
            "unprocessed": f"{found['num_pending']:,}",
            "ack pending": f"{found['num_ack_pending']:,}",
            "redelivered": f"{found['num_redelivered']:,}",
            "blocked keys": f"{found['num_blocked_subjects']:,}" if "num_blocked_subjects" in found else None,
            "waiting pulls": f"{found['num_waiting']:,}" if not config.get("deliver_subject") else None,
            "paused for": output.format_duration(remaining) if remaining else None,
        },
    )


def _make_config_fields(config: dict[str, Any]) -> dict[str, object]:
    return {
        "description": config.get("description"),
        "kind": _kind(config),
        "deliver subject": config.get("deliver_subject"),
        "deliver group": config.get("deliver_group"),
        "filter": _filters(config),
        "deliver policy": config["deliver_policy"],
        "start sequence": config.get("opt_start_seq"),
        "start time": output.format_time(config.get("opt_start_time")),
        "ack policy": config["ack_policy"],
        "ack wait": output.format_duration(config["ack_wait"]) if config.get("ack_wait") else None,
        "max deliveries": output.format_limit(config.get("max_deliver")),
        "backoff": [output.format_duration(wait) for wait in config.get("backoff") or ()],
        "max ack pending": output.format_limit(config.get("max_ack_pending")),
        "max ack pending per key": config.get("max_ack_pending_per_subject"),
        "key tokens": config.get("key_tokens"),
        "dead letters": _format_dead_letter(config.get("dead_letter")),
        "replay policy": config["replay_policy"],
        "inactive threshold": output.format_duration(config["inactive_threshold"])
        if config.get("inactive_threshold")
        else None,
        "paused until": output.format_time(config.get("pause_until")),
        "enabled": ", ".join(key for key, value in config.items() if value is True),
        "metadata": [f"{key}={value}" for key, value in (config.get("metadata") or {}).items()],
    }


def _format_dead_letter(wanted: dict[str, Any] | None) -> str | None:
    return f"{wanted['subject']}, on {' and '.join(wanted['on'])}" if wanted else None


def _format_position(position: dict[str, Any]) -> str:
    return f"stream {position['stream_seq']:,}, consumer {position['consumer_seq']:,}"


@consumer_app.command()
@with_connection
@with_options(consumer_options.OPTIONS, into="given")
async def add(
    session: CliSession,
    stream: Stream,
    name: NewName,
    given: dict[str, Any],
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Create an ephemeral consumer: removed when unused.")
    ] = False,
    for_sourcing: Annotated[
        bool,
        typer.Option("--for-sourcing", help="Create a consumer for a mirror or source; requires --deliver."),
    ] = False,
) -> None:
    """Create a consumer; by default a durable pull consumer."""
    if for_sourcing:
        await _add_for_sourcing(session, stream, name, given)
        return
    config = {"name": name, "ack_policy": "explicit", "deliver_policy": "all", "replay_policy": "instant"}
    config |= {} if ephemeral else {"durable_name": name}
    print_consumer(
        session,
        await _create_or_update(
            session, stream, name, consumer_options.apply_options(config, given), "create"
        ),
    )


async def _create_or_update(
    session: CliSession, stream: str, name: str, config: dict[str, Any], action: str
) -> dict[str, Any]:
    call = f"CONSUMER.CREATE.{stream}.{name}"
    if config.get("filter_subject"):
        call += f".{config['filter_subject']}"
    return await session.api_request(call, {"stream_name": stream, "config": config, "action": action})


async def _add_for_sourcing(session: CliSession, stream: str, name: str, given: dict[str, Any]) -> None:
    """Create the consumer with `client.sourcing_consumer`, and print how the copying stream refers to it."""
    from nats.js.api import DeliverPolicy, ReplayPolicy

    allowed = {"filters", "start", "deliver", "replay", "max_pending", "description", "metadata"}
    if other := given.keys() - allowed:
        flags = ", ".join(f"--{option.replace('_', '-')}" for option in sorted(other))
        raise CliError(
            f"{flags} cannot be combined with --for-sourcing, which sets fixed values", USAGE_ERROR
        )
    if not given.get("deliver"):
        raise CliError("--for-sourcing requires a deliver subject: add --deliver SUBJECT", USAGE_ERROR)
    new_config = consumer_options.apply_options({}, given)
    policy = new_config.get("deliver_policy")
    explicit = policy if policy in ("all", "new", "last", "last_per_subject") else None
    start = new_config.get("opt_start_time")
    created = await session.js.create_sourcing_consumer(
        stream,
        name,
        new_config["deliver_subject"],
        filter_subjects=given.get("filters") or (),
        start_seq=new_config.get("opt_start_seq"),
        start_time=consumer_options.parse_time(start) if start else None,
        deliver_policy=DeliverPolicy(explicit) if explicit else None,
        replay_policy=ReplayPolicy(new_config.get("replay_policy", "instant")),
        max_ack_pending=new_config.get("max_ack_pending"),
        description=new_config.get("description"),
        metadata=new_config.get("metadata"),
    )
    print_consumer(session, await session.api_request(f"CONSUMER.INFO.{stream}.{created.name}"))
    source_flags = f"--source {stream} --through {name}:{new_config['deliver_subject']}"
    output.print_note(f"next, create the copy: headrace stream add COPY {source_flags}")


@consumer_app.command()
@with_connection
@with_options(consumer_options.OPTIONS, into="given")
async def edit(
    session: CliSession,
    stream: Stream,
    consumer: Consumer,
    given: dict[str, Any],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the changes, without applying them.")
    ] = False,
) -> None:
    """Change a consumer; options that are not given keep their values."""
    current = (await session.api_request(f"CONSUMER.INFO.{stream}.{consumer}"))["config"]
    new_config = consumer_options.apply_options(current, given)
    changed = {
        key: new_config.get(key)
        for key in {**current, **new_config}
        if new_config.get(key) != current.get(key)
    }
    if dry_run:
        output.print_changes(session.json, current, changed)
        return
    if not changed:
        output.print_note(f"{consumer} already has this configuration")
    print_consumer(session, await _create_or_update(session, stream, consumer, new_config, "update"))


@consumer_app.command()
@with_connection
@with_options(consumer_options.OPTIONS, into="given")
async def copy(
    session: CliSession, stream: Stream, consumer: Consumer, name: NewName, given: dict[str, Any]
) -> None:
    """Create a consumer with the configuration of another.

    Options change the configuration. The copy starts as its configuration says, not where the other consumer is.
    """
    config = (await session.api_request(f"CONSUMER.INFO.{stream}.{consumer}"))["config"]
    config = consumer_options.apply_options({**config, "name": name}, given)
    config.pop("pause_until", None)
    if config.get("durable_name"):
        config["durable_name"] = name
    metadata = config.get("metadata") or {}
    config["metadata"] = {key: text for key, text in metadata.items() if not key.startswith("_nats.")}
    if config.get("deliver_subject") and not given.get("deliver"):
        raise CliError(
            f"{consumer} is a push consumer: add --deliver SUBJECT, because the copy needs its own",
            USAGE_ERROR,
        )
    print_consumer(session, await _create_or_update(session, stream, name, config, "create"))


@consumer_app.command()
@with_connection
async def rm(session: CliSession, stream: Stream, consumer: Consumer, force: Force = False) -> None:
    """Remove a consumer; the stream keeps its messages."""
    await session.api_request(f"CONSUMER.INFO.{stream}.{consumer}")
    output.confirm(f"Remove consumer {consumer} of {stream} and its ack state?", force)
    await session.api_request(f"CONSUMER.DELETE.{stream}.{consumer}")
    output.print_result(
        session.json, {"stream": stream, "consumer": consumer}, f"removed {consumer} of {stream}"
    )


@consumer_app.command()
@with_connection
async def reset(
    session: CliSession,
    stream: Stream,
    consumer: Consumer,
    seq: Annotated[
        int | None,
        typer.Option(metavar="SEQ", min=1, help="Restart from this sequence; default: the ack floor."),
    ] = None,
    force: Force = False,
) -> None:
    """Reset a consumer: it delivers again from its ack floor or from a sequence."""
    start_text = "its ack floor" if seq is None else f"sequence {seq}"
    output.confirm(f"Reset {consumer} of {stream} to {start_text}?", force)
    result = await session.js.reset_consumer(stream, consumer, seq)
    values = {"stream": stream, "consumer": consumer, "reset_seq": result.reset_seq}
    output.print_result(
        session.json, values, f"reset {consumer}: it delivers from sequence {result.reset_seq:,}"
    )


@consumer_app.command()
@with_connection
async def pause(
    session: CliSession,
    stream: Stream,
    consumer: Consumer,
    until: Annotated[str, typer.Argument(help="Duration or end time, e.g. 10m or 2030-01-31T12:00:00Z.")],
) -> None:
    """Pause a consumer: no messages are delivered until the given time."""
    time = consumer_options.parse_time(until, future=True)
    await _set_pause(session, stream, consumer, f"{time:%Y-%m-%dT%H:%M:%SZ}")


@consumer_app.command()
@with_connection
async def resume(session: CliSession, stream: Stream, consumer: Consumer) -> None:
    """Resume a paused consumer."""
    await _set_pause(session, stream, consumer, _NEVER)


async def _set_pause(session: CliSession, stream: str, consumer: str, until: str) -> None:
    response = await session.api_request(f"CONSUMER.PAUSE.{stream}.{consumer}", {"pause_until": until})
    remaining = output.format_duration(response.get("pause_remaining"))
    text = f"{consumer} is paused for {remaining}" if response.get("paused") else f"{consumer} is not paused"
    output.print_result(session.json, response, text)
