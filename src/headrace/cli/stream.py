"""`headrace stream ...`: look at streams, make, change and remove them. Messages of a stream are `stream_messages`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli import show, stream_options
from headrace.cli.arguments import Force, NewName, Stream
from headrace.cli.failures import MISUSED, Failure
from headrace.cli.link import Link, configured, connected
from headrace.cli.stream_backup import backup_commands
from headrace.cli.stream_messages import message_commands

stream_app = typer.Typer(help="Streams: make them, look at them, change them.", no_args_is_help=True)
stream_app.add_typer(message_commands)
stream_app.add_typer(backup_commands)

ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="A configuration in JSON, as 'stream info --json' prints it.")
]


@stream_app.command("ls")
@connected
async def ls(
    link: Link,
    subject: Annotated[str, typer.Option(help="Only those that capture this subject.")] = "",
    only_names: Annotated[bool, typer.Option("--names", "-n", help="Only their names.")] = False,
) -> None:
    """List the streams."""
    body = {"subject": subject} if subject else None
    found = await link.listed("STREAM.LIST", "streams", body)
    found.sort(key=lambda info: str(info["config"]["name"]))
    if only_names:
        listed = [info["config"]["name"] for info in found]
        if link.json:
            show.document(listed)
        else:
            print("\n".join(listed), end="\n" if listed else "")
    elif link.json:
        show.document(found)
    elif not found:
        show.note("there are no streams; 'headrace stream add' makes one")
    else:
        columns = ("name", "subjects", "storage", "messages", "size", "consumers", "last message")
        show.table(columns, map(_row, found))


def _row(info: dict[str, Any]) -> tuple[object, ...]:
    config, state = info["config"], info["state"]
    return (
        config["name"],
        _origin(config) or ", ".join(config.get("subjects") or ()),
        config["storage"],
        f"{state['messages']:,}",
        show.size(state["bytes"]),
        state["consumer_count"],
        show.ago(state.get("last_ts")),
    )


def _origin(config: dict[str, Any]) -> str:
    if mirror := config.get("mirror"):
        return f"mirror of {mirror['name']}"
    sources = config.get("sources") or ()
    return f"sources {', '.join(each['name'] for each in sources)}" if sources else ""


@stream_app.command()
@connected
async def info(link: Link, stream: Stream) -> None:
    """Show a stream's configuration and state."""
    present(link, await link.api(f"STREAM.INFO.{stream}"))


def present(link: Link, found: dict[str, Any]) -> None:
    """A stream as people or programs read it."""
    found.pop("did_create", None)
    if link.json:
        show.document(found)
        return
    config, state = found["config"], found["state"]
    show.facts(f"Stream {config['name']}", _config_facts(config))
    show.facts("State", _state_facts(state))
    for origin in [found["mirror"]] if found.get("mirror") else found.get("sources") or ():
        seen = origin.get("active", -1)
        values = {
            "lag": f"{origin['lag']:,}",
            "last seen": show.span(seen) + " ago" if seen >= 0 else "never",
        }
        show.facts(
            f"Origin {origin['name']}", {**values, "error": (origin.get("error") or {}).get("description")}
        )


def _config_facts(config: dict[str, Any]) -> dict[str, object]:
    flags = [key for key, value in config.items() if value is True]
    return {
        "description": config.get("description"),
        "subjects": config.get("subjects"),
        "origin": _origin(config),
        "storage": config["storage"],
        "retention": config["retention"],
        "discard": config["discard"],
        "compression": config.get("compression", "none"),
        "replicas": config.get("num_replicas"),
        "max messages": show.limit(config.get("max_msgs")),
        "max per subject": show.limit(config.get("max_msgs_per_subject")),
        "max size": show.limit_size(config.get("max_bytes")),
        "max age": show.span(config["max_age"]) if config.get("max_age") else "unlimited",
        "max message size": show.limit_size(config.get("max_msg_size")),
        "max consumers": show.limit(config.get("max_consumers")),
        "duplicate window": show.span(config.get("duplicate_window")),
        "markers kept for": show.span(config.get("subject_delete_marker_ttl") or 0),
        "on": ", ".join(flags),
        "metadata": [f"{key}={value}" for key, value in (config.get("metadata") or {}).items()],
    }


def _state_facts(state: dict[str, Any]) -> dict[str, object]:
    return {
        "messages": f"{state['messages']:,}",
        "size": show.size(state["bytes"]),
        "first": _place(state["first_seq"], state.get("first_ts")),
        "last": _place(state["last_seq"], state.get("last_ts")),
        "deleted": f"{state['num_deleted']:,}" if state.get("num_deleted") else None,
        "subjects": f"{state['num_subjects']:,}" if state.get("num_subjects") else None,
        "consumers": state["consumer_count"],
    }


def _place(seq: int, time: str | None) -> str:
    at = show.moment(time)
    return f"{seq:,}" + (f" at {at} UTC" if at else "")


@stream_app.command()
@connected
@configured(stream_options.OPTIONS, into="given")
async def add(
    link: Link,
    stream: NewName,
    given: dict[str, Any],
    config: ConfigFile = None,
) -> None:
    """Make a stream."""
    wanted = {**stream_options.read_config(config), "name": stream}
    wanted = stream_options.apply(wanted, given)
    if not wanted.get("subjects") and not wanted.get("mirror") and not wanted.get("sources"):
        raise Failure(f"what shall {stream} capture? Give --subjects, --mirror or --source", MISUSED)
    present(link, await link.api(f"STREAM.CREATE.{stream}", wanted))


@stream_app.command()
@connected
@configured(stream_options.OPTIONS, into="given")
async def edit(
    link: Link,
    stream: Stream,
    given: dict[str, Any],
    config: ConfigFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change.")] = False,
) -> None:
    """Change a stream; what is not named stays as it is."""
    now = (await link.api(f"STREAM.INFO.{stream}"))["config"]
    wanted = stream_options.apply({**now, **stream_options.read_config(config)}, given)
    changed = {key: wanted[key] for key in wanted if wanted[key] != now.get(key)}
    if dry_run:
        show.changes(link.json, now, changed)
        return
    if not changed:
        show.note(f"{stream} is like that already")
    present(link, await link.api(f"STREAM.UPDATE.{stream}", wanted))


@stream_app.command()
@connected
async def rm(link: Link, stream: Stream, force: Force = False) -> None:
    """Remove a stream with all its messages and consumers."""
    state = (await link.api(f"STREAM.INFO.{stream}"))["state"]
    show.confirm(f"Remove stream {stream} with {state['messages']:,} messages?", force)
    await link.api(f"STREAM.DELETE.{stream}")
    show.done(link.json, {"stream": stream, "messages": state["messages"]}, f"removed {stream}")


@stream_app.command()
@connected
async def purge(
    link: Link,
    stream: Stream,
    subject: Annotated[str, typer.Option(help="Only messages of these subjects.")] = "",
    seq: Annotated[int, typer.Option(min=0, help="Only messages below this sequence.")] = 0,
    keep: Annotated[int, typer.Option(min=0, help="Leave so many of the newest.")] = 0,
    force: Force = False,
) -> None:
    """Remove messages of a stream, by default all; the stream stays."""
    state = (await link.api(f"STREAM.INFO.{stream}"))["state"]
    which = f" of {subject}" if subject else ""
    which += f" below {seq}" if seq else ""
    which += f" but the newest {keep}" if keep else ""
    show.confirm(f"Purge messages{which} from {stream}, which has {state['messages']:,}?", force)
    body = {key: value for key, value in (("filter", subject), ("seq", seq), ("keep", keep)) if value}
    purged = (await link.api(f"STREAM.PURGE.{stream}", body))["purged"]
    show.done(link.json, {"stream": stream, "purged": purged}, f"purged {purged:,} messages from {stream}")


@stream_app.command()
@connected
async def seal(link: Link, stream: Stream, force: Force = False) -> None:
    """Close a stream for ever: nothing can be added, removed or changed any more."""
    config = (await link.api(f"STREAM.INFO.{stream}"))["config"]
    show.confirm(f"Seal {stream}? This cannot be undone.", force)
    present(link, await link.api(f"STREAM.UPDATE.{stream}", {**config, "sealed": True}))


@stream_app.command()
@connected
async def subjects(
    link: Link,
    stream: Stream,
    pattern: Annotated[str, typer.Argument(help="Only these.")] = ">",
) -> None:
    """List the subjects of a stream with how many messages each has."""
    counts: dict[str, int] = {}
    while True:
        body = {"subjects_filter": pattern, "offset": len(counts)}
        answer = await link.api(f"STREAM.INFO.{stream}", body)
        page = answer["state"].get("subjects") or {}
        counts |= page
        if not page or len(counts) >= answer.get("total", 0):
            break
    if link.json:
        show.document(dict(sorted(counts.items())))
    elif counts:
        show.table(("subject", "messages"), [(key, f"{counts[key]:,}") for key in sorted(counts)])
    else:
        show.note(f"{stream} has no messages on {pattern}")
