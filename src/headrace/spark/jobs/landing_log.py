"""Records which sequences of a stream a landed table contains: one line per epoch, stored beside the table.

Owns these records. Invariant: everything recorded is in the table; rows in the table that are not recorded yet (the job
was killed in between) are found in the checkpoint by the next run. All reads and writes go through Spark, so that they
work wherever the table is stored. See ADR 57.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

_SCHEMA = (
    "epoch bigint, stream string, identity string, first_seq bigint, end_seq bigint, anchors string, "
    "recorded timestamp"
)
_RANGES_FOLDER = "_headrace"


@dataclass(frozen=True)
class Landed:
    """One epoch of a landing: sequences from `first_seq` (included) to `end_seq` (excluded).

    The first epoch begins at 0 if it is no longer known where the stream began then. `anchors` are fingerprints of
    messages, separated by spaces; records of earlier versions have none.
    """

    epoch: int
    stream: str
    identity: str
    first_seq: int
    end_seq: int
    anchors: str | None = None


def ranges_folder(target: str, checkpoint: str, *, is_table: bool = False) -> str:
    """Return where the records of a landing are: with the files of a table, or with the checkpoint of a catalog table."""
    return f"{(checkpoint if is_table else target).rstrip('/')}/{_RANGES_FOLDER}"


def landed_ranges(spark: SparkSession, folder: str) -> list[Landed]:
    """Return the recorded epochs, oldest first."""
    rows = _collect_rows(spark, lambda: spark.read.schema(_SCHEMA).json(folder))
    found = {row.epoch: Landed(*(row[name] for name in Landed.__dataclass_fields__)) for row in rows}
    return [found[epoch] for epoch in sorted(found)]


def record_epochs(spark: SparkSession, folder: str, checkpoint: str, start_seq: int) -> list[Landed]:
    """Record the epochs that the checkpoint has finished and that are not recorded yet; return all epochs."""
    known = landed_ranges(spark, folder)
    last = known[-1].epoch if known else -1
    end = known[-1].end_seq if known else start_seq
    new: list[Landed] = []
    for epoch, offset in _read_finished_epochs(spark, checkpoint):
        if epoch > last:
            next_seq, anchors = int(offset["next_seq"]), " ".join(offset.get("anchors", ()))
            new.append(Landed(epoch, offset["stream"], offset["identity"], end, next_seq, anchors))
            end = next_seq
    if new:
        df = spark.createDataFrame([asdict(each) for each in new], _SCHEMA.rpartition(",")[0])
        df = df.withColumn("recorded", f.current_timestamp())
        df.coalesce(1).write.mode("append").json(folder)
    return known + new


def has_started(spark: SparkSession, checkpoint: str) -> bool:
    """Return whether a landing has planned anything already."""
    return bool(_collect_rows(spark, lambda: spark.read.text(f"{checkpoint}/offsets", wholetext=True)))


def _read_finished_epochs(spark: SparkSession, checkpoint: str) -> list[tuple[int, dict[str, Any]]]:
    """Return (epoch, end) of the epochs that Spark has committed, as far back as it keeps them."""
    committed_epochs = {epoch for epoch, _ in _read_spark_log(spark, f"{checkpoint}/commits")}
    planned = [
        (epoch, text)
        for epoch, text in _read_spark_log(spark, f"{checkpoint}/offsets")
        if epoch in committed_epochs
    ]
    return [(epoch, json.loads(text.splitlines()[2])) for epoch, text in sorted(planned)]


def _read_spark_log(spark: SparkSession, folder: str) -> list[tuple[int, str]]:
    """Read the entries of one of Spark's logs, which has one file per epoch."""

    def entries() -> Any:
        return spark.read.text(folder, wholetext=True).select("value", f.input_file_name().alias("file"))

    found = [(PurePosixPath(row.file).name, row.value) for row in _collect_rows(spark, entries)]
    return [(int(name), text) for name, text in found if name.isdigit()]


def _collect_rows(spark: SparkSession, make_df: Any) -> list[Any]:
    """Collect the rows of files; none if there is no such folder."""
    try:
        return list(make_df().collect())
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return []
        raise
