"""`headrace.read` from servers: streams, buckets and claims without Spark, into pandas, polars and DuckDB."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import polars as pl
import pytest

import headrace
from headrace.claims import ClaimConfig
from headrace.reader.stream_admin import StreamError
from spark.conftest import Broker, eventually
from spark.test_claim_columns import published
from spark.test_kv import bucket, changes


def test_a_stream_of_a_server_goes_into_every_frame(broker: Broker, name: str) -> None:
    broker.create(name)
    broker.fill(name, 300)
    middle = datetime.now(UTC)
    broker.publish(name, [(f"{name}.late", b"A: 1\r\nA: 2\r\n", b"x")])
    with headrace.read(broker.url, name) as reading:
        assert reading.position == 301
        frame = reading.to_pandas()
        assert frame["seq"].tolist() == list(range(1, 302))
        assert reading.to_table()["headers"].to_pylist()[-1] == [("A", ["1", "2"])]
        assert reading.to_polars()["data"].to_list() == frame["data"].tolist()
        assert pl.DataFrame(reading).height == 301
        both = "select count(*) from reading a join reading b using (seq) where a.subject = b.subject"
        assert duckdb.sql(both).fetchall() == [(301,)], "two passes at once"
    some = headrace.read(broker.url, name, subject=f"{name}.3", start=100, end=200, columns=["seq"])
    assert some.to_table()["seq"].to_pylist() == [seq for seq in range(100, 200) if (seq - 1) % 7 == 3]
    two = headrace.read(broker.url, name, subject=[f"{name}.3", f"{name}.l*"], start="-10m", columns=["seq"])
    assert two.to_table().num_rows == 43, "a * does not stand for a part of a token"
    assert headrace.read(broker.url, name, start=middle).to_table()["seq"].to_pylist() == [301]
    assert headrace.read(broker.url, name, end=middle, batch_rows=10).to_table().num_rows == 300


def test_a_broker_grants_its_files(ours: Broker, name: str) -> None:
    ours.create(name)
    ours.fill(name, 50)
    wire = headrace.read(ours.url, name).to_table()
    with headrace.read(ours.url, name, path=ours.path) as reading:
        ours.api(f"STREAM.PURGE.{name}")
        table = reading.to_table()
    assert table.select(wire.column_names).equals(wire), "the same rows and types, though they are gone"
    with pytest.raises(StreamError, match="stream not found"):
        headrace.read(ours.url, "NONE")
    with pytest.raises(ValueError, match="column size needs `path`"):
        headrace.read(ours.url, name, columns=["size"])


def test_a_bucket_is_read(broker: Broker, name: str) -> None:
    bucket(broker, name, 10)
    changes(broker, name)
    for path in (None, broker.path) if broker.server.is_ours else (None,):
        table = headrace.read_kv(broker.url, name, path=path).to_polars().sort("key")
        assert table.select("key", "value", "revision").rows() == [
            ("a", b"3", 3),
            ("d", b"5", 7),
            ("e", b"7", 10),
        ]
        history = headrace.read_kv(broker.url, name, ["b", "e"], history=True, path=path).to_table()
        assert history["operation"].to_pylist() == ["put", "delete", "put", "delete", "put"]


def test_a_mirrored_bucket_is_read(broker: Broker, name: str) -> None:
    bucket(broker, name, 10)
    changes(broker, name)
    renamed = [{"src": f"$KV.{name}.>", "dest": f"$KV.{name}T.>"}]
    for tail, mirror in (
        ("M", {"name": f"KV_{name}"}),
        ("N", {"name": f"KV_{name}M"}),
        ("T", {"name": f"KV_{name}", "subject_transforms": renamed}),
    ):
        copy = f"KV_{name}{tail}"
        options = {"allow_direct": True, "max_msgs_per_subject": 10}
        broker.api(f"STREAM.CREATE.{copy}", {"name": copy, "mirror": mirror, **options})
        eventually(lambda copy=copy: broker.state(copy)["messages"] == broker.state(f"KV_{name}")["messages"])
        for path in (None, broker.path) if broker.server.is_ours else (None,):
            with headrace.read_kv(broker.url, f"{name}{tail}", path=path) as reading:
                assert sorted(reading.to_table()["key"].to_pylist()) == ["a", "d", "e"], tail


def test_claims_are_resolved(broker: Broker, name: str, tmp_path: Path) -> None:
    broker.create(name)
    config = ClaimConfig(name, threshold=1000, store={"path": str(tmp_path)})
    payloads = [b"a" * 5000, b"small", b"b" * 3000]
    asyncio.run(published(broker.url, config, name, payloads))
    refs = headrace.read(broker.url, name, claims="ref", columns=["seq"]).to_table()
    assert [each and each["original_size"] for each in refs["claim"].to_pylist()] == [5000, None, 3000]
    inline = headrace.read(broker.url, name, claims="inline", claim_config=config, claim_errors="column")
    assert inline.to_table()["data"].to_pylist() == payloads
    (lost,) = (path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size == 3000)
    lost.unlink()
    table = inline.to_table()
    assert table["data"].to_pylist() == [*payloads[:2], None]
    assert table["claim_error"].to_pylist()[2].startswith("not-found: ")


def test_neither_spark_nor_a_jvm_is_needed(ours: Broker) -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "import headrace; print(headrace.read(sys.argv[1], 'STAYS').to_table().num_rows)"
    )
    done = subprocess.run([sys.executable, "-c", code, ours.url], capture_output=True, text=True, check=False)
    assert done.stdout == "0\n", done.stderr
