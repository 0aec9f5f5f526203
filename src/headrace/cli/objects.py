"""`headrace object ...`: buckets of large objects, as every NATS client keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import show
from headrace.cli.arguments import Force
from headrace.cli.failures import NOT_FOUND, Failure
from headrace.cli.link import Link, connected
from headrace.durations import duration_ns

if TYPE_CHECKING:
    from nats.js.object_store import ObjectStore

objects_app = typer.Typer(help="Buckets of large objects.", no_args_is_help=True)

Bucket = Annotated[str, typer.Argument(help="The bucket.")]
Name = Annotated[str, typer.Argument(help="The object.")]
_PREFIX = "OBJ_"


async def _bucket(link: Link, bucket: str) -> ObjectStore:
    from nats.js.errors import NotFoundError

    try:
        return await link.js.object_store(bucket)
    except NotFoundError:
        text = f"there is no object bucket {bucket!r}; 'headrace object ls' lists them"
        raise Failure(text, NOT_FOUND) from None


async def _found(bucket: ObjectStore, name: str) -> Any:
    from nats.js.errors import NotFoundError

    try:
        info = await bucket.get_info(name)
    except NotFoundError:
        raise Failure(f"there is no object {name!r}", NOT_FOUND) from None
    if info.deleted:
        raise Failure(f"there is no object {name!r}", NOT_FOUND)
    return info


def _facts(info: Any) -> dict[str, Any]:
    return {
        "bucket": info.bucket,
        "name": info.name,
        "size": info.size or 0,
        "chunks": info.chunks or 0,
        "digest": info.digest,
        "modified": info.mtime,
    }


@objects_app.command("ls")
@connected
async def ls(
    link: Link, bucket: Annotated[str, typer.Argument(help="List this bucket's objects.")] = ""
) -> None:
    """List the buckets, or the objects of one."""
    if not bucket:
        found = await link.listed("STREAM.LIST", "streams")
        infos = [info for info in found if info["config"]["name"].startswith(_PREFIX)]
        rows = [
            (info["config"]["name"].removeprefix(_PREFIX), show.size(info["state"]["bytes"]))
            for info in infos
        ]
        if link.json:
            names = [
                {"bucket": name, "bytes": info["state"]["bytes"]}
                for (name, _), info in zip(rows, infos, strict=True)
            ]
            show.document(names)
        else:
            show.table(("bucket", "size"), rows)
        return
    objects = await _objects(await _bucket(link, bucket))
    if link.json:
        show.document([_facts(info) for info in objects])
    else:
        show.table(
            ("name", "size", "modified"),
            [(info.name, show.size(info.size or 0), show.moment(info.mtime)) for info in objects],
        )


async def _objects(bucket: ObjectStore) -> list[Any]:
    from nats.js.errors import NotFoundError

    try:
        return sorted(await bucket.list(ignore_deletes=True), key=lambda info: str(info.name))
    except NotFoundError:
        return []


@objects_app.command()
@connected
async def add(
    link: Link,
    bucket: Annotated[str, typer.Argument(help="Its name.")],
    ttl: Annotated[str, typer.Option(metavar="DURATION", help="How long objects live.")] = "",
    description: Annotated[str | None, typer.Option(help="What it is for.")] = None,
) -> None:
    """Make a bucket."""
    from nats.js.api import ObjectStoreConfig

    seconds = duration_ns(ttl) / 1e9 if ttl else None
    await link.js.create_object_store(bucket, ObjectStoreConfig(ttl=seconds, description=description))
    show.done(link.json, {"bucket": bucket}, f"made {bucket}")


@objects_app.command()
@connected
async def put(
    link: Link,
    bucket: Bucket,
    file: Annotated[Path, typer.Argument(help="The file.")],
    name: Annotated[str, typer.Option(help="The object's name, if not the file's.")] = "",
) -> None:
    """Store a file."""
    store = await _bucket(link, bucket)
    with file.open("rb") as data:
        info = await store.put(name or file.name, data)
    show.done(link.json, _facts(info), f"stored {info.name}, {show.size(info.size or 0)}")


@objects_app.command()
@connected
async def get(
    link: Link,
    bucket: Bucket,
    name: Name,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Into this file, not to the output.")
    ] = None,
) -> None:
    """Read an object."""
    store = await _bucket(link, bucket)
    await _found(store, name)
    data = (await store.get(name)).data or b""
    if output is None:
        show.message("", None, data, raw=True)
        return
    output.write_bytes(data)
    show.done(link.json, {"bucket": bucket, "name": name, "file": str(output)}, f"wrote {output}")


@objects_app.command()
@connected
async def info(link: Link, bucket: Bucket, name: Name) -> None:
    """Show what is known of an object."""
    facts = _facts(await _found(await _bucket(link, bucket), name))
    if link.json:
        show.document(facts)
    else:
        show.facts(f"Object {name}", {**facts, "size": show.size(facts["size"])})


@objects_app.command()
@connected
async def rm(
    link: Link,
    bucket: Bucket,
    name: Annotated[str, typer.Argument(help="The object; none removes the bucket.")] = "",
    force: Force = False,
) -> None:
    """Remove an object, or a bucket with everything in it."""
    store = await _bucket(link, bucket)
    if name:
        await _found(store, name)
        show.confirm(f"Remove {name} from {bucket}?", force)
        await store.delete(name)
    else:
        show.confirm(f"Remove object bucket {bucket} with everything in it?", force)
        await link.js.delete_object_store(bucket)
    show.done(link.json, {"bucket": bucket, "name": name or None}, f"removed {name or bucket}")
