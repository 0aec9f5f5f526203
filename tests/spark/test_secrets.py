"""Credentials that are given as options appear in no plan, page, log or error."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from headrace.reader.options import OptionError, parse_read_options
from spark.conftest import BRISK, Broker

SECRET = "hunter2"
CREDS = f"-----BEGIN NATS USER JWT-----\n{SECRET}\n------END NATS USER JWT------\n"

QUERIES = """
    import sys, urllib.request
    from pyspark.sql import SparkSession
    url, folder, secret = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.port", "0")
        .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.eventLog.enabled", "true").config("spark.eventLog.dir", f"file://{folder}/events")
        .config("spark.eventLog.rolling.enabled", "false").config("spark.eventLog.compress", "false").getOrCreate()
    )
    store = "namespace: n\\nstore: {s3: b, secret_key: " + secret + "}\\n"
    options = {"servers": url, "stream": "S", "claimConfig": store, "user": "u",
               "password": secret, "token": secret}
    frame = spark.read.format("headrace").options(**options).load()
    assert frame.where("seq > 1").count() == 4
    frame.explain(True)
    feed = spark.readStream.format("headrace").options(starting="earliest", **options).load()
    writer = feed.writeStream.format("noop").option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    query.explain(True)
    sink = {name: value for name, value in options.items() if name != "claimConfig"}
    frame.write.format("headrace").mode("append").options(**sink).save()
    for bad in ({"stream": "NONE"}, {"servers": f"nats://u:{secret}@127.0.0.1:1"}, {"creds": secret}):
        try:
            spark.read.format("headrace").options(**{**options, **bad}).load().count()
        except Exception as error:
            print(error)
        else:
            raise AssertionError(bad)
    web, app = spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId
    api = f"api/v1/applications/{app}"
    for page in (f"{api}/sql?details=true&planDescription=true&length=100", f"{api}/environment", f"{api}/jobs",
                 "SQL/", "environment/", "StreamingQuery/"):
        print(page, urllib.request.urlopen(f"{web}/{page}").read().decode())
    spark.stop()
"""


@pytest.mark.slow
def test_no_secret_is_shown(own_broker: Broker, tmp_path: Path) -> None:
    own_broker.create("S")
    own_broker.fill("S", 5)
    (tmp_path / "events").mkdir()
    script = tmp_path / "queries.py"
    script.write_text(textwrap.dedent(QUERIES))
    environment = {**os.environ, **BRISK, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, str(script), own_broker.url, str(tmp_path), SECRET],
        capture_output=True,
        text=True,
        env=environment,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (events,) = (tmp_path / "events").iterdir()
    texts = {"output": done.stdout, "log": done.stderr, "events": events.read_text()}
    assert "stream 'NONE'" in texts["output"]
    assert "SparkListenerSQLExecutionStart" in texts["events"]
    for name, text in texts.items():
        at = text.find(SECRET)
        assert at < 0, (name, text[max(at - 300, 0) : at])
    for file in (tmp_path / "checkpoint").rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


def test_options_keep_secrets_to_themselves() -> None:
    given = {"stream": "S", "password": SECRET, "token": SECRET, "creds": CREDS, "claimConfig": SECRET}
    assert SECRET not in repr(parse_read_options(given))
    for creds in (SECRET, f"SU{SECRET}\n", SECRET * 1000):
        with pytest.raises(OptionError, match="option `creds`") as caught:
            parse_read_options({"stream": "S", "creds": creds})
        assert SECRET not in str(caught.value)
