"""`headrace object ...`: object store buckets, in the format of all NATS clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import output as show
from headrace.cli.exit_codes import NOT_FOUND, CliError
from headrace.cli.session import CliSession, with_connection
from headrace.cli.shared_options import Force
from headrace.durations import parse_duration_ns

if TYPE_CHECKING:
    from nats.js.object_store import ObjectStore

objects_app = typer.Typer(help="Object store buckets.", no_args_is_help=True)

Bucket = Annotated[str, typer.Argument(help="Bucket name.")]
Name = Annotated[str, typer.Argument(help="Object name.")]
_PREFIX = "OBJ_"


async def _get_bucket(session: CliSession, bucket: str) -> ObjectStore:
    from nats.js.errors import NotFoundError

    try:
        return await session.js.object_store(bucket)
    except NotFoundError:
        text = f"object bucket {bucket!r} not found; list buckets with 'headrace object ls'"
        raise CliError(text, NOT_FOUND) from None


async def _get_info(bucket: ObjectStore, name: str) -> Any:
    from nats.js.errors import NotFoundError

    try:
        info = await bucket.get_info(name)
    except NotFoundError:
        raise CliError(f"object {name!r} not found", NOT_FOUND) from None
    if info.deleted:
        raise CliError(f"object {name!r} not found", NOT_FOUND)
    return info


def _info_to_json(info: Any) -> dict[str, Any]:
    return {
        "bucket": info.bucket,
        "name": info.name,
        "size": info.size or 0,
        "chunks": info.chunks or 0,
        "digest": info.digest,
        "modified": info.mtime,
    }


@objects_app.command("ls")
@with_connection
async def ls(
    session: CliSession, bucket: Annotated[str, typer.Argument(help="List the objects of this bucket.")] = ""
) -> None:
    """List the buckets, or the objects of one."""
    if not bucket:
        found = await session.list_all("STREAM.LIST", "streams")
        infos = [info for info in found if info["config"]["name"].startswith(_PREFIX)]
        rows = [
            (info["config"]["name"].removeprefix(_PREFIX), show.format_size(info["state"]["bytes"]))
            for info in infos
        ]
        if session.json:
            names = [
                {"bucket": name, "bytes": info["state"]["bytes"]}
                for (name, _), info in zip(rows, infos, strict=True)
            ]
            show.print_json(names)
        else:
            show.print_table(("bucket", "size"), rows)
        return
    objects = await _list_objects(await _get_bucket(session, bucket))
    if session.json:
        show.print_json([_info_to_json(info) for info in objects])
    else:
        show.print_table(
            ("name", "size", "modified"),
            [(info.name, show.format_size(info.size or 0), show.format_time(info.mtime)) for info in objects],
        )


async def _list_objects(bucket: ObjectStore) -> list[Any]:
    from nats.js.errors import NotFoundError

    try:
        return sorted(await bucket.list(ignore_deletes=True), key=lambda info: str(info.name))
    except NotFoundError:
        return []


@objects_app.command()
@with_connection
async def add(
    session: CliSession,
    bucket: Annotated[str, typer.Argument(help="Bucket name.")],
    ttl: Annotated[str, typer.Option(metavar="DURATION", help="TTL of objects.")] = "",
    description: Annotated[str | None, typer.Option(metavar="TEXT", help="Description.")] = None,
) -> None:
    """Create a bucket."""
    from nats.js.api import ObjectStoreConfig

    seconds = parse_duration_ns(ttl) / 1e9 if ttl else None
    await session.js.create_object_store(bucket, ObjectStoreConfig(ttl=seconds, description=description))
    show.print_result(session.json, {"bucket": bucket}, f"created {bucket}")


@objects_app.command()
@with_connection
async def put(
    session: CliSession,
    bucket: Bucket,
    file: Annotated[Path, typer.Argument(help="File to store.")],
    name: Annotated[str, typer.Option(metavar="NAME", help="Object name; default: the file's name.")] = "",
) -> None:
    """Store a file."""
    store = await _get_bucket(session, bucket)
    with file.open("rb") as data:
        info = await store.put(name or file.name, data)
    show.print_result(
        session.json, _info_to_json(info), f"stored {info.name}, {show.format_size(info.size or 0)}"
    )


@objects_app.command()
@with_connection
async def get(
    session: CliSession,
    bucket: Bucket,
    name: Name,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file; default: standard output."),
    ] = None,
) -> None:
    """Get an object."""
    store = await _get_bucket(session, bucket)
    await _get_info(store, name)
    data = (await store.get(name)).data or b""
    if output is None:
        show.print_message("", None, data, raw=True)
        return
    output.write_bytes(data)
    show.print_result(session.json, {"bucket": bucket, "name": name, "file": str(output)}, f"wrote {output}")


@objects_app.command()
@with_connection
async def info(session: CliSession, bucket: Bucket, name: Name) -> None:
    """Show an object's size, digest and modification time."""
    values = _info_to_json(await _get_info(await _get_bucket(session, bucket), name))
    if session.json:
        show.print_json(values)
    else:
        show.print_fields(f"Object {name}", {**values, "size": show.format_size(values["size"])})


@objects_app.command()
@with_connection
async def rm(
    session: CliSession,
    bucket: Bucket,
    name: Annotated[str, typer.Argument(help="Object name; without it, remove the bucket.")] = "",
    force: Force = False,
) -> None:
    """Remove an object, or a bucket and all its objects."""
    store = await _get_bucket(session, bucket)
    if name:
        await _get_info(store, name)
        show.confirm(f"Remove {name} from {bucket}?", force)
        await store.delete(name)
    else:
        show.confirm(f"Remove object bucket {bucket} and all its objects?", force)
        await session.js.delete_object_store(bucket)
    show.print_result(session.json, {"bucket": bucket, "name": name or None}, f"removed {name or bucket}")
