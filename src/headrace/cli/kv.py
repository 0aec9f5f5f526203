"""`headrace kv ...`: buckets of keys and values. Making and changing buckets is `kv_buckets`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import show
from headrace.cli.arguments import Bucket, Count, Force, Key, Raw, Value
from headrace.cli.failures import NOT_FOUND, Failure
from headrace.cli.kv_buckets import bucket_commands
from headrace.cli.link import Link, connected
from headrace.cli.messages import payload_of

if TYPE_CHECKING:
    from headrace.client import Entry

kv_app = typer.Typer(help="Buckets of keys and values.", no_args_is_help=True)
kv_app.add_typer(bucket_commands)

Ttl = Annotated[str | None, typer.Option(metavar="DURATION", help="How long it lives; needs limit markers.")]
Revision = Annotated[
    int | None, typer.Option("--revision", min=1, help="Only if this is the key's revision.")
]


def facts_of(entry: Entry) -> dict[str, Any]:
    """An entry for programs."""
    return {
        "bucket": entry.bucket,
        "key": entry.key,
        "revision": entry.revision,
        "operation": str(entry.operation),
        "created": entry.created.isoformat(),
        **{name.replace("payload", "value"): text for name, text in show.payload_json(entry.value).items()},
    }


def _written(link: Link, bucket: str, key: str, revision: int) -> None:
    facts = {"bucket": bucket, "key": key, "revision": revision}
    show.done(link.json, facts, f"{key} has revision {revision}")


@kv_app.command()
@connected
async def get(
    link: Link,
    bucket: Bucket,
    key: Key,
    revision: Annotated[int | None, typer.Option("--revision", min=1, help="An older revision.")] = None,
    raw: Raw = False,
) -> None:
    """Show the value of a key."""
    kv = await link.js.key_value(bucket)
    entry = await kv.get(key, revision)
    if link.json:
        show.document(facts_of(entry))
    elif raw or not sys.stdout.isatty():
        show.message("", None, entry.value, raw=True, ending=b"" if raw else b"\n")
    else:
        head = f"{bucket} > {key}, revision {entry.revision}, {entry.created:%Y-%m-%d %H:%M:%S} UTC"
        show.message(show.bold(head), None, entry.value)


@kv_app.command()
@connected
async def put(link: Link, bucket: Bucket, key: Key, value: Value = None) -> None:
    """Set a key, whatever it was."""
    kv = await link.js.key_value(bucket)
    _written(link, bucket, key, await kv.put(key, payload_of(value)))


@kv_app.command()
@connected
async def create(link: Link, bucket: Bucket, key: Key, value: Value = None, ttl: Ttl = None) -> None:
    """Set a key that has no value; ends with 4 if it has one."""
    kv = await link.js.key_value(bucket)
    _written(link, bucket, key, await kv.create(key, payload_of(value), ttl=ttl))


@kv_app.command()
@connected
async def update(
    link: Link,
    bucket: Bucket,
    key: Key,
    value: Value = None,
    revision: Annotated[
        int, typer.Option("--revision", min=0, help="The key's revision now; 0 if it is new.")
    ] = 0,
) -> None:
    """Set a key if it still has the revision that you saw; ends with 4 if not."""
    kv = await link.js.key_value(bucket)
    _written(link, bucket, key, await kv.update(key, payload_of(value), last=revision))


@kv_app.command("del")
@connected
async def delete(
    link: Link, bucket: Bucket, key: Key, revision: Revision = None, force: Force = False
) -> None:
    """Delete a key; its history stays."""
    kv = await link.js.key_value(bucket)
    show.confirm(f"Delete {key} from {bucket}?", force)
    await kv.delete(key, last=revision)
    show.done(link.json, {"bucket": bucket, "key": key, "operation": "DEL"}, f"deleted {key}")


@kv_app.command()
@connected
async def purge(
    link: Link, bucket: Bucket, key: Key, ttl: Ttl = None, revision: Revision = None, force: Force = False
) -> None:
    """Delete a key with its history."""
    kv = await link.js.key_value(bucket)
    show.confirm(f"Purge {key} and its history from {bucket}?", force)
    await kv.purge(key, ttl=ttl, last=revision)
    show.done(link.json, {"bucket": bucket, "key": key, "operation": "PURGE"}, f"purged {key}")


@kv_app.command()
@connected
async def history(link: Link, bucket: Bucket, key: Key) -> None:
    """Show every stored revision of a key."""
    kv = await link.js.key_value(bucket)
    entries = await kv.history(key)
    if link.json:
        show.document([facts_of(entry) for entry in entries])
        return
    rows = [
        (
            entry.revision,
            entry.operation,
            f"{entry.created:%Y-%m-%d %H:%M:%S}",
            show.payload_text(entry.value),
        )
        for entry in entries
    ]
    show.table(("revision", "operation", "time (utc)", "value"), rows)


@kv_app.command()
@connected
async def watch(
    link: Link,
    bucket: Bucket,
    keys: Annotated[list[str] | None, typer.Argument(help="Which keys; patterns like 'a.*' too.")] = None,
    updates: Annotated[bool, typer.Option("--updates", help="Only what changes from now on.")] = False,
    with_history: Annotated[bool, typer.Option("--history", help="Every stored revision first.")] = False,
    count: Count = 0,
) -> None:
    """Show keys as they change; first those that are there."""
    kv = await link.js.key_value(bucket)
    link.stay()
    seen = 0
    watching = await kv.watch(keys or ">", updates_only=updates, include_history=with_history)
    async with watching as watcher:
        async for entry in watcher:
            if entry is None:
                show.note(f"Watching {bucket}")
                continue
            _happened(link, entry)
            seen += 1
            if seen == count:
                return


def _happened(link: Link, entry: Entry) -> None:
    if link.json:
        show.line(facts_of(entry))
        return
    value = f": {show.payload_text(entry.value)}" if not entry.deleted else ""
    print(f"[{entry.created:%Y-%m-%d %H:%M:%S}] {entry.operation} {entry.key}{value}", flush=True)


@kv_app.command()
@connected
async def compact(
    link: Link,
    bucket: Bucket,
    older_than: Annotated[
        str, typer.Option(metavar="DURATION", help="Only markers older than this.")
    ] = "30m",
    force: Force = False,
) -> None:
    """Remove deleted and purged keys for good, with their history and markers."""
    kv = await link.js.key_value(bucket)
    show.confirm(f"Remove what was deleted in {bucket} for good?", force)
    before = (await kv.status()).values
    await kv.purge_deletes(olderthan=-1 if older_than in ("0", "0s") else older_than)
    removed = before - (await kv.status()).values
    show.done(link.json, {"bucket": bucket, "removed": removed}, f"removed {removed:,} entries from {bucket}")


@kv_app.command("keys")
@connected
async def list_keys(
    link: Link,
    bucket: Bucket,
    patterns: Annotated[list[str] | None, typer.Argument(help="Only these.")] = None,
) -> None:
    """List the keys of a bucket."""
    await print_keys(link, bucket, patterns or [])


async def print_keys(link: Link, bucket: str, patterns: list[str]) -> None:
    from headrace.client.errors import NoKeys

    kv = await link.js.key_value(bucket)
    try:
        keys = sorted(await kv.keys(patterns or None))
    except NoKeys:
        raise Failure(f"no keys in {bucket}", NOT_FOUND) from None
    if link.json:
        show.document(keys)
    else:
        print("\n".join(keys))
