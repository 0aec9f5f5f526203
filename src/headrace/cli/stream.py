"""`headrace stream ...`: list, create, change and remove streams. Messages of a stream are in `stream_messages`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli import output, stream_options
from headrace.cli.exit_codes import USAGE_ERROR, CliError
from headrace.cli.session import CliSession, with_connection, with_options
from headrace.cli.shared_options import Force, NewName, Stream
from headrace.cli.stream_backup import backup_commands
from headrace.cli.stream_messages import message_commands
from headrace.cli.stream_report import report_commands
from headrace.cli.stream_view import view_commands

stream_app = typer.Typer(help="Create, inspect, change and remove streams.", no_args_is_help=True)
stream_app.add_typer(message_commands)
stream_app.add_typer(backup_commands)
stream_app.add_typer(report_commands)
stream_app.add_typer(view_commands)

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Configuration as JSON, as printed by 'stream info --json'."
    ),
]


@stream_app.command("ls")
@with_connection
async def ls(
    session: CliSession,
    subject: Annotated[
        str, typer.Option(metavar="SUBJECT", help="Only streams that capture this subject.")
    ] = "",
    only_names: Annotated[bool, typer.Option("--names", "-n", help="Print names only.")] = False,
) -> None:
    """List the streams."""
    body = {"subject": subject} if subject else None
    found = await session.list_all("STREAM.LIST", "streams", body)
    found.sort(key=lambda info: str(info["config"]["name"]))
    if only_names:
        listed = [info["config"]["name"] for info in found]
        if session.json:
            output.print_json(listed)
        else:
            print("\n".join(listed), end="\n" if listed else "")
    elif session.json:
        output.print_json(found)
    elif not found:
        output.print_note("no streams; create one with 'headrace stream add'")
    else:
        columns = ("name", "subjects", "storage", "messages", "size", "consumers", "last message")
        output.print_table(columns, map(_make_row, found))


def drop_server_metadata(metadata: dict[str, str] | None) -> dict[str, str]:
    """Return the metadata without the entries that a server adds."""
    return {key: value for key, value in (metadata or {}).items() if not key.startswith("_nats.")}


def _make_row(info: dict[str, Any]) -> tuple[object, ...]:
    config, state = info["config"], info["state"]
    return (
        config["name"],
        _describe_upstream(config) or ", ".join(config.get("subjects") or ()),
        config["storage"],
        f"{state['messages']:,}",
        output.format_size(state["bytes"]),
        state["consumer_count"],
        output.format_age(state.get("last_ts")),
    )


def _describe_upstream(config: dict[str, Any]) -> str:
    if mirror := config.get("mirror"):
        return f"mirror of {mirror['name']}"
    sources = config.get("sources") or ()
    return f"sources {', '.join(each['name'] for each in sources)}" if sources else ""


@stream_app.command()
@with_connection
async def info(session: CliSession, stream: Stream) -> None:
    """Show a stream's configuration and state."""
    print_stream(session, await session.api_request(f"STREAM.INFO.{stream}"))


def print_stream(session: CliSession, found: dict[str, Any]) -> None:
    """Print a stream for people or programs."""
    found.pop("did_create", None)
    if session.json:
        output.print_json(found)
        return
    config, state = found["config"], found["state"]
    output.print_fields(f"Stream {config['name']}", _make_config_fields(config))
    output.print_fields("State", _make_state_fields(state))
    for upstream in [found["mirror"]] if found.get("mirror") else found.get("sources") or ():
        idle_ns = upstream.get("active", -1)
        values = {
            "lag": f"{upstream['lag']:,}",
            "last active": output.format_duration(idle_ns) + " ago" if idle_ns >= 0 else "never",
        }
        output.print_fields(
            f"{'Mirror of' if found.get('mirror') else 'Source'} {upstream['name']}",
            {**values, "error": (upstream.get("error") or {}).get("description")},
        )


def _make_config_fields(config: dict[str, Any]) -> dict[str, object]:
    flags = [key for key, value in config.items() if value is True]
    return {
        "description": config.get("description"),
        "subjects": config.get("subjects"),
        "upstream": _describe_upstream(config),
        "storage": config["storage"],
        "retention": config["retention"],
        "discard": config["discard"],
        "compression": config.get("compression", "none"),
        "replicas": config.get("num_replicas"),
        "max messages": output.format_limit(config.get("max_msgs")),
        "max per subject": output.format_limit(config.get("max_msgs_per_subject")),
        "max size": output.format_size_limit(config.get("max_bytes")),
        "max age": output.format_duration(config["max_age"]) if config.get("max_age") else "unlimited",
        "max message size": output.format_size_limit(config.get("max_msg_size")),
        "max consumers": output.format_limit(config.get("max_consumers")),
        "duplicate window": output.format_duration(config.get("duplicate_window")),
        "delete marker ttl": output.format_duration(config.get("subject_delete_marker_ttl") or 0),
        "enabled": ", ".join(flags),
        "metadata": [f"{key}={value}" for key, value in (config.get("metadata") or {}).items()],
    }


def _make_state_fields(state: dict[str, Any]) -> dict[str, object]:
    return {
        "messages": f"{state['messages']:,}",
        "size": output.format_size(state["bytes"]),
        "first": _format_position(state["first_seq"], state.get("first_ts")),
        "last": _format_position(state["last_seq"], state.get("last_ts")),
        "deleted": f"{state['num_deleted']:,}" if state.get("num_deleted") else None,
        "subjects": f"{state['num_subjects']:,}" if state.get("num_subjects") else None,
        "consumers": state["consumer_count"],
    }


def _format_position(seq: int, time: str | None) -> str:
    time_text = output.format_time(time)
    return f"{seq:,}" + (f" at {time_text} UTC" if time_text else "")


@stream_app.command()
@with_connection
@with_options(stream_options.OPTIONS, into="given")
async def add(
    session: CliSession,
    stream: NewName,
    given: dict[str, Any],
    config: ConfigFile = None,
) -> None:
    """Create a stream."""
    new_config = {**stream_options.read_config(config), "name": stream}
    new_config = stream_options.apply_options(new_config, given)
    if not new_config.get("subjects") and not new_config.get("mirror") and not new_config.get("sources"):
        raise CliError(f"no subjects given for {stream}: add --subjects, --mirror or --source", USAGE_ERROR)
    print_stream(session, await session.api_request(f"STREAM.CREATE.{stream}", new_config))


@stream_app.command()
@with_connection
@with_options(stream_options.OPTIONS, into="given")
async def edit(
    session: CliSession,
    stream: Stream,
    given: dict[str, Any],
    config: ConfigFile = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the changes, without applying them.")
    ] = False,
) -> None:
    """Change a stream; options that are not given keep their values."""
    current = (await session.api_request(f"STREAM.INFO.{stream}"))["config"]
    new_config = stream_options.apply_options({**current, **stream_options.read_config(config)}, given)
    changed = {key: new_config[key] for key in new_config if new_config[key] != current.get(key)}
    if dry_run:
        output.print_changes(session.json, current, changed)
        return
    if not changed:
        output.print_note(f"{stream} already has this configuration")
    print_stream(session, await session.api_request(f"STREAM.UPDATE.{stream}", new_config))


@stream_app.command()
@with_connection
@with_options(stream_options.OPTIONS, into="given")
async def copy(session: CliSession, stream: Stream, name: NewName, given: dict[str, Any]) -> None:
    """Create a stream with the configuration of another.

    Options change the configuration. Messages are not copied, unless the new stream has the other as its --source or
    --mirror.
    """
    config = (await session.api_request(f"STREAM.INFO.{stream}"))["config"]
    upstream = {"mirror", "sources"} & given.keys()
    dropped = {"subjects", "mirror", "sources"} if upstream else {"sealed"}
    config = {key: value for key, value in config.items() if key not in {*dropped, "sealed"}}
    config = stream_options.apply_options({**config, "name": name}, given)
    config["metadata"] = drop_server_metadata(config.get("metadata"))
    if config.get("subjects") and not given.get("subjects"):
        raise CliError(
            f"two streams cannot capture the subjects of {stream}: add --subjects, --source {stream} or --mirror {stream}",
            USAGE_ERROR,
        )
    print_stream(session, await session.api_request(f"STREAM.CREATE.{name}", config))


@stream_app.command()
@with_connection
async def rm(session: CliSession, stream: Stream, force: Force = False) -> None:
    """Remove a stream, its messages and its consumers."""
    state = (await session.api_request(f"STREAM.INFO.{stream}"))["state"]
    output.confirm(f"Remove stream {stream} and its {state['messages']:,} messages?", force)
    await session.api_request(f"STREAM.DELETE.{stream}")
    output.print_result(session.json, {"stream": stream, "messages": state["messages"]}, f"removed {stream}")


@stream_app.command(rich_help_panel="Messages")
@with_connection
async def purge(
    session: CliSession,
    stream: Stream,
    subject: Annotated[
        str, typer.Option(metavar="SUBJECT", help="Only messages with this subject; wildcards allowed.")
    ] = "",
    seq: Annotated[int, typer.Option(min=0, metavar="SEQ", help="Only messages below this sequence.")] = 0,
    keep: Annotated[int, typer.Option(min=0, metavar="N", help="Keep this many of the newest messages.")] = 0,
    force: Force = False,
) -> None:
    """Remove messages of a stream, by default all; keep the stream."""
    state = (await session.api_request(f"STREAM.INFO.{stream}"))["state"]
    selection_text = f" of {subject}" if subject else ""
    selection_text += f" below {seq}" if seq else ""
    selection_text += f" except the newest {keep}" if keep else ""
    output.confirm(
        f"Purge messages{selection_text} from {stream}, which has {state['messages']:,} messages?", force
    )
    body = {key: value for key, value in (("filter", subject), ("seq", seq), ("keep", keep)) if value}
    purged = (await session.api_request(f"STREAM.PURGE.{stream}", body))["purged"]
    output.print_result(
        session.json, {"stream": stream, "purged": purged}, f"purged {purged:,} messages from {stream}"
    )


@stream_app.command()
@with_connection
async def seal(session: CliSession, stream: Stream, force: Force = False) -> None:
    """Seal a stream permanently: its messages and configuration can no longer change."""
    config = (await session.api_request(f"STREAM.INFO.{stream}"))["config"]
    output.confirm(f"Seal {stream}? This cannot be undone.", force)
    print_stream(session, await session.api_request(f"STREAM.UPDATE.{stream}", {**config, "sealed": True}))


@stream_app.command()
@with_connection
async def subjects(
    session: CliSession,
    stream: Stream,
    pattern: Annotated[str, typer.Argument(help="Subject filter; default: all.")] = ">",
) -> None:
    """List the subjects of a stream and their message counts."""
    counts: dict[str, int] = {}
    while True:
        body = {"subjects_filter": pattern, "offset": len(counts)}
        response = await session.api_request(f"STREAM.INFO.{stream}", body)
        page = response["state"].get("subjects") or {}
        counts |= page
        if not page or len(counts) >= response.get("total", 0):
            break
    if session.json:
        output.print_json(dict(sorted(counts.items())))
    elif counts:
        output.print_table(("subject", "messages"), [(key, f"{counts[key]:,}") for key in sorted(counts)])
    else:
        output.print_note(f"{stream} has no messages on {pattern}")
