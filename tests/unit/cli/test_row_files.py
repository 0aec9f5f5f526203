"""Files of rows: bounded memory, values of every type, names only for complete files."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.cli import row_files
from headrace.cli.exit_codes import CliError


def test_a_full_row_group_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "_GROUP_ROWS", 2)
    batch = pa.record_batch({"seq": [1]})
    file = io.BytesIO()
    writer = row_files.ParquetWriter(file, batch.schema)
    for _ in range(5):
        writer.write(batch)
    writer.close()
    assert pq.ParquetFile(file).num_row_groups == 3


def test_large_rows_fill_a_group_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_files, "_GROUP_BYTES", 1000)
    batch = pa.record_batch({"data": [b"x" * 1000]})
    file = io.BytesIO()
    writer = row_files.ParquetWriter(file, batch.schema)
    for _ in range(3):
        writer.write(batch)
    writer.close()
    assert pq.ParquetFile(file).num_row_groups == 3


def test_values_of_every_type_become_json() -> None:
    batch = pa.record_batch(
        {
            "time": pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns", tz="UTC")),
            "local": pa.array([datetime(2026, 1, 2, 3, 4, 5), None], pa.timestamp("us")),
            "day": pa.array([date(2026, 1, 2), None]),
            "price": pa.array([Decimal("1.50"), None]),
            "share": pa.array([float("nan"), 0.5]),
            "raw": pa.array([b"\xff", b"text"]),
            "headers": pa.array([[("a", ["b"])], None], pa.map_(pa.string(), pa.list_(pa.string()))),
        }
    )
    first, second = row_files.iter_json_rows(batch)
    assert first == {
        "time": "2023-11-14T22:13:20.123456789Z",
        "local": "2026-01-02T03:04:05.000000",
        "day": "2026-01-02",
        "price": "1.50",
        "share": None,
        "raw_base64": "/w==",
        "headers": {"a": ["b"]},
    }
    assert second == {
        **dict.fromkeys(("time", "local", "day", "price", "headers")),
        "share": 0.5,
        "raw": "text",
    }
    json.dumps([first, second], allow_nan=False)


def test_csv_quotes_what_it_must() -> None:
    batch = pa.record_batch({"a": ['x,"y"\nz', None], "b": [True, False], "c": [[1, 2], None]})
    file = io.BytesIO()
    writer = row_files.CsvWriter(file, batch.schema)
    writer.write(batch)
    writer.close()
    assert file.getvalue() == b'a,b,c\n"x,""y""\nz",true,"[1, 2]"\n,false,\n'


def test_a_file_gets_its_name_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"

    def fail() -> None:
        with row_files.open_atomic(path) as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not list(tmp_path.iterdir())
    with row_files.open_atomic(path) as file:
        file.write(b"whole")
        assert not path.exists()
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"whole"]


def test_an_error_while_parquet_is_written_leaves_nothing(tmp_path: Path) -> None:
    batch = pa.record_batch({"seq": [datetime.now(UTC)]})
    path = tmp_path / "rows.parquet"

    def fail() -> None:
        with row_files.open_writer("parquet", path, batch.schema) as writer:
            writer.write(batch)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not list(tmp_path.iterdir())


def test_the_ending_chooses_the_format() -> None:
    assert row_files.choose_format(Path("A.PARQUET")) == "parquet"
    assert row_files.choose_format(Path("a.ndjson")) == "jsonl"
    with pytest.raises(CliError, match="endings"):
        row_files.choose_format(Path("a"))
