"""Tables of key-value buckets, and of streams with claims, on both servers."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import nats
import pytest

from claims.claims_harness import wait_until_stored
from conformance.client import Client
from conformance.servers import Server
from headrace.claims import ClaimConfig, Claims
from headrace.tables.inspection import list_history, verify_table
from headrace.tables.stream_range import StreamRangeReader
from headrace.tables.worker import TableWorker
from support.tables import make_table, read_rows, reload

PAYLOADS = [b"a" * 5000, b"small", b"b" * 70_000, b"c" * 2000]


def land(server: Server, name: str, config: Any) -> int:
    worker = TableWorker(name, config, {"servers": server.url})
    try:
        return worker.land().rows
    finally:
        worker.close()


@pytest.fixture
def bucket(server: Server, client: Client, name: str) -> str:
    config = {"name": f"KV_{name}", "subjects": [f"$KV.{name}.>"], "max_msgs_per_subject": 5}
    client.api(f"STREAM.CREATE.KV_{name}", {**config, "allow_rollup_hdrs": True, "allow_direct": True})
    return name


def test_a_bucket_becomes_a_table_of_its_changes(
    server: Server, client: Client, bucket: str, tmp_path: Path
) -> None:
    _, config = make_table(tmp_path, name=bucket, bucket=bucket, subject_columns={"kind": 1})
    client.store(f"$KV.{bucket}.fruit.apple", b"1")
    client.store(f"$KV.{bucket}.fruit.pear", b"2")
    client.store(f"$KV.{bucket}.fruit.apple", b"3")
    assert land(server, bucket, config) == 3
    client.store(f"$KV.{bucket}.fruit.pear", b"", {"KV-Operation": "DEL"})
    client.store(f"$KV.{bucket}.nut", b"", {"KV-Operation": "PURGE", "Nats-Rollup": "sub"})
    assert land(server, bucket, config) == 2
    rows = read_rows(config)
    found = [(row["revision"], row["key"], row["operation"], row["value"]) for row in rows]
    assert sorted(found) == [
        (1, "fruit.apple", "put", b"1"),
        (2, "fruit.pear", "put", b"2"),
        (3, "fruit.apple", "put", b"3"),
        (4, "fruit.pear", "delete", None),
        (5, "nut", "purge", None),
    ]
    assert {row["kind"] for row in rows} == {"fruit", "nut"}


def test_changes_that_are_replaced_before_they_are_read_do_not_stop_a_table(
    server: Server, client: Client, bucket: str, tmp_path: Path
) -> None:
    client.api(
        f"STREAM.UPDATE.KV_{bucket}",
        {
            "name": f"KV_{bucket}",
            "subjects": [f"$KV.{bucket}.>"],
            "max_msgs_per_subject": 1,
            "allow_rollup_hdrs": True,
            "allow_direct": True,
        },
    )
    _, config = make_table(tmp_path, name=bucket, bucket=bucket)
    client.store(f"$KV.{bucket}.apple", b"1")
    assert land(server, bucket, config) == 1
    for value in (b"2", b"3", b"4"):
        client.store(f"$KV.{bucket}.apple", value)
    worker = TableWorker(bucket, config, {"servers": server.url})
    stats = worker.land()
    worker.close()
    # What was replaced is no loss, so that no alert is sent.
    assert (stats.rows, stats.gap_messages) == (1, 0)
    assert sorted(row["revision"] for row in read_rows(config)) == [1, 4]
    assert [entry.gap for entry in list_history(reload(config))] == ["", "2-3"]


def test_values_of_a_bucket_become_columns(
    server: Server, client: Client, bucket: str, tmp_path: Path
) -> None:
    _, config = make_table(tmp_path, name=bucket, bucket=bucket, payload="json", schema={"price": "double"})
    client.store(f"$KV.{bucket}.apple", b'{"price": 1.5}')
    client.store(f"$KV.{bucket}.apple", b"", {"KV-Operation": "DEL"})
    land(server, bucket, config)
    assert [
        (row["price"], row["_error"]) for row in sorted(read_rows(config), key=lambda row: row["revision"])
    ] == [
        (1.5, None),
        (None, None),
    ]


@pytest.fixture
def claim_config(name: str, tmp_path: Path) -> ClaimConfig:
    return ClaimConfig(name, threshold=1000, compression="gzip", store={"path": str(tmp_path / "claims")})


@pytest.fixture
def claim_file(claim_config: ClaimConfig, tmp_path: Path) -> str:
    check = {"threshold": 1000, "compression": "gzip", "store": dict(claim_config.store)}
    path = tmp_path / "claims.yaml"
    path.write_text(json.dumps({"namespace": claim_config.namespace, "claim_check": check}))
    return str(path)


@pytest.fixture
def stocked(server: Server, client: Client, name: str, claim_config: ClaimConfig) -> str:
    """A stream with three claims and a small message between them."""
    client.api(
        f"STREAM.CREATE.{name}",
        {"name": name, "subjects": [f"{name}.>"], "allow_direct": True, "allow_msg_ttl": True},
    )
    asyncio.run(publish_claims(server.url, claim_config, f"{name}.x"))
    return name


async def publish_claims(url: str, config: ClaimConfig, subject: str) -> None:
    connection = await nats.connect(url)
    try:
        async with await Claims.open(connection, config, timeout_s=30) as opened:
            for payload in PAYLOADS:
                await opened.producer.publish(subject, payload)
            await wait_until_stored(connection)
    finally:
        await connection.close()


def test_references_of_claims_become_a_column(server: Server, stocked: str, tmp_path: Path) -> None:
    _, config = make_table(tmp_path, name=stocked, claims="reference")
    assert land(server, stocked, config) == 4
    rows = read_rows(config)
    sizes = [row["claim"] and row["claim"]["original_size"] for row in rows]
    assert sizes == [5000, None, 70_000, 2000]
    assert rows[0]["data"] != PAYLOADS[0]
    assert land(server, stocked, config) == 0


def test_payloads_of_claims_are_fetched_up_to_a_size(
    server: Server, stocked: str, claim_config: ClaimConfig, claim_file: str, tmp_path: Path
) -> None:
    inline = {"claims": "inline", "claim_config": claim_file, "claim_bytes": "10KB"}
    _, config = make_table(tmp_path, name=stocked, **inline)
    assert land(server, stocked, config) == 4
    rows = read_rows(config)
    assert [row["data"] for row in rows if row["seq"] != 3] == [PAYLOADS[0], PAYLOADS[1], PAYLOADS[3]]
    assert json.loads(rows[2]["data"])["original_size"] == rows[2]["claim"]["original_size"] == 70_000
    assert [row["_error"] for row in rows] == [None] * 4
    # Without the payloads.
    shutil.rmtree(str(claim_config.store["path"]))
    reader = StreamRangeReader(config, {"servers": server.url}, stocked)
    report = verify_table(reload(config), reader)
    reader.close()
    assert (report.compared, report.problems) == (4, [])


def test_a_claim_that_is_gone_is_an_error_in_its_row(
    server: Server, stocked: str, claim_config: ClaimConfig, claim_file: str, tmp_path: Path
) -> None:
    store = Path(str(claim_config.store["path"]))
    max((path for path in store.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size).unlink()
    _, config = make_table(tmp_path, name=stocked, claims="inline", claim_config=claim_file)
    assert land(server, stocked, config) == 4
    errors = [row["_error"] for row in read_rows(config)]
    assert sum(error is not None for error in errors) == 1
    assert next(filter(None, errors)).startswith("not-found")
