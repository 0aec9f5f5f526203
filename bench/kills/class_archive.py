"""An archive of Spark's classes for the JVM (class data sharing), which halves the CPU time of its start.

    python bench/kills/class_archive.py FILE

Drivers and executors of a campaign start again and again. A JVM that cannot use the archive ignores it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

_LIMIT_S = 300.0


def make_archive(path: Path, environment: dict[str, str]) -> str:
    """Write the archive; return the JVM's options that use it, "" if it could not be written."""
    command = [sys.executable, str(Path(__file__)), str(path)]
    subprocess.run(command, env=environment, timeout=_LIMIT_S, capture_output=True, check=False)
    return f"-XX:SharedArchiveFile={path} -Xlog:cds=off" if path.exists() else ""


def main() -> None:
    """Run a streaming query with a shuffle in a JVM that archives the classes it has loaded."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={sys.argv[1]} -Xlog:cds=off",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    with tempfile.TemporaryDirectory() as checkpoint:
        rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
        sums = rows.withWatermark("timestamp", "1 second").groupBy("timestamp").count()
        writer = sums.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination(60)
        query.stop()
    spark.stop()
    # The JVM archives when it ends; that takes longer than PySpark waits.
    jvm = spark.sparkContext._gateway.proc
    jvm.stdin.close()
    jvm.wait(_LIMIT_S)


if __name__ == "__main__":
    main()
