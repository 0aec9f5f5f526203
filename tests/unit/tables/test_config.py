"""The file of tables: what it accepts, and how it is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import TableError
from headrace.tables.config import (
    find_table,
    load_connection,
    load_metrics_address,
    load_tables,
    save_tables,
)
from support.tables import make_config


def test_a_file_that_does_not_exist_has_no_tables(tmp_path: Path) -> None:
    assert load_tables(tmp_path / "tables.yaml") == {}


def test_what_is_saved_is_loaded_with_defaults(tmp_path: Path) -> None:
    path = tmp_path / "tables.yaml"
    config = make_config(tmp_path, properties={"s3.endpoint": "http://127.0.0.1:1"})
    save_tables(path, {"ORDERS": config})
    assert load_tables(path) == {"ORDERS": config}
    assert "commit_interval" not in path.read_text()
    assert config.commit_interval_s == 60
    assert config.commit_bytes_max == 256 << 20
    assert list(tmp_path.glob("*.new")) == []


def test_what_is_beside_the_tables_stays(tmp_path: Path) -> None:
    path = tmp_path / "tables.yaml"
    assert load_metrics_address(path) == ("127.0.0.1", 0)
    path.write_text("connection: {user: tables}\nmetrics_port: 9465\nmetrics_host: 0.0.0.0\n")
    save_tables(path, {"ORDERS": make_config(tmp_path)})
    assert load_metrics_address(path) == ("0.0.0.0", 9465)
    assert load_connection(path) == {"user": "tables"}
    path.write_text("metrics_port: 65536\n")
    with pytest.raises(TableError, match="metrics_port: 65536 is not between 1 and 65535"):
        load_metrics_address(path)


def test_the_name_is_the_stream_unless_one_is_given(tmp_path: Path) -> None:
    assert make_config(tmp_path).stream == "ORDERS"
    assert make_config(tmp_path, stream="OTHER").stream == "OTHER"


def test_an_unknown_table_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no table 'X'; its tables: ORDERS"):
        find_table({"ORDERS": make_config(tmp_path)}, "X", tmp_path / "tables.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tables: 5", "Expected `object`"),
        ("tables: [", "expected the node content"),
        ("tables: {A: {catalog: 'sqlite:///x', warehouse: w}}", "missing required field `table`"),
        ("tables: {A: {catalog: 'sqlite:///x', table: a.b, warehouse: w, typo: 1}}", "unknown field `typo`"),
        (
            "tables: {A: {catalog: 'sqlite:///x', table: a.b, warehouse: w, stream: 'a.b'}}",
            "A.stream: 'a.b' is not",
        ),
        ("tables: {A: {catalog: 'sqlite:///x', table: b, warehouse: w}}", "A.table: 'b' is not a namespace"),
        ("tables: {A: {catalog: here, table: a.b, warehouse: w}}", "A.catalog: 'here' is not a URL"),
        ("tables: {A: {catalog: 'sqlite:///x', table: a.b}}", "A.warehouse is missing"),
        (
            "tables: {A: {catalog: 'sqlite:///x', table: a.b, warehouse: w, commit_interval: 1s}}",
            "1s is below 2s",
        ),
        (
            "tables: {A: {catalog: 'sqlite:///x', table: a.b, warehouse: w, commit_interval: x}}",
            "is not a duration",
        ),
        (
            "tables: {A: {catalog: 'sqlite:///x', table: a.b, warehouse: w, commit_bytes: 5}}",
            "not between 1MiB",
        ),
        ("tables: {A: {catalog: 'sqlite:///x', table: a.b, warehouse: w, on_gap: no}}", "Expected `str`"),
        (
            "tables: {A: {catalog: 'sqlite:///x', table: a.b, warehouse: w, on_gap: skip}}",
            "'skip' is not stop",
        ),
        ("tables: {a b: {catalog: 'sqlite:///x', table: a.b, warehouse: w}}", "'a b' is not a name"),
    ],
)
def test_a_wrong_value_is_rejected_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tables.yaml"
    path.write_text(text)
    with pytest.raises(TableError) as error:
        load_tables(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)
