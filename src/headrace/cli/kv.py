"""`headrace kv ...`: key-value operations. Creating and changing buckets is in `kv_buckets`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import output
from headrace.cli.exit_codes import NOT_FOUND, CliError
from headrace.cli.kv_buckets import bucket_commands
from headrace.cli.messages import read_payload
from headrace.cli.session import CliSession, with_connection
from headrace.cli.shared_options import Bucket, Count, Force, Key, Raw, Value

if TYPE_CHECKING:
    from headrace.client import Entry

kv_app = typer.Typer(help="Key-value buckets.", no_args_is_help=True)
kv_app.add_typer(bucket_commands)

Ttl = Annotated[
    str | None, typer.Option(metavar="DURATION", help="TTL of the key; the bucket needs --markers.")
]
Revision = Annotated[
    int | None,
    typer.Option("--revision", metavar="REVISION", min=1, help="Only if the key has this revision."),
]


def entry_to_json(entry: Entry) -> dict[str, Any]:
    """Return an entry for programs."""
    return {
        "bucket": entry.bucket,
        "key": entry.key,
        "revision": entry.revision,
        "operation": str(entry.operation),
        "created": entry.created.isoformat(),
        **{
            name.replace("payload", "value"): text
            for name, text in output.encode_payload(entry.value).items()
        },
    }


def _print_revision(session: CliSession, bucket: str, key: str, revision: int) -> None:
    values = {"bucket": bucket, "key": key, "revision": revision}
    output.print_result(session.json, values, f"{key} is at revision {revision}")


@kv_app.command()
@with_connection
async def get(
    session: CliSession,
    bucket: Bucket,
    key: Key,
    revision: Annotated[
        int | None, typer.Option("--revision", metavar="REVISION", min=1, help="Get an older revision.")
    ] = None,
    raw: Raw = False,
) -> None:
    """Get the value of a key."""
    kv = await session.js.key_value(bucket)
    entry = await kv.get(key, revision)
    if session.json:
        output.print_json(entry_to_json(entry))
    elif raw or not sys.stdout.isatty():
        output.print_message("", None, entry.value, raw=True, ending=b"" if raw else b"\n")
    else:
        head = f"{bucket} > {key}, revision {entry.revision}, {entry.created:%Y-%m-%d %H:%M:%S} UTC"
        output.print_message(output.bold(head), None, entry.value)


@kv_app.command()
@with_connection
async def put(session: CliSession, bucket: Bucket, key: Key, value: Value = None) -> None:
    """Set a key."""
    kv = await session.js.key_value(bucket)
    _print_revision(session, bucket, key, await kv.put(key, await read_payload(value)))


@kv_app.command()
@with_connection
async def create(session: CliSession, bucket: Bucket, key: Key, value: Value = None, ttl: Ttl = None) -> None:
    """Create a key; exits with 4 if it already exists."""
    kv = await session.js.key_value(bucket)
    _print_revision(session, bucket, key, await kv.create(key, await read_payload(value), ttl=ttl))


@kv_app.command()
@with_connection
async def update(
    session: CliSession,
    bucket: Bucket,
    key: Key,
    value: Value = None,
    revision: Annotated[
        int,
        typer.Option(
            "--revision", metavar="REVISION", min=0, help="Expected revision; 0: the key must not exist."
        ),
    ] = 0,
) -> None:
    """Set a key if its revision matches; exits with 4 if not."""
    kv = await session.js.key_value(bucket)
    _print_revision(session, bucket, key, await kv.update(key, await read_payload(value), last=revision))


@kv_app.command("del")
@with_connection
async def delete(
    session: CliSession, bucket: Bucket, key: Key, revision: Revision = None, force: Force = False
) -> None:
    """Delete a key; its history is kept."""
    kv = await session.js.key_value(bucket)
    output.confirm(f"Delete {key} from {bucket}?", force)
    await kv.delete(key, last=revision)
    output.print_result(session.json, {"bucket": bucket, "key": key, "operation": "DEL"}, f"deleted {key}")


@kv_app.command()
@with_connection
async def purge(
    session: CliSession,
    bucket: Bucket,
    key: Key,
    ttl: Ttl = None,
    revision: Revision = None,
    force: Force = False,
) -> None:
    """Delete a key and its history."""
    kv = await session.js.key_value(bucket)
    output.confirm(f"Purge {key} and its history from {bucket}?", force)
    await kv.purge(key, ttl=ttl, last=revision)
    output.print_result(session.json, {"bucket": bucket, "key": key, "operation": "PURGE"}, f"purged {key}")


@kv_app.command()
@with_connection
async def history(session: CliSession, bucket: Bucket, key: Key) -> None:
    """Show every stored revision of a key."""
    kv = await session.js.key_value(bucket)
    entries = await kv.history(key)
    if session.json:
        output.print_json([entry_to_json(entry) for entry in entries])
        return
    rows = [
        (
            entry.revision,
            entry.operation,
            f"{entry.created:%Y-%m-%d %H:%M:%S}",
            output.format_payload(entry.value),
        )
        for entry in entries
    ]
    output.print_table(("revision", "operation", "time (utc)", "value"), rows)


@kv_app.command()
@with_connection
async def watch(
    session: CliSession,
    bucket: Bucket,
    keys: Annotated[
        list[str] | None, typer.Argument(help="Keys or patterns such as 'a.*'; default: all.")
    ] = None,
    updates: Annotated[bool, typer.Option("--updates", help="Only changes from now on.")] = False,
    with_history: Annotated[
        bool, typer.Option("--history", help="Start with every stored revision.")
    ] = False,
    count: Count = 0,
) -> None:
    """Print the current keys, then every change."""
    kv = await session.js.key_value(bucket)
    session.enable_reconnect()
    shown_count = 0
    watching = await kv.watch(keys or ">", updates_only=updates, include_history=with_history)
    async with watching as watcher:
        async for entry in watcher:
            if entry is None:
                output.print_note(f"Watching {bucket}")
                continue
            _print_entry(session, entry)
            shown_count += 1
            if shown_count == count:
                return


def _print_entry(session: CliSession, entry: Entry) -> None:
    if session.json:
        output.print_json_line(entry_to_json(entry))
        return
    value = f": {output.format_payload(entry.value)}" if not entry.deleted else ""
    print(f"[{entry.created:%Y-%m-%d %H:%M:%S}] {entry.operation} {entry.key}{value}", flush=True)


@kv_app.command()
@with_connection
async def compact(
    session: CliSession,
    bucket: Bucket,
    older_than: Annotated[
        str, typer.Option(metavar="DURATION", help="Only keys deleted longer ago than this.")
    ] = "30m",
    force: Force = False,
) -> None:
    """Remove the history and markers of deleted keys."""
    kv = await session.js.key_value(bucket)
    output.confirm(f"Remove the history and markers of deleted keys from {bucket}?", force)
    before = (await kv.status()).values
    await kv.purge_deletes(olderthan=-1 if older_than in ("0", "0s") else older_than)
    removed = before - (await kv.status()).values
    output.print_result(
        session.json, {"bucket": bucket, "removed": removed}, f"removed {removed:,} entries from {bucket}"
    )


@kv_app.command("keys")
@with_connection
async def list_keys(
    session: CliSession,
    bucket: Bucket,
    patterns: Annotated[list[str] | None, typer.Argument(help="Key patterns; default: all.")] = None,
) -> None:
    """List the keys of a bucket."""
    await print_keys(session, bucket, patterns or [])


async def print_keys(session: CliSession, bucket: str, patterns: list[str]) -> None:
    from headrace.client.errors import NoKeys

    kv = await session.js.key_value(bucket)
    try:
        keys = sorted(await kv.keys(patterns or None))
    except NoKeys:
        raise CliError(f"no keys in {bucket}", NOT_FOUND) from None
    if session.json:
        output.print_json(keys)
    else:
        print("\n".join(keys))
