"""A sample of `make spark-kills`: parts of a pipeline on a Spark cluster are killed, and each row is written once."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql.types import StructType

from headrace.reader.blocking_connection import ConnectionFailed
from headrace.spark.datasource import HeadraceDataSource
from headrace.spark.kv.kv_datasource import KvDataSource
from spark.conftest import Broker

PROGRAM = Path(__file__).parents[2] / "bench" / "spark_kills.py"
pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
def test_each_row_is_written_once_while_parts_of_the_pipeline_are_killed(tmp_path: Path) -> None:
    """Three rounds of a query with a shuffle. Seed 5 kills in this order: the driver, the server, an executor."""
    command = [sys.executable, str(PROGRAM), "--rounds", "3", "--seed", "5", "--out", str(tmp_path)]
    command += ["--only", "headrace,shuffle,staged,executor,driver,server", "--limit", "300"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    results = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert sorted(each["victim"] for each in results) == ["driver", "executor", "server"]
    assert not any(each["violations"] or each["repeated"] for each in results)
    assert [each["rows"] for each in results] == [4001, 8002, 12_003]


RUNNER = "pyspark.sql.worker.python_streaming_sink_runner"


def test_a_commit_waits_for_a_server_that_is_away(
    own_broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit makes a writer, maybe in a new process; a query that begins fails at once instead."""
    own_broker.create(name)
    schema = StructType().add("subject", "string").add("data", "string")
    source = HeadraceDataSource({"servers": own_broker.url, "stream": name, "reconnect": "90s"})
    own_broker.server.kill()
    with pytest.raises(ConnectionFailed, match="no server can be reached"):
        source.streamWriter(schema, overwrite=False)
    monkeypatch.setitem(sys.modules, RUNNER, ModuleType(RUNNER))
    restart = threading.Thread(target=own_broker.server.start)
    restart.start()
    try:
        source.streamWriter(schema, overwrite=False).commit([], 0)
    finally:
        restart.join()


def test_a_commit_to_a_bucket_needs_no_server(own_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    own_broker.create("KV_b")
    schema = StructType().add("key", "string").add("value", "string")
    source = KvDataSource({"servers": own_broker.url, "bucket": "b"})
    own_broker.server.kill()
    with pytest.raises(ConnectionFailed, match="no server can be reached"):
        source.streamWriter(schema, overwrite=False)
    monkeypatch.setitem(sys.modules, RUNNER, ModuleType(RUNNER))
    source.streamWriter(schema, overwrite=False).commit([], 0)
