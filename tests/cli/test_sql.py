"""`headrace sql` on both servers: streams as tables, formats, and the shell."""

import csv
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cli.conftest import Headrace
from cli.terminal import Terminal
from headrace.cli.exit_codes import CliError
from headrace.cli.sql_streams import choose_streams


@pytest.fixture
def orders(headrace: Headrace, stream: str) -> str:
    """A stream with JSON payloads, a header, and a payload that is not UTF-8."""
    headrace("pub", f"{stream}.eu", '{"customer": "ann", "price": 3}', "-J", "-H", "Kind:a")
    headrace("pub", f"{stream}.us", '{"customer": "bob", "price": 7}', "-J")
    headrace("pub", f"{stream}.raw", "-J", stdin=b"\xff")
    return stream


def query(headrace: Headrace, text: str, *words: object) -> list[dict[str, object]]:
    found: list[dict[str, object]] = headrace.json("sql", text, *words)
    return found


def test_streams_are_tables(headrace: Headrace, orders: str) -> None:
    assert query(headrace, f"select count(*) as n from {orders}") == [{"n": 3}]
    assert query(headrace, f"select count(*) as n from {orders.lower()}") == [{"n": 3}]
    prices = f"select sum((as_json(data)->>'$.price')::int)::int as total from {orders} where subject != 'x'"
    assert query(headrace, prices) == [{"total": 10}]
    both = f"select a.seq from {orders} a join {orders} b using (seq) where header(a.headers, 'Kind') = 'a'"
    assert query(headrace, both) == [{"seq": 1}]
    texts = query(headrace, f"select as_text(data) as text, as_json(data) as j from {orders} order by seq")
    assert texts[2] == {"text": None, "j": None}
    assert str(texts[0]["text"]).startswith('{"customer"')
    described = query(headrace, f"describe {orders}")
    assert [row["column_name"] for row in described] == ["seq", "time", "subject", "headers", "data"]


def test_a_part_of_each_stream(headrace: Headrace, orders: str) -> None:
    def seqs(*words: object) -> list[object]:
        return [row["seq"] for row in query(headrace, f"select seq from {orders} order by seq", *words)]

    assert seqs("--since", 2) == [2, 3]
    assert seqs("--until", 3, "--subject", f"{orders}.us") == [2]
    assert seqs("--since", "1h") == [1, 2, 3]
    assert seqs("--until", "1h") == []


def test_names_that_need_quotes(headrace: Headrace, name: str) -> None:
    headrace("stream", "add", f"{name}-x", "--subjects", f"{name}x")
    assert query(headrace, f'select count(*) as n from "{name}-x"') == [{"n": 0}]
    headrace("stream", "rm", f"{name}-x", "-f")


def test_the_formats(headrace: Headrace, orders: str, tmp_path: Path) -> None:
    text = f"select seq, subject, data from {orders} order by seq"
    table = headrace("sql", text).splitlines()
    assert table[0].split() == ["SEQ", "SUBJECT", "DATA"]
    assert table[3].split() == ["3", f"{orders}.raw", "\\xff"]
    rows = list(csv.DictReader(io.StringIO(headrace("sql", text, "--format", "csv"))))
    assert [row["data_base64"] for row in rows] == ["", "", "/w=="]
    lines = headrace("sql", text, "--format", "jsonl").splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3]
    assert headrace("sql", f"select 1 from {orders} where false", "--format", "json") == "[]\n"
    headrace("sql", text, "-o", tmp_path / "rows.parquet")
    assert "3 rows" in headrace.error
    assert pq.read_table(tmp_path / "rows.parquet").num_rows == 3
    joined = f"select count(*) as n from {orders} join '{tmp_path}/rows.parquet' using (seq)"
    assert query(headrace, joined) == [{"n": 3}]
    shown = headrace(
        "sql", "--json", stdin=f"create table t as from {orders}; select count(*) as n from t".encode()
    )
    assert json.loads(shown) == [{"n": 3}]


def test_what_cannot_be_queried(
    headrace: Headrace, orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    headrace("sql", f"select * from {orders}none", code=3)
    assert "headrace stream ls" in headrace.error
    assert "Did you mean" not in headrace.error, "not a system table of DuckDB"
    headrace("sql", "selec 1", code=2)
    assert "syntax error" in headrace.error
    headrace("sql", " ", code=2)
    assert "empty" in headrace.error
    headrace("sql", "select 1", "--format", "parquet", code=2)
    assert "--output" in headrace.error
    headrace("sql", "select 1", "-o", tmp_path / "a.xls", code=2)
    headrace("sql", f"select cast(subject as int) from {orders}", code=2)
    assert "Conversion Error" in headrace.error
    headrace("sql", f"select * from {orders}", "--subject", "a b", code=2)
    monkeypatch.setattr("headrace.extras.find_spec", lambda name: None)
    headrace("sql", "select 1", code=1)
    assert "pip install 'headrace[sql]'" in headrace.error


def test_names_that_differ_in_case_only() -> None:
    assert choose_streams(["A", "a", "B"], "select * from a") == ["a"]
    assert choose_streams(["A", "a"], "select * from A") == ["A"]
    assert choose_streams(["A", "A-B", "AB"], 'select * from "A-B"') == ["A-B"]
    with pytest.raises(CliError, match="apart"):
        choose_streams(["A", "a"], "select * from A, a")


def test_the_shell(headrace: Headrace, orders: str) -> None:
    with Terminal("sql", url=headrace.url) as terminal:
        terminal.expect("headrace>")
        terminal.press(".tables\n")
        terminal.expect(f"{orders}\n")
        terminal.press(f"select count(*) as messages\nfrom {orders};\n")
        terminal.expect("│        3 │")
        terminal.press("select nothing;\n")
        terminal.expect("Binder Error")
        terminal.press("select 40 +\n")
        terminal.expect("40 +\n     ...>")
        terminal.interrupt("discarded\n")
        terminal.press("select 41 + 1;\n")
        terminal.expect("42")
        terminal.press(".quit\n")
        assert terminal.ended() == 0
