"""`headrace pipeline ...`: runs the Spark jobs from the command line.

Owns the arguments and the output; the jobs are in `headrace.spark.jobs`. Spark is imported when a job runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pipeline = typer.Typer(help="Run Apache Spark jobs on streams.", no_args_is_help=True)

ServerUrl = Annotated[
    str, typer.Option("--server", "-s", envvar="NATS_URL", metavar="URL", help="Server URL.")
]
Master = Annotated[str, typer.Option(metavar="URL", help="Spark master.")]
TableFormat = Annotated[
    str, typer.Option("--format", metavar="FORMAT", help="Table format, e.g. parquet or delta.")
]
ExtraOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE", help="Option of the data source or sink; repeatable."
    ),
]
ClaimsConfigFile = Annotated[
    str, typer.Option("--config", "-c", metavar="FILE", help="Claims configuration (YAML).")
]
InventoryTable = Annotated[
    str,
    typer.Option(
        metavar="PATH", help="Parquet table of objects (key, size, modified); default: list the object store."
    ),
]
DEFAULT_SERVER = "nats://127.0.0.1:4222"


@pipeline.command()
def land(
    stream: Annotated[str, typer.Argument(help="Stream; with --kv, the bucket.")],
    target: Annotated[
        str, typer.Argument(help="Table directory; with --table, the table's name in the catalog.")
    ],
    server: ServerUrl = DEFAULT_SERVER,
    layout: Annotated[
        str, typer.Option(metavar="LAYOUT", help="Partition directories by: none, day, topic or subject.")
    ] = "day",
    table_format: TableFormat = "parquet",
    checkpoint: Annotated[
        str, typer.Option(metavar="PATH", help="Checkpoint location; default: next to the table.")
    ] = "",
    files: Annotated[int, typer.Option(min=1, metavar="N", help="Files per directory and micro-batch.")] = 1,
    kv: Annotated[bool, typer.Option("--kv", help="Land the changes of a key-value bucket.")] = False,
    table: Annotated[bool, typer.Option("--table", help="The target is a catalog table.")] = False,
    every: Annotated[
        str,
        typer.Option(
            metavar="INTERVAL", help='Run continuously, e.g. "1 minute"; default: stop when up to date.'
        ),
    ] = "",
    option: ExtraOptions = None,
    master: Master = "local[*]",
) -> None:
    """Append new messages of a stream to a table, exactly once; run it again to continue."""
    from headrace.spark.jobs.landing import Landing, default_checkpoint, run_forever

    source_option = {"bucket": stream} if kv else {"stream": stream}
    with spark_session(master) as spark:
        landing = Landing(
            {"servers": server, **source_option, **parse_pairs(option)},
            target,
            checkpoint or default_checkpoint(target),
            layout,
            table_format,
            files,
            "headrace_kv" if kv else "headrace",
            table,
            every,
        )
        done = run_forever(spark, landing, print_progress)
    typer.echo(
        f"landed {done.rows} rows in {target} in {done.batches} batches, up to sequence {done.last_seq}"
    )


@pipeline.command()
def replay(
    origin: Annotated[
        str, typer.Argument(help="Table directory; with --table, the table's name in the catalog.")
    ],
    stream: Annotated[str, typer.Argument(help="Stream to publish to.")],
    server: ServerUrl = DEFAULT_SERVER,
    where: Annotated[str, typer.Option(metavar="SQL", help="Condition that selects rows.")] = "true",
    subject: Annotated[str, typer.Option(metavar="SQL", help="Expression for the subject.")] = "subject",
    table_format: TableFormat = "parquet",
    table: Annotated[bool, typer.Option("--table", help="The origin is a catalog table.")] = False,
    option: ExtraOptions = None,
    master: Master = "local[*]",
) -> None:
    """Publish the rows of a landed table to a stream; a repeated run adds only missing rows."""
    from headrace.spark import jobs

    with spark_session(master) as spark:
        sink = {"servers": server, "stream": stream, **parse_pairs(option)}
        done = jobs.replay(
            spark,
            origin,
            sink,
            table_format=table_format,
            where=where,
            subject=subject,
            is_table=table,
            progress=print_progress,
        )
    typer.echo(f"{done.rows} rows of {origin} are stored in stream {stream}")


@pipeline.command("kv-snapshot")
def kv_snapshot(
    bucket: Annotated[str, typer.Argument(help="Bucket name.")],
    target: Annotated[str, typer.Argument(help="Table directory; existing data is replaced.")],
    server: ServerUrl = DEFAULT_SERVER,
    history: Annotated[bool, typer.Option(help="Include all revisions, not only current keys.")] = False,
    table_format: TableFormat = "parquet",
    option: ExtraOptions = None,
    master: Master = "local[*]",
) -> None:
    """Write a key-value bucket to a table."""
    from headrace.spark import jobs

    with spark_session(master) as spark:
        source = {"servers": server, "bucket": bucket, **parse_pairs(option)}
        done = jobs.snapshot_bucket(
            spark, source, target, table_format=table_format, history=history, progress=print_progress
        )
    typer.echo(f"wrote {done.rows} rows of bucket {bucket} to {target}")


@pipeline.command("claims-audit")
def claims_audit(
    target: Annotated[str, typer.Argument(help="Output directory for table, summary and report.")],
    config: ClaimsConfigFile,
    server: ServerUrl = DEFAULT_SERVER,
    inventory: InventoryTable = "",
    price: Annotated[
        float, typer.Option(metavar="DOLLARS", min=0, help="Storage price in dollars per GB and month.")
    ] = 0.023,
    option: ExtraOptions = None,
    master: Master = "local[*]",
) -> None:
    """Report the age, leaks and cost of claims: a table and an HTML report with charts."""
    from headrace.reader.claim_fetch import load_claim_configs
    from headrace.spark import jobs

    with spark_session(master) as spark:
        done = jobs.claims_audit(
            spark,
            {"servers": server, **parse_pairs(option)},
            target,
            configs=load_claim_configs(config),
            inventory=inventory,
            price=price,
            progress=print_progress,
        )
    typer.echo(
        f"{done.claims} claims: {done.live} live, {done.ended} ended, {done.leaks} leaked ({done.leaked_bytes} bytes), "
        f"{done.vanished} vanished; storage cost ${done.cost:.2f}\nreport: {done.report}"
    )


@pipeline.command("claims-collect")
def claims_collect(
    config: ClaimsConfigFile,
    server: ServerUrl = DEFAULT_SERVER,
    namespace: Annotated[str, typer.Option(metavar="NAME", help="Namespace, if the file has several.")] = "",
    stream: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STREAM",
            help="A stream that refers to claims; repeatable. Name all of them to also remove unknown objects "
            "after the grace period.",
        ),
    ] = None,
    inventory: InventoryTable = "",
    target: Annotated[
        str, typer.Option(metavar="PATH", help="Output directory for a table with the action per claim.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, without removing it.")
    ] = False,
    option: ExtraOptions = None,
    master: Master = "local[*]",
) -> None:
    """Remove claims that are no longer needed, in parallel tasks; run it again to retry failed deletions."""
    from headrace.claims.errors import ConfigError
    from headrace.reader.claim_fetch import load_claim_configs
    from headrace.spark import jobs

    with spark_session(master) as spark:
        found = [each for each in load_claim_configs(config) if namespace in ("", each.namespace)]
        if len(found) != 1:
            raise ConfigError(
                "namespace", f"{config} has {len(found)} matching namespaces; choose one with --namespace"
            )
        done = jobs.claims_collect(
            spark,
            {"servers": server, **parse_pairs(option)},
            config=found[0],
            streams=stream,
            inventory=inventory,
            target=target,
            dry_run=dry_run,
            progress=print_progress,
        )
    summary = ", ".join(f"{count} {action}" for action, count in sorted(done.actions.items())) or "no claims"
    verb = "would free" if dry_run else "freed"
    typer.echo(f"{summary}; {verb} {done.freed_bytes} bytes")


@pipeline.command()
def doctor(
    server: Annotated[
        str, typer.Option("--server", "-s", envvar="NATS_URL", metavar="URL", help="Also test this server.")
    ] = "",
    stream: Annotated[str, typer.Option(metavar="STREAM", help="Also test reading this stream.")] = "",
) -> None:
    """Check that Spark works, finds the data sources, and reaches a server."""
    from headrace.spark.doctor import run_checks

    good = True
    for finding in run_checks(server, stream):
        good = good and finding.ok
        typer.echo(f"{'ok ' if finding.ok else 'BAD'} {finding.name}: {finding.detail}")
    if not good:
        raise typer.Exit(1)


@contextmanager
def spark_session(master: str) -> Iterator[SparkSession]:
    """Create a Spark session for one job; user errors are explained in one line."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        typer.echo("headrace: Spark is not installed: pip install 'headrace[spark]'", err=True)
        raise typer.Exit(1) from error
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("headrace pipeline")
    spark = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR").getOrCreate()
    try:
        yield spark
    except (PySparkException, HeadraceError) as error:
        typer.echo(f"headrace: {get_error_line(error)}", err=True)
        raise typer.Exit(1) from None
    finally:
        spark.stop()


def print_progress(line: str) -> None:
    """Print progress to stderr, since results go to stdout."""
    typer.echo(line, err=True)


def get_error_line(error: Exception) -> str:
    """Return the line of an error that says what is wrong: Spark quotes the whole Python traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    error_lines = [line.partition(": ")[2] for line in lines if line.startswith("headrace.") and ": " in line]
    return error_lines[-1] if error_lines else lines[0] if lines else type(error).__name__


def parse_pairs(options: list[str] | None) -> dict[str, Any]:
    """Parse options from `name=value` texts."""
    found = {}
    for text in options or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"invalid option {text!r}: use name=value")
        found[name.strip()] = value.strip()
    return found
