"""The Spark step: reads a stream as a table."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.demo.steps import DemoContext, Step, StepSkipped

ROWS = 20_000
_HOW_TO_GET_JAVA = "On Debian: apt-get install default-jre-headless; on macOS: brew install openjdk@17"
#: How many characters of Spark's log a failure shows.
_LOG_TAIL = 2000


async def land_table(context: DemoContext) -> str:
    from headrace.spark.doctor import CheckFailed, check_java

    try:
        check_java()
    except CheckFailed as problem:
        raise StepSkipped(f"{problem}. {_HOW_TO_GET_JAVA}") from None
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise StepSkipped("Spark is not installed: pip install 'headrace[spark]'") from None
    client = await context.connect()
    js = client.jetstream()
    await js.add_stream(name="TELEMETRY", subjects=["telemetry.>"], allow_direct=True)
    for number in range(ROWS):
        await client.publish(f"telemetry.{number % 7}", b"%d" % number)
    await client.flush()
    while (await js.stream_info("TELEMETRY")).state.messages < ROWS:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await client.close()
    # In a thread: Spark's tasks need the server, which runs in this event loop.
    with _redirect_stderr(context.folder / "spark.log"):
        landed, landed_again, sums = await asyncio.to_thread(_land, context)
    assert (landed, landed_again) == (ROWS, ROWS), (landed, landed_again)
    assert sums == ROWS * (ROWS - 1) // 2
    return f"landed {landed:,} messages in a Parquet table; landing again added no rows"


@contextlib.contextmanager
def _redirect_stderr(path: Path) -> Iterator[None]:
    """Write what this process and its children print as errors into a file: Java prints a page of harmless warnings.

    After an exception, print the end of the file.
    """
    original = os.dup(2)
    with path.open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    except BaseException:
        os.write(original, path.read_bytes()[-_LOG_TAIL:])
        raise
    finally:
        os.dup2(original, 2)
        os.close(original)


def _land(context: DemoContext) -> tuple[int, int, int]:
    import headrace.spark
    from headrace.spark import jobs

    spark = _make_session()
    try:
        headrace.spark.register(spark)
        source = {"servers": context.server.url, "stream": "TELEMETRY"}
        table = str(context.folder / "telemetry")
        counts = []
        for _ in range(2):
            jobs.land(spark, source, table, layout="none")
            counts.append(spark.read.parquet(table).count())
        row = spark.read.parquet(table).selectExpr("sum(cast(cast(data as string) as bigint)) as s").first()
        return counts[0], counts[1], int(row["s"]) if row is not None else 0
    finally:
        spark.stop()


def _make_session() -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # where headrace is installed
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("headrace demo")
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"}
    settings["spark.ui.showConsoleProgress"] = "false"
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


STEPS = (
    Step("Spark", "a stream is landed in a table, exactly once (Spark takes up to a minute)", land_table),
)
