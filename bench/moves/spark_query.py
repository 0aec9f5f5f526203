"""A running Spark query that reads a stream, and continues where the stream is after a move, with the same checkpoint.

    python bench/moves/spark_query.py STREAM FOLDER

The program of the driver: each input line has the servers to read from, and the end of the input ends it. Each output line
says that a query has started. Batches are written by their number, so one that is repeated replaces itself: the folder has
what a sink with exactly-once semantics has.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

_ROWS, _CHECKPOINT = "rows", "checkpoint"
_TRIGGER = "500 milliseconds"
_START_S, _READ_S, _STOP_S = 240.0, 240.0, 60.0


class SparkQuery:
    """The process of a query, which can be started again at another place."""

    def __init__(self, stream: str, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2] / "src"),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, stream, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )

    def start(self, servers: str) -> None:
        """Stop the query if it runs, and start it with these servers; wait until it runs."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(_START_S, self._process.kill)
        timer.start()
        self._process.stdin.write(f"{servers}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        timer.cancel()
        assert line.startswith("started"), (self._folder / "log").read_text()[-3000:]

    def stop(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def find_problems(self, expected: dict[int, str], last_seq: int) -> list[str]:
        """Wait for the row of the last message; return what is missing, repeated or different."""
        deadline_s = time.monotonic() + _READ_S
        rows = self._read_rows()
        while len(rows) < last_seq and time.monotonic() < deadline_s:
            time.sleep(1)
            rows = self._read_rows()
        problems = []
        seqs = sorted(seq for seq, _ in rows)  # it may have read later messages, too
        if len(seqs) < last_seq or seqs != list(range(1, len(seqs) + 1)):
            lost, twice = set(range(1, last_seq + 1)) - set(seqs), len(seqs) - len(set(seqs))
            problems.append(
                f"Spark has {len(seqs)} rows of {last_seq}: {len(lost)} missing, {twice} repeated"
            )
        found = dict(rows)
        if wrong := [seq for seq, text in expected.items() if found.get(seq, text) != text]:
            problems.append(f"Spark has other values in {len(wrong)} rows, for example of {wrong[0]}")
        return problems

    def _read_rows(self) -> list[tuple[int, str]]:
        """Return sequence and value of the rows of all batches that are complete."""
        import pyarrow.parquet as parquet

        rows: list[tuple[int, str]] = []
        for done in sorted((self._folder / _ROWS).glob("*/_SUCCESS")):
            for file in done.parent.glob("*.parquet"):
                table = parquet.read_table(file)
                rows += zip(table["seq"].to_pylist(), table["data"].to_pylist(), strict=True)
        return rows


def run_driver(stream: str, folder: Path) -> None:
    """Run the query at each place that is read from standard input."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    from headrace.spark import register

    register(session)
    query: Any = None
    for line in sys.stdin:
        if query is not None:
            query.stop()
        query = _start_query(session, stream, folder, line.strip())
        print("started", flush=True)
    if query is not None:
        query.stop()
    session.stop()


def _start_query(session: Any, stream: str, folder: Path, servers: str) -> Any:
    def write(batch: Any, number: int) -> None:
        batch.write.mode("overwrite").parquet(str(folder / _ROWS / str(number)))

    feed = session.readStream.format("headrace").options(servers=servers, stream=stream, starting="earliest")
    rows = feed.load().selectExpr("seq", "CAST(data AS STRING) AS data")
    writer = rows.writeStream.foreachBatch(write).trigger(processingTime=_TRIGGER)
    return writer.option("checkpointLocation", str(folder / _CHECKPOINT)).start()


if __name__ == "__main__":
    run_driver(sys.argv[1], Path(sys.argv[2]))
