"""The jobs land, unite, replay and snapshot, from Python and from the command line."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace.cli.spark_jobs import get_error_line
from headrace.reader.options import OptionError
from headrace.spark import jobs
from headrace.spark.jobs.kv_snapshot import replace_table
from headrace.spark.offsets import DataLoss
from spark.conftest import Broker, needs_read_limits
from spark.test_kv import bucket, changes
from support.processes import headrace


@needs_read_limits
def test_a_stream_is_landed_united_with_its_tail_and_replayed(
    ours: Broker,
    spark: SparkSession,
    load: Callable[..., DataFrame],
    pipeline: Callable[..., str],
    name: str,
    tmp_path: Path,
) -> None:
    ours.create(name)
    ours.fill(name, 500)
    target, checkpoint = str(tmp_path / "table"), tmp_path / "_table.checkpoint"
    told = pipeline("land", name, target, "-s", ours.url, "-o", "maxMessagesPerTrigger=300")
    assert f"landed 500 rows in {target} in 2 batches, up to sequence 500" in told
    ours.fill(name, 100, start=500)
    live = {"servers": ours.url, "stream": name}
    everything = sorted(int(row.data) for row in jobs.read_with_tail(spark, live, target).collect())
    assert everything == list(range(600))
    shutil.rmtree(checkpoint / "commits")
    (checkpoint / "commits").mkdir()
    done = jobs.land(spark, live, target)
    assert done.last_seq == 600
    landed = spark.read.parquet(target)
    assert sorted(int(row.data) for row in landed.collect()) == list(range(600)), (
        "an epoch again adds nothing"
    )
    assert len(list(Path(target).glob("day=*/*.parquet"))) == 3, "a file an epoch"
    ranges = jobs.landed_ranges(spark, f"{target}/_headrace")
    assert [(each.epoch, each.first_seq, each.end_seq) for each in ranges] == [
        (0, 1, 301),
        (1, 301, 501),
        (2, 501, 601),
    ]
    ours.create(f"{name}R", allow_atomic=True)
    for _ in range(2):
        again = pipeline(
            *("replay", target, f"{name}R", "-s", ours.url, "--where", "seq > 100"),
            *("--subject", f"replace(subject, '{name}', '{name}R')"),
        )
        assert f"500 rows of {target} are stored in stream {name}R" in again
    rows = load(ours, f"{name}R", subject=f"{name}R.>").orderBy("seq").collect()
    assert [int(row.data) for row in rows] == list(range(100, 600)), "in their order, each once"


def test_tables_and_streams_that_do_not_fit_are_not_united(
    ours: Broker, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    ours.create(name)
    ours.fill(name, 30)
    live = {"servers": ours.url, "stream": name}
    target = str(tmp_path / "table")
    jobs.land(spark, live, target, layout="topic", files=2)
    assert {path.name for path in Path(target).glob("topic=*")} == {f"topic={name}"}
    ours.fill(name, 10, start=30)
    ours.api(f"STREAM.PURGE.{name}", {"seq": 36})
    with pytest.raises(DataLoss, match=r"the table ends at sequence 30 and stream .* starts at 36"):
        jobs.read_with_tail(spark, live, target)
    assert jobs.read_with_tail(spark, {**live, "failOnDataLoss": "false"}, target).count() == 35
    ours.api(f"STREAM.DELETE.{name}")
    ours.create(name)
    with pytest.raises(DataLoss, match="is not the one that was landed"):
        jobs.read_with_tail(spark, live, target)


def test_changes_of_a_bucket_are_landed_in_a_table_of_the_catalog(
    ours: Broker, spark: SparkSession, pipeline: Callable[..., str], name: str, tmp_path: Path
) -> None:
    bucket(ours, name, 5)
    changes(ours, name)
    where = ("--checkpoint", str(tmp_path / "checkpoint"), "--layout", "none", "--table")
    try:
        pipeline("land", name, f"t_{name}", "--kv", "-s", ours.url, *where)
        rows = spark.table(f"t_{name}").orderBy("revision").collect()
        assert [(row.key, row.operation) for row in rows][:4] == [
            ("a", "put"),
            ("b", "put"),
            ("a", "put"),
            ("b", "delete"),
        ]
    finally:
        spark.sql(f"drop table if exists t_{name}")


def test_a_bucket_is_written_as_a_table(
    ours: Broker, spark: SparkSession, pipeline: Callable[..., str], name: str, tmp_path: Path
) -> None:
    bucket(ours, name, 5)
    changes(ours, name)
    target = str(tmp_path / "table")
    for _ in range(2):
        assert "3 rows of bucket" in pipeline("kv-snapshot", name, target, "-s", ours.url)
    assert not list(tmp_path.glob("_table.*")), "nothing is left beside it"
    assert {row.key for row in spark.read.parquet(target).collect()} == {"a", "d", "e"}


def test_an_unknown_layout_is_refused(spark: SparkSession) -> None:
    with pytest.raises(OptionError, match="layout 'hour' is not one of none, day"):
        jobs.start_landing(spark, {}, "nowhere", checkpoint="nowhere", layout="hour")


def test_the_doctor_says_what_is_there(ours: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    healthy = headrace("pipeline", "doctor", "-s", ours.url, "--stream", "STAYS", timeout_s=120)
    assert healthy.returncode == 0, healthy.stdout
    assert "Spark finds headrace, jetstream, headrace_kv" in healthy.stdout
    assert "limits retention" in healthy.stdout
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    ill = headrace("pipeline", "doctor", "-s", "nats://127.0.0.1:1", timeout_s=120)
    assert ill.returncode == 1
    assert "no server can be reached" in ill.stdout
    assert f"set it to {sys.executable}" in ill.stdout


def test_an_error_of_spark_is_cut_to_what_it_says() -> None:
    quoted = "[PYTHON_DATA_SOURCE_ERROR] Failed:\n  File x\nheadrace.spark.streams.StreamError: no such stream\n SQLSTATE"
    assert get_error_line(RuntimeError(quoted)) == "no such stream"
    assert get_error_line(RuntimeError("plain")) == "plain"


class Written:
    """Records what a frame writes to a folder, without a session."""

    @property
    def write(self) -> Written:
        return self

    def format(self, _: str) -> Written:
        return self

    def save(self, path: str) -> None:
        Path(path).mkdir()
        (Path(path) / "part").write_text("new")


@pytest.mark.parametrize("error", [KeyboardInterrupt, PermissionError])
def test_a_table_stays_when_the_new_one_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    table = tmp_path / "table"
    table.mkdir()
    (table / "part").write_text("old")
    rename = Path.rename

    def refused(path: Path, to: Path) -> Path:
        if path.name.startswith("_table.new"):
            raise error
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(error):
        replace_table(Written(), str(table), "parquet")  # type: ignore[arg-type]
    assert [path.read_text() for path in tmp_path.rglob("part")] == ["old"]
    monkeypatch.undo()
    replace_table(Written(), str(table), "parquet")  # type: ignore[arg-type]
    assert [path.read_text() for path in tmp_path.rglob("part")] == ["new"]
