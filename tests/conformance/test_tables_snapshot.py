"""A table is written from the files of a broker that runs: on the same disk, or over HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.client import Client
from conformance.servers import OURS, Server, Setup
from headrace.tables.worker import TableWorker
from support.tables import make_table, read_seqs


@pytest.mark.parametrize("storage", ["file", "memory"])
@pytest.mark.parametrize("source", ["files", "http"])
def test_files_of_a_broker_have_each_message_once(source: str, storage: str, tmp_path: Path) -> None:
    with Server(OURS, Setup(flags=("-m", "-1"))) as server, Client(server.port) as client:
        path = str(server.store_dir) if source == "files" else server.monitoring_url("")
        _, config = make_table(tmp_path, path=path)
        stream = {"name": "ORDERS", "subjects": ["orders.>"], "storage": storage}
        client.api("STREAM.CREATE.ORDERS", stream)
        worker = TableWorker("ORDERS", config, {"servers": server.url})
        for _ in range(3):
            for number in range(10):
                client.store(f"orders.{number % 2}", b"%d" % number)
            worker.land()
        client.api("STREAM.MSG.DELETE.ORDERS", {"seq": 5})
        client.store("orders.last", b"31")
        stats = worker.land()
        assert worker.land().commits == stats.commits == 4
        worker.close()
    assert read_seqs(config) == list(range(1, 32))
