"""`headrace kv ls`, `add`, `edit`, `status`, `rm`: manage whole buckets."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from headrace.cli import completion_names, output
from headrace.cli.exit_codes import USAGE_ERROR, CliError
from headrace.cli.session import CliSession, with_connection, with_options
from headrace.cli.shared_options import Bucket, Force
from headrace.cli.stream_options import parse_pairs, parse_size_or_unlimited

bucket_commands = typer.Typer()


def _option(*flags: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*flags, help=help, metavar=metavar, show_default=False)


OPTIONS: dict[str, Any] = {
    "history": Annotated[
        int | None, _option("--history", metavar="N", help="Revisions to keep per key, 1 to 64.")
    ],
    "ttl": Annotated[str | None, _option("--ttl", metavar="DURATION", help="TTL of all keys.")],
    "limit_markers": Annotated[
        str | None,
        _option("--markers", metavar="DURATION", help="Limit marker TTL; also allows a TTL per key."),
    ],
    "max_bytes": Annotated[
        str | None, _option("--max-bytes", metavar="SIZE", help="Maximum size of the bucket.")
    ],
    "max_value_size": Annotated[
        str | None, _option("--max-value-size", metavar="SIZE", help="Maximum size of a value.")
    ],
    "storage": Annotated[
        Literal["file", "memory"] | None, _option("--storage", metavar="file|memory", help="Storage type.")
    ],
    "replicas": Annotated[int | None, _option("--replicas", metavar="N", help="Replicas in a cluster.")],
    "compression": Annotated[bool | None, _option("--compress/--no-compress", help="Compress on disk (s2).")],
    "allow_atomic": Annotated[
        bool | None, _option("--allow-atomic/--no-allow-atomic", help="Allow atomic changes of several keys.")
    ],
    "description": Annotated[str | None, _option("--description", metavar="TEXT", help="Description.")],
    "metadata": Annotated[
        list[str] | None, _option("--metadata", metavar="NAME=VALUE", help="Metadata; repeatable.")
    ],
}


def _convert_options(given: dict[str, Any]) -> dict[str, Any]:
    sizes: dict[str, Any] = {
        name: parse_size_or_unlimited(given[name])
        for name in ("max_bytes", "max_value_size")
        if name in given
    }
    metadata = {"metadata": parse_pairs(given["metadata"])} if "metadata" in given else {}
    return {**given, **sizes, **metadata}


@bucket_commands.command("ls")
@with_connection
async def ls(
    session: CliSession,
    bucket: Annotated[
        str,
        typer.Argument(
            help="List the keys of this bucket.", autocompletion=completion_names.complete_buckets
        ),
    ] = "",
    only_names: Annotated[bool, typer.Option("--names", "-n", help="Print names only.")] = False,
) -> None:
    """List the buckets, or the keys of one."""
    if bucket:
        from headrace.cli.kv import print_keys

        await print_keys(session, bucket, [])
        return
    found = sorted(await session.js.key_value_statuses(), key=lambda status: str(status.bucket))
    if only_names:
        for status in found:
            print(status.bucket)
    elif session.json:
        output.print_json([_status_to_json(status) for status in found])
    elif not found:
        output.print_note("no buckets; create one with 'headrace kv add'")
    else:
        rows = [
            (each.bucket, each.history, f"{each.values:,}", output.format_size(each.bytes), _format_ttl(each))
            for each in found
        ]
        output.print_table(("bucket", "history", "values", "size", "ttl"), rows)


def _format_ttl(status: Any) -> str:
    return output.format_duration(round(status.ttl * 1e9)) if status.ttl else "unlimited"


def _status_to_json(status: Any) -> dict[str, Any]:
    return {
        "bucket": status.bucket,
        "description": status.stream_info.config.description or "",
        "history": status.history,
        "values": status.values,
        "bytes": status.bytes,
        "ttl_s": status.ttl or 0,
        "marker_ttl_s": status.limit_marker_ttl,
        "allow_atomic": status.allows_atomic,
        "compressed": status.is_compressed,
        "storage": str(
            getattr(status.stream_info.config.storage, "value", status.stream_info.config.storage)
        ),
        "replicas": status.stream_info.config.num_replicas,
        "metadata": status.metadata,
    }


def _print_status(session: CliSession, status: Any) -> None:
    values = _status_to_json(status)
    if session.json:
        output.print_json(values)
        return
    fields = {
        "description": values["description"],
        "values": f"{values['values']:,}",
        "size": output.format_size(values["bytes"]),
        "history": values["history"],
        "ttl": _format_ttl(status),
        "limit marker ttl": output.format_duration(round(values["marker_ttl_s"] * 1e9))
        if values["marker_ttl_s"]
        else "none",
        "allow atomic": "yes" if values["allow_atomic"] else "no",
        "compressed": "yes" if values["compressed"] else "no",
        "storage": values["storage"],
        "replicas": values["replicas"],
        "metadata": [f"{key}={value}" for key, value in values["metadata"].items()],
    }
    output.print_fields(f"Bucket {values['bucket']}", fields)


@bucket_commands.command()
@with_connection
@with_options(OPTIONS, into="given")
async def add(
    session: CliSession, bucket: Annotated[str, typer.Argument(help="Bucket name.")], given: dict[str, Any]
) -> None:
    """Create a bucket."""
    kv = await session.js.create_key_value(bucket=bucket, **_convert_options(given))
    _print_status(session, await kv.status())


@bucket_commands.command()
@with_connection
@with_options(OPTIONS, into="given")
async def edit(session: CliSession, bucket: Bucket, given: dict[str, Any]) -> None:
    """Change a bucket; options that are not given keep their values."""
    if not given:
        raise CliError(
            "nothing to change: give at least one option (see 'headrace kv edit --help')", USAGE_ERROR
        )
    kv = await session.js.update_key_value(bucket, **_convert_options(given))
    _print_status(session, await kv.status())


@bucket_commands.command()
@with_connection
async def status(session: CliSession, bucket: Bucket) -> None:
    """Show a bucket's configuration and state."""
    _print_status(session, await (await session.js.key_value(bucket)).status())


@bucket_commands.command()
@with_connection
async def rm(session: CliSession, bucket: Bucket, force: Force = False) -> None:
    """Remove a bucket and all its keys."""
    kv = await session.js.key_value(bucket)
    values = (await kv.status()).values
    output.confirm(f"Remove bucket {bucket} with {values:,} values?", force)
    await session.js.delete_key_value(bucket)
    output.print_result(session.json, {"bucket": bucket, "values": values}, f"removed {bucket}")
