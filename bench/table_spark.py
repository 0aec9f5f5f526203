"""Reads a table with Spark and compacts it: `python bench/table_spark.py [--rows 20000] [--spark 4.1] [--iceberg 1.12.0]`.

Writes a stream to a table in SeaweedFS's REST catalog, in many small commits. Spark with Iceberg's runtime then must find
exactly these rows, `headrace.spark.jobs.compact` merges the files while the worker continues, and Spark, pyiceberg and the
worker must agree afterwards, also on the rows above the table (`read_with_tail`). PySpark comes from PyPI and the runtime
from Maven Central, once, into `--folder`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

ROOT = Path(__file__).parents[1]
BUCKET, STREAM, TABLE = "lake", "ORDERS", "lake.shop.orders"
_COMMITS = 12


def find_spark(folder: Path, spark: str, iceberg: str) -> list[Path]:
    """Install PySpark, and download Iceberg's runtime, unless they are there; return the jars."""
    if not (folder / spark / "pyspark").is_dir():
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, "--target", str(folder / spark), f"pyspark=={spark}.*"], check=True)
    sys.path.insert(0, str(folder / spark))
    jars = []
    for name in (f"iceberg-spark-runtime-{spark}_2.13", "iceberg-aws-bundle"):
        jar = folder / f"{name}-{iceberg}.jar"
        if not jar.exists():
            artifact = f"-Dartifact=org.apache.iceberg:{name}:{iceberg}"
            command = ["mvn", "-q", "-B", "dependency:copy", artifact, f"-DoutputDirectory={folder}"]
            subprocess.run(command, check=True)
        jars.append(jar)
    return jars


def open_session(jars: list[Path], weed: Any) -> Any:
    """Start Spark with the catalog `lake`."""
    from pyspark.sql import SparkSession

    # Spark's tasks need this program's packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    key, secret = weed.KEYS["access_key_id"], weed.KEYS["secret_access_key"]
    catalog = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "rest",
        ".uri": weed.catalog_url,
        ".warehouse": f"s3://{BUCKET}",
        ".credential": f"{key}:{secret}",
        ".oauth2-server-uri": f"{weed.catalog_url}/v1/oauth/tokens",
        ".io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        ".s3.endpoint": weed.endpoint,
        ".s3.path-style-access": "true",
        ".s3.access-key-id": key,
        ".s3.secret-access-key": secret,
        ".client.region": "us-east-1",
        ".cache-enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("table").config("spark.ui.enabled", "false")
    builder = builder.config("spark.jars", ",".join(str(jar) for jar in jars))
    extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    builder = builder.config("spark.sql.extensions", extensions).config("spark.sql.shuffle.partitions", "2")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    for name, value in catalog.items():
        builder = builder.config(f"spark.sql.catalog.lake{name}", value)
    return builder.getOrCreate()


def publish(client: Any, first: int, count: int) -> None:
    for number in range(first, first + count):
        headers = {"Key": str(number)} if number % 3 == 0 else {}
        client.store(f"orders.{number % 5}", b'{"id": %d, "total": %d.5}' % (number, number % 100), headers)


def collect(spark: Any, frame: Any = None) -> list[tuple[Any, ...]]:
    """Return the rows of the table, or of a frame with its columns."""
    rows = (frame if frame is not None else spark.table(TABLE)).orderBy("seq").collect()
    return [
        (row.seq, row.time.replace(tzinfo=None), row.subject, bytes(row.data), row.headers, row.id, row.total)
        for row in rows
    ]


def run(jars: list[Path], rows: int) -> dict[str, Any]:
    from claims.object_stores import Weed
    from conformance.client import Client
    from conformance.servers import OURS, Server
    from headrace.spark import register
    from headrace.spark.jobs import compact, read_with_tail
    from headrace.tables.worker import TableWorker
    from support.tables import make_rest_values, make_table, read_rows

    weed = Weed(table_bucket=BUCKET)
    try:
        with Server(OURS) as server, Client(server.port) as client:
            client.api(
                "STREAM.CREATE.ORDERS", {"name": STREAM, "subjects": ["orders.*"], "allow_direct": True}
            )
            declared = {"payload": "json", "schema": {"id": "long", "total": "double"}}
            _, config = make_table(Path("unused"), **make_rest_values(weed, BUCKET), **declared)
            worker = TableWorker(STREAM, config, {"servers": server.url})
            for number in range(_COMMITS):
                publish(client, number * (rows // _COMMITS), rows // _COMMITS)
                worker.land()
            spark = open_session(jars, weed)
            register(spark)
            expected = to_tuples(read_rows(config))
            problems = [] if collect(spark) == expected else ["Spark reads other rows than pyiceberg"]
            stop = threading.Event()
            landing = threading.Thread(target=keep_landing, args=(worker, stop))
            landing.start()
            publish(client, rows, 100)
            started_s = time.monotonic()
            summary = compact(spark, TABLE, progress=print)
            elapsed_s = time.monotonic() - started_s
            stop.set()
            landing.join()
            publish(client, rows + 100, 100)
            live = {"servers": server.url, "stream": STREAM}
            tail = collect(spark, read_with_tail(spark, live, TABLE, is_table=True))
            worker.land()
            if tail != collect(spark):
                problems.append("read_with_tail reads other rows than the table has later")
            found, wanted = to_tuples(read_rows(config)), list(range(1, worker.stats.seq + 1))
            if [row[0] for row in found] != wanted or found != collect(spark):
                problems.append("rows differ after the compaction")
            versions = {"spark": spark.version, "rows": len(found), "compact_s": round(elapsed_s, 1)}
            spark.stop()
            worker.close()
            return {**versions, "summary": vars(summary), "problems": problems}
    finally:
        weed.close()


def keep_landing(worker: Any, stop: threading.Event) -> None:
    while not stop.is_set():
        worker.land()
        stop.wait(0.5)


def to_tuples(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (
            *(row["seq"], row["time"].replace(tzinfo=None), row["subject"], row["data"]),
            *(dict(row["headers"]) if row["headers"] is not None else None, row["id"], row["total"]),
        )
        for row in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--spark", default="4.1")
    parser.add_argument("--iceberg", default="1.12.0")
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "table-spark")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    result = run(find_spark(arguments.folder, arguments.spark, arguments.iceberg), arguments.rows)
    print(json.dumps(result))
    sys.exit(1 if result["problems"] else 0)


if __name__ == "__main__":
    main()
