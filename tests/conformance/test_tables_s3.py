"""A table whose files are in S3: written by a worker, read back by pyiceberg, Polars and DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import polars as pl
import pytest

from claims.object_stores import Weed
from conformance.client import Client
from conformance.servers import OURS, Server
from headrace.tables.worker import TableWorker
from support.tables import make_table, read_rows, reload

BUCKET = "lake"


@pytest.fixture(scope="module")
def weed() -> Iterator[Weed]:
    store = Weed()
    keys = {f"aws_{name}": value for name, value in store.KEYS.items()}
    client = boto3.client("s3", endpoint_url=store.endpoint, region_name="us-east-1", **keys)
    client.create_bucket(Bucket=BUCKET)
    client.close()
    yield store
    store.close()


@pytest.mark.slow
def test_a_table_in_s3_has_each_message_once(weed: Weed, tmp_path: Path) -> None:
    properties = {
        "s3.endpoint": weed.endpoint,
        "s3.access-key-id": weed.KEYS["access_key_id"],
        "s3.secret-access-key": weed.KEYS["secret_access_key"],
        "s3.region": "us-east-1",
    }
    _, config = make_table(tmp_path, warehouse=f"s3://{BUCKET}/tables", properties=properties)
    with Server(OURS) as server, Client(server.port) as client:
        client.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.>"], "allow_direct": True})
        worker = TableWorker("ORDERS", config, {"servers": server.url})
        for first in (0, 10):
            for number in range(first, first + 10):
                client.store(f"orders.{number % 2}", b"%d" % number)
            worker.land()
        worker.close()
    rows = read_rows(config)
    assert [(row["seq"], row["data"]) for row in rows] == [(seq, b"%d" % (seq - 1)) for seq in range(1, 21)]
    table = reload(config)
    assert table.metadata.location.startswith(f"s3://{BUCKET}/tables")
    assert pl.from_arrow(table.scan().to_arrow()).height == 20
    found = table.scan(row_filter="subject = 'orders.1'").to_duckdb("orders")
    assert found.sql("select count(*), count(distinct seq) from orders").fetchall() == [(10, 10)]
