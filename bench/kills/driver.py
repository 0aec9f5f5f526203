"""The program of Spark's driver: runs the query that it reads from standard input, and starts it again when it fails.

    python bench/kills/driver.py spark://127.0.0.1:7077 FOLDER JVM_OPTIONS

Each input line is a JSON object with a query, or `stop`. Each output line is a JSON object with an event: `ready`,
`started`, `failed` (with the error; the query is started again), `stopped`.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from headrace.spark.pyspark_compat import HAS_READ_LIMITS
from kills.ledger import DELAY_MS, WINDOW_MS

_POLL_S = 0.1
_PAUSE_S = 0.5
_JOIN_S = 20
#: A condition that is always true, and takes a millisecond for each eighth row: tasks write long enough to be killed.
_SLOWLY = "reflect('java.lang.Thread', 'sleep', if(pmod(hash(data), 8) = 0, 1L, 0L)) is distinct from 'x'"
SINK_MODES = {
    "staged": {},
    "ids": {"exactlyOnce": "ids"},
    "atLeastOnce": {"atLeastOnce": "true"},
}


def make_session(master: str, folder: str, jvm_options: str) -> SparkSession:
    settings = {
        "spark.driver.extraJavaOptions": jvm_options,
        "spark.executor.extraJavaOptions": jvm_options,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.locality.wait": "0",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.log.level": "WARN",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    }
    builder = SparkSession.builder.master(master).appName("spark-kills")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def read_rows(spark: SparkSession, given: dict[str, Any], side: str) -> DataFrame:
    """Return the rows of one side, with their columns."""
    feed = spark.readStream.format("headrace").options(
        servers=given["servers"],
        stream=given["source"],
        subject=f"{given['source']}.{side}.*",
        starting="earliest",
        minPartitions=2,
    )
    if HAS_READ_LIMITS:
        feed = feed.option("maxMessagesPerTrigger", given["epoch_rows"])
    parts = feed.load().selectExpr("split(string(data), ',') as part", "string(data) as data")
    return parts.selectExpr(
        "int(part[0]) as id",
        "int(part[1]) as key",
        "timestamp_millis(bigint(part[2])) as time",
        "int(part[3]) as value",
        "data",
    )


def copy_rows(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("key", "data", "string(id) as msg_id")


def shuffle(rows: DataFrame) -> DataFrame:
    """Distribute rows round-robin: a repeated stage may divide them otherwise."""
    return rows.repartition(3).selectExpr("key", "id || ',' || value * 2 as data", "string(id) as msg_id")


def aggregate(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    windows = rows.withWatermark("time", f"{DELAY_MS} milliseconds").groupBy(
        f.window("time", f"{WINDOW_MS} milliseconds"), "key"
    )
    sums = windows.agg(f.count("*").alias("count"), f.sum("value").alias("sum"))
    start = "unix_millis(window.start)"
    return sums.selectExpr(
        "key",
        f"{start} || ',' || key || ',' || count || ',' || sum as data",
        f"{start} || '-' || key as msg_id",
    )


def join(left: DataFrame, right: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    delay = f"{DELAY_MS} milliseconds"
    left = left.withWatermark("time", delay).alias("l")
    right = right.withWatermark("time", delay).alias("r")
    within = f"l.id = r.id and r.time >= l.time and r.time <= l.time + interval {_JOIN_S} seconds"
    joined = left.join(right, f.expr(within), "leftOuter")
    return joined.selectExpr(
        "l.key as key",
        "l.id || ',' || l.value || ',' || coalesce(string(r.value), '-') as data",
        "string(l.id) as msg_id",
    )


def make_query(spark: SparkSession, given: dict[str, Any]) -> DataFrame:
    """Return what the query writes."""
    name, target = given["query"], given["target"]
    left = read_rows(spark, given, "left")
    if name == "join":
        frame = join(left, read_rows(spark, given, "right"))
    else:
        frame = {"shuffle": shuffle, "aggregate": aggregate}.get(name, copy_rows)(left)
    ids = ["msg_id"] if given["mode"] == "ids" else []
    return frame.where(_SLOWLY).selectExpr(f"'{target}.' || key as subject", "data", *ids)


def make_writer(spark: SparkSession, given: dict[str, Any]) -> DataStreamWriter:
    options = {"servers": given["servers"], "stream": given["target"], "batchSize": given["batch_rows"]}
    options |= SINK_MODES[given["mode"]]
    frame = make_query(spark, given)
    if given["query"] != "foreach":
        return frame.writeStream.format("headrace").options(**options)

    def write_epoch(batch: DataFrame, number: int) -> None:
        write_id = f"{given['target']}-{number}"
        batch.write.format("headrace").mode("append").options(**options, writeId=write_id).save()

    return frame.writeStream.foreachBatch(write_epoch)


def start_query(spark: SparkSession, given: dict[str, Any]) -> StreamingQuery:
    writer = make_writer(spark, given).option("checkpointLocation", given["checkpoint"])
    return writer.start()


def emit(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, "time": time.time(), **fields}), flush=True)


def run(spark: SparkSession, given: dict[str, Any], commands: queue.Queue[str]) -> None:
    """Run a query until the next command, which is `stop`."""
    query: StreamingQuery | None = None
    while True:
        try:
            if query is None:
                query = start_query(spark, given)
                emit("started")
            if not query.isActive:
                query.awaitTermination()
        except Exception as error:
            if spark.sparkContext._jsc is None or not _is_alive(spark):
                raise
            emit("failed", error=str(error)[:3000])
            query = None
            time.sleep(_PAUSE_S)
        try:
            commands.get(timeout=_POLL_S)
        except queue.Empty:
            continue
        if query is not None:
            query.stop()
        emit("stopped")
        return


def _is_alive(spark: SparkSession) -> bool:
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:
        return False


def read_commands(commands: queue.Queue[str]) -> None:
    """Put each input line into the queue, and "" at the end."""
    for line in sys.stdin:
        commands.put(line)
    commands.put("")


def main() -> None:
    commands: queue.Queue[str] = queue.Queue()
    threading.Thread(target=read_commands, args=(commands,), daemon=True).start()
    spark = make_session(*sys.argv[1:4])
    emit("ready")
    while line := commands.get():
        run(spark, json.loads(line), commands)
    spark.stop()


if __name__ == "__main__":
    main()
