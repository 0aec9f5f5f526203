"""Commits of streaming writes while the server is away."""

from __future__ import annotations

import sys
import threading
from types import ModuleType

import pytest
from pyspark.sql.types import StructType

from headrace.reader.blocking_connection import ConnectionFailed
from headrace.spark.datasource import HeadraceDataSource
from headrace.spark.kv.kv_datasource import KvDataSource
from spark.conftest import Broker

pytestmark = pytest.mark.slow


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
