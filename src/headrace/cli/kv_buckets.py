"""`headrace kv ls`, `add`, `edit`, `status`, `rm`: buckets as a whole."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from headrace.cli import names, show
from headrace.cli.arguments import Bucket, Force
from headrace.cli.failures import MISUSED, Failure
from headrace.cli.link import Link, configured, connected
from headrace.cli.stream_options import pairs, size_or_unlimited

bucket_commands = typer.Typer()


def _option(*flags: str, help: str, metavar: str | None = None) -> Any:
    return typer.Option(*flags, help=help, metavar=metavar, show_default=False)


OPTIONS: dict[str, Any] = {
    "history": Annotated[int | None, _option("--history", help="Revisions kept of a key: 1 to 64.")],
    "ttl": Annotated[str | None, _option("--ttl", metavar="DURATION", help="How long keys live.")],
    "limit_markers": Annotated[
        str | None,
        _option(
            "--markers", metavar="DURATION", help="Keep markers of what expired so long; allows TTLs of keys."
        ),
    ],
    "max_bytes": Annotated[str | None, _option("--max-bytes", metavar="SIZE", help="Size at most.")],
    "max_value_size": Annotated[
        str | None, _option("--max-value-size", metavar="SIZE", help="Size of a value at most.")
    ],
    "storage": Annotated[
        Literal["file", "memory"] | None, _option("--storage", metavar="file|memory", help="Where it lives.")
    ],
    "replicas": Annotated[int | None, _option("--replicas", help="Copies in a cluster.")],
    "compression": Annotated[
        bool | None, _option("--compress/--no-compress", help="Compress what is on disk.")
    ],
    "allow_atomic": Annotated[
        bool | None, _option("--allow-atomic/--no-allow-atomic", help="Several keys can change together.")
    ],
    "description": Annotated[str | None, _option("--description", help="What it is for.")],
    "metadata": Annotated[
        list[str] | None, _option("--metadata", metavar="NAME=VALUE", help="A note for programs; repeatable.")
    ],
}


def _values(given: dict[str, Any]) -> dict[str, Any]:
    sizes: dict[str, Any] = {
        name: size_or_unlimited(given[name]) for name in ("max_bytes", "max_value_size") if name in given
    }
    notes = {"metadata": pairs(given["metadata"])} if "metadata" in given else {}
    return {**given, **sizes, **notes}


@bucket_commands.command("ls")
@connected
async def ls(
    link: Link,
    bucket: Annotated[
        str, typer.Argument(help="List this bucket's keys.", autocompletion=names.buckets)
    ] = "",
    only_names: Annotated[bool, typer.Option("--names", "-n", help="Only their names.")] = False,
) -> None:
    """List the buckets, or the keys of one."""
    if bucket:
        from headrace.cli.kv import print_keys

        await print_keys(link, bucket, [])
        return
    found = sorted(await link.js.key_value_statuses(), key=lambda status: str(status.bucket))
    if only_names:
        for status in found:
            print(status.bucket)
    elif link.json:
        show.document([_facts(status) for status in found])
    elif not found:
        show.note("there are no buckets; 'headrace kv add' makes one")
    else:
        rows = [
            (each.bucket, each.history, f"{each.values:,}", show.size(each.bytes), _lifetime(each))
            for each in found
        ]
        show.table(("bucket", "history", "values", "size", "keys live"), rows)


def _lifetime(status: Any) -> str:
    return show.span(round(status.ttl * 1e9)) if status.ttl else "for ever"


def _facts(status: Any) -> dict[str, Any]:
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


def _present(link: Link, status: Any) -> None:
    facts = _facts(status)
    if link.json:
        show.document(facts)
        return
    shown = {
        "description": facts["description"],
        "values": f"{facts['values']:,}",
        "size": show.size(facts["bytes"]),
        "history": facts["history"],
        "keys live": _lifetime(status),
        "markers kept for": show.span(round(facts["marker_ttl_s"] * 1e9))
        if facts["marker_ttl_s"]
        else "none",
        "atomic changes": "yes" if facts["allow_atomic"] else "no",
        "compressed": "yes" if facts["compressed"] else "no",
        "storage": facts["storage"],
        "replicas": facts["replicas"],
        "metadata": [f"{key}={value}" for key, value in facts["metadata"].items()],
    }
    show.facts(f"Bucket {facts['bucket']}", shown)


@bucket_commands.command()
@connected
@configured(OPTIONS, into="given")
async def add(
    link: Link, bucket: Annotated[str, typer.Argument(help="Its name.")], given: dict[str, Any]
) -> None:
    """Make a bucket."""
    kv = await link.js.create_key_value(bucket=bucket, **_values(given))
    _present(link, await kv.status())


@bucket_commands.command()
@connected
@configured(OPTIONS, into="given")
async def edit(link: Link, bucket: Bucket, given: dict[str, Any]) -> None:
    """Change a bucket; what is not named stays as it is."""
    if not given:
        raise Failure("what shall change? 'headrace kv edit --help' lists the options", MISUSED)
    kv = await link.js.update_key_value(bucket, **_values(given))
    _present(link, await kv.status())


@bucket_commands.command()
@connected
async def status(link: Link, bucket: Bucket) -> None:
    """Show a bucket's configuration and state."""
    _present(link, await (await link.js.key_value(bucket)).status())


@bucket_commands.command()
@connected
async def rm(link: Link, bucket: Bucket, force: Force = False) -> None:
    """Remove a bucket with everything in it."""
    kv = await link.js.key_value(bucket)
    values = (await kv.status()).values
    show.confirm(f"Remove bucket {bucket} with {values:,} values?", force)
    await link.js.delete_key_value(bucket)
    show.done(link.json, {"bucket": bucket, "values": values}, f"removed {bucket}")
