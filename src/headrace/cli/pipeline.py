"""`headrace pipeline ...`: the Spark jobs from a command line.

Owns arguments and what is printed; the jobs are `headrace.spark.jobs`. Spark is imported when a job runs.
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

pipeline = typer.Typer(help="Move streams with Apache Spark.", no_args_is_help=True)

Server = Annotated[str, typer.Option("--server", "-s", envvar="NATS_URL", help="Where the server is.")]
Master = Annotated[str, typer.Option(help="Spark's master.")]
Format = Annotated[str, typer.Option("--format", help="Any table format that the session has.")]
More = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="name=value for the source or sink, as often as needed."),
]
LOCAL = "nats://127.0.0.1:4222"


@pipeline.command()
def land(
    stream: Annotated[str, typer.Argument(help="The stream.")],
    target: Annotated[str, typer.Argument(help="The table's folder.")],
    server: Server = LOCAL,
    layout: Annotated[str, typer.Option(help="Folders: none, day, topic or subject.")] = "day",
    table_format: Format = "parquet",
    checkpoint: Annotated[
        str, typer.Option(help="Where the position is kept; beside the table by itself.")
    ] = "",
    files: Annotated[int, typer.Option(min=1, help="Files a batch makes in a folder.")] = 1,
    option: More = None,
    master: Master = "local[*]",
) -> None:
    """Bring a table up to date with a stream, exactly once; run it again to go on."""
    from headrace.spark import jobs

    with session(master) as spark:
        done = jobs.land(
            spark,
            {"servers": server, "stream": stream, **pairs(option)},
            target,
            checkpoint=checkpoint or jobs.default_checkpoint(target),
            layout=layout,
            table_format=table_format,
            files=files,
        )
    typer.echo(
        f"{done.rows} rows in {done.batches} batches landed in {target}, up to sequence {done.last_seq}"
    )


@pipeline.command()
def replay(
    origin: Annotated[str, typer.Argument(help="The table's folder.")],
    stream: Annotated[str, typer.Argument(help="The stream that takes the rows.")],
    server: Server = LOCAL,
    where: Annotated[str, typer.Option(help="Which rows, as an SQL condition.")] = "true",
    table_format: Format = "parquet",
    option: More = None,
    master: Master = "local[*]",
) -> None:
    """Send the rows of a landed table into a stream; run again it adds only what is missing."""
    from headrace.spark import jobs

    with session(master) as spark:
        sink = {"servers": server, "stream": stream, **pairs(option)}
        done = jobs.replay(spark, origin, sink, table_format=table_format, where=where)
    typer.echo(f"{done.rows} rows of {origin} are in stream {stream}")


@pipeline.command("kv-snapshot")
def kv_snapshot(
    bucket: Annotated[str, typer.Argument(help="The bucket.")],
    target: Annotated[str, typer.Argument(help="The table's folder; what is there is replaced.")],
    server: Server = LOCAL,
    history: Annotated[bool, typer.Option(help="All revisions, not only the live keys.")] = False,
    table_format: Format = "parquet",
    option: More = None,
    master: Master = "local[*]",
) -> None:
    """Write a bucket as a table."""
    from headrace.spark import jobs

    with session(master) as spark:
        source = {"servers": server, "bucket": bucket, **pairs(option)}
        done = jobs.snapshot_bucket(spark, source, target, table_format=table_format, history=history)
    typer.echo(f"{done.rows} rows of bucket {bucket} are in {target}")


@pipeline.command()
def doctor(
    server: Annotated[str, typer.Option("--server", "-s", envvar="NATS_URL", help="A server to try.")] = "",
    stream: Annotated[str, typer.Option(help="A stream to look at.")] = "",
) -> None:
    """Say whether Spark works here, finds the data sources, and reaches a server."""
    from headrace.spark.doctor import examine

    good = True
    for finding in examine(server, stream):
        good = good and finding.good
        typer.echo(f"{'ok ' if finding.good else 'BAD'} {finding.question}: {finding.answer}")
    if not good:
        raise typer.Exit(1)


@contextmanager
def session(master: str) -> Iterator[SparkSession]:
    """A Spark session for one job; what the user got wrong is said in a line."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        typer.echo("headrace: Spark is missing; pip install 'headrace[spark]'", err=True)
        raise typer.Exit(1) from error
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("headrace pipeline")
    spark = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR").getOrCreate()
    try:
        yield spark
    except (PySparkException, HeadraceError) as error:
        typer.echo(f"headrace: {reason(error)}", err=True)
        raise typer.Exit(1) from None
    finally:
        spark.stop()


def reason(error: Exception) -> str:
    """The line of an error that says what is wrong: Spark quotes the whole Python traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line.partition(": ")[2] for line in lines if line.startswith("headrace.") and ": " in line]
    return told[-1] if told else lines[0] if lines else type(error).__name__


def pairs(options: list[str] | None) -> dict[str, Any]:
    """Options from `name=value` texts."""
    found = {}
    for text in options or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"{text!r} is not an option: write name=value")
        found[name.strip()] = value.strip()
    return found
