"""The jobs: land, unite, replay, snapshot; by Python and from the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace.cli.pipeline import reason
from headrace.spark import jobs
from headrace.spark.options import OptionError
from spark.conftest import Broker
from spark.test_kv import bucket, changes
from support.processes import headrace


def test_a_stream_is_landed_united_with_its_tail_and_replayed(
    ours: Broker, spark: SparkSession, load: Callable[..., DataFrame], name: str, tmp_path: Path
) -> None:
    ours.create(name)
    ours.fill(name, 500)
    source = {"servers": ours.url, "stream": name, "maxMessagesPerTrigger": 300}
    target, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")
    assert jobs.land(spark, source, target, checkpoint=checkpoint) == jobs.Summary(500, 2, 500)
    ours.fill(name, 100, start=500)
    live = {"servers": ours.url, "stream": name}
    everything = sorted(int(row.data) for row in jobs.united(spark, live, target).collect())
    assert everything == list(range(600))
    assert jobs.land(spark, source, target, checkpoint=checkpoint).rows == 100
    assert len(list(Path(target).glob("day=*/*.parquet"))) == 3, "a file a batch"
    ours.create(f"{name}R", subjects=[f"{name}R.>", f"_progress.{name}R.>"], allow_atomic=True)
    moved = spark.read.parquet(target).selectExpr(
        "seq", f"replace(subject, '{name}', '{name}R') as subject", "data"
    )
    moved.write.parquet(str(tmp_path / "moved"))
    for _ in range(2):
        jobs.replay(spark, str(tmp_path / "moved"), {"servers": ours.url, "stream": f"{name}R"})
    rows = load(ours, f"{name}R", subject=f"{name}R.>").orderBy("seq").collect()
    assert [int(row.data) for row in rows] == list(range(600)), "in their order, each once"


def test_a_bucket_is_written_as_a_table(ours: Broker, spark: SparkSession, name: str, tmp_path: Path) -> None:
    bucket(ours, name, 5)
    changes(ours, name)
    target = str(tmp_path / "table")
    for _ in range(2):
        done = jobs.snapshot_bucket(spark, {"servers": ours.url, "bucket": name}, target)
    assert done.rows == 3
    assert {row.key for row in spark.read.parquet(target).collect()} == {"a", "d", "e"}


def test_an_unknown_layout_is_refused(spark: SparkSession) -> None:
    with pytest.raises(OptionError, match="layout 'hour' is none of none, day"):
        jobs.start_landing(spark, {}, "nowhere", checkpoint="nowhere", layout="hour")


def test_the_doctor_says_what_is_there(ours: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    healthy = headrace("pipeline", "doctor", "-s", ours.url, "--stream", "STAYS", timeout_s=60)
    assert healthy.returncode == 0, healthy.stdout
    assert "Spark finds headrace, jetstream, headrace_kv" in healthy.stdout
    assert "limits retention" in healthy.stdout
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    ill = headrace("pipeline", "doctor", "-s", "nats://127.0.0.1:1", timeout_s=60)
    assert ill.returncode == 1
    assert "no server can be reached" in ill.stdout
    assert f"set it to {sys.executable}" in ill.stdout


def test_an_error_of_spark_is_cut_to_what_it_says() -> None:
    quoted = "[PYTHON_DATA_SOURCE_ERROR] Failed:\n  File x\nheadrace.spark.streams.StreamError: no such stream\n SQLSTATE"
    assert reason(RuntimeError(quoted)) == "no such stream"
    assert reason(RuntimeError("plain")) == "plain"
