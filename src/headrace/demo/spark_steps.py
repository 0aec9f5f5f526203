"""The Spark step: reads a stream as a table."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from typing import Any

from headrace.demo.steps import DemoContext, Step, StepSkipped

ROWS = 20_000


async def land_table(context: DemoContext) -> str:
    if shutil.which("java") is None:
        raise StepSkipped("Spark needs Java 17 or later; on Debian: apt-get install default-jre-headless")
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
    landed, landed_again, sums = await asyncio.to_thread(_land, context)
    assert (landed, landed_again) == (ROWS, ROWS), (landed, landed_again)
    assert sums == ROWS * (ROWS - 1) // 2
    return f"landed {landed:,} messages in a Parquet table; landing again added no rows"


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
    builder = SparkSession.builder.master("local[2]").appName("headrace demo")
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.log.level": "ERROR"}
    settings["spark.ui.showConsoleProgress"] = "false"
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


STEPS = (Step("Spark", "a stream is landed in a table, exactly once", land_table),)
