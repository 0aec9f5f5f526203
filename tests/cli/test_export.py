"""`headrace export` on both servers: formats, ranges, and files that are complete or not there."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from cli.conftest import Headrace
from conformance.servers import Server, Setup

TIMEOUT_S = 60.0


@pytest.fixture
def orders(headrace: Headrace, stream: str) -> str:
    """A stream with a message with a header, one with text, and one that is not UTF-8."""
    headrace("pub", f"{stream}.eu.1", '{"price": 3}', "-J", "-H", "Kind:a")
    headrace("pub", f"{stream}.us.1", "grüße", "-J")
    headrace("pub", f"{stream}.eu.2", "-J", stdin=b"\xff\x00")
    return stream


def export_lines(headrace: Headrace, *words: object, folder: Path) -> list[dict[str, object]]:
    headrace("export", words[0], folder / "rows.jsonl", *words[1:], "--force")
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def test_the_formats_have_the_same_rows(headrace: Headrace, orders: str, tmp_path: Path) -> None:
    first, second, third = export_lines(headrace, orders, folder=tmp_path)
    assert (first["seq"], first["subject"], first["headers"]) == (1, f"{orders}.eu.1", {"Kind": ["a"]})
    assert first["data"] == '{"price": 3}'
    assert (second["data"], second["headers"]) == ("grüße", None)
    assert "data" not in third
    assert third["data_base64"] == "/wA="
    assert str(first["time"]).endswith("Z")
    stored = headrace.json("stream", "get", orders, 1)["time"]
    assert str(first["time"]).rstrip("Z0") == stored.rstrip("Z0")

    result = headrace.json("export", orders, tmp_path / "rows.csv")
    assert (result["messages"], result["bytes"]) == (3, (tmp_path / "rows.csv").stat().st_size)
    with (tmp_path / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["data"] for row in rows] == ['{"price": 3}', "grüße", ""]
    assert [row["data_base64"] for row in rows] == ["", "", "/wA="]
    assert json.loads(rows[0]["headers"]) == {"Kind": ["a"]}
    assert [row["time"] for row in rows] == [first["time"], second["time"], third["time"]]

    headrace("export", orders, tmp_path / "rows.parquet")
    table = pq.read_table(tmp_path / "rows.parquet")
    assert table.column_names == ["seq", "time", "subject", "headers", "data"]
    assert table.column("data").to_pylist() == [b'{"price": 3}', "grüße".encode(), b"\xff\x00"]
    assert table.column("headers").to_pylist()[0] == [("Kind", ["a"])]


def test_a_part_of_a_stream(headrace: Headrace, orders: str, tmp_path: Path) -> None:
    def seqs(*words: object) -> list[object]:
        return [row["seq"] for row in export_lines(headrace, orders, *words, folder=tmp_path)]

    assert seqs("--subject", f"{orders}.eu.*") == [1, 3]
    assert seqs("--subject", f"{orders}.us.>", "--subject", f"{orders}.eu.2") == [2, 3]
    assert seqs("--limit", 2) == [1, 2]
    assert seqs("--subject", f"{orders}.eu.*", "--limit", 1) == [1]
    assert seqs("--since", 2, "--until", 3) == [2]
    assert seqs("--since", "1h") == [1, 2, 3]
    assert seqs("--until", "1h") == []
    assert seqs("--since", "2100-01-01T00:00:00Z") == []
    time_of_2 = headrace.json("stream", "get", orders, 2)["time"]
    bound = time_of_2[: time_of_2.index(".") + 7].rstrip("Z") + "Z"
    assert seqs("--since", bound)[-2:] == [2, 3]
    headrace("stream", "rmm", orders, 2, "-f")
    assert seqs() == [1, 3]


@pytest.mark.parametrize("retention", ["work", "interest"])
def test_streams_that_consumers_must_not_touch(
    headrace: Headrace, name: str, retention: str, tmp_path: Path
) -> None:
    headrace("stream", "add", name, "--subjects", name, "--retention", retention, "--no-allow-direct")
    headrace("consumer", "add", name, "worker")
    headrace("pub", name, "job", "-J")
    assert [row["data"] for row in export_lines(headrace, name, folder=tmp_path)] == ["job"]
    assert headrace.json("stream", "info", name)["state"]["messages"] == 1
    headrace("stream", "rm", name, "-f")


def test_an_empty_stream_is_a_file_without_rows(headrace: Headrace, stream: str, tmp_path: Path) -> None:
    headrace("export", stream, tmp_path / "none.parquet")
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0


def test_what_cannot_be_exported(headrace: Headrace, orders: str, tmp_path: Path) -> None:
    headrace("export", f"{orders}x", tmp_path / "a.csv", code=3)
    assert "headrace stream ls" in headrace.error
    headrace("export", orders, tmp_path / "a.xls", code=2)
    assert ".parquet" in headrace.error
    headrace("export", orders, tmp_path / "a.csv", "--since", "soon", code=2)
    assert "'soon' is not a time" in headrace.error
    headrace("export", orders, tmp_path / "no" / "a.csv", code=3)
    assert f"{tmp_path / 'no'}: no such" in headrace.error
    headrace("export", orders, tmp_path / "a.csv", "--nkey", tmp_path / "seed", code=5)
    (tmp_path / "a.csv").write_text("mine")
    headrace("export", orders, tmp_path / "a.csv", code=2)
    assert "--force" in headrace.error
    assert (tmp_path / "a.csv").read_text() == "mine"
    assert [each.name for each in tmp_path.iterdir() if each.name != "config"] == ["a.csv"]


def test_a_missing_package_names_its_extra(
    headrace: Headrace, orders: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.extras.find_spec", lambda name: None)
    headrace("export", orders, tmp_path / "a.csv", code=1)
    assert "pip install 'headrace[read]'" in headrace.error


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_export_leaves_no_half_file(
    headrace: Headrace, orders: str, tmp_path: Path, end: signal.Signals
) -> None:
    """The export is stopped while it writes: its writer waits for a file that never comes."""
    code = (
        "import pathlib, sys, time\n"
        "from headrace.cli import main, row_files\n"
        "write = row_files.JsonWriter.write\n"
        "def stop(self, batch):\n"
        "    write(self, batch)\n"
        "    self._file.flush()\n"
        "    pathlib.Path(sys.argv[1], 'writing').touch()\n"
        "    while True: time.sleep(0.01)\n"
        "row_files.JsonWriter.write = stop\n"
        "sys.exit(main(['export', sys.argv[2], sys.argv[1] + '/rows.jsonl', '--force']))\n"
    )
    (tmp_path / "rows.jsonl").write_text("the older file")
    environment = {**os.environ, "HEADRACE_URL": headrace.url}
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), orders], env=environment)
    deadline = time.monotonic() + TIMEOUT_S
    while not (tmp_path / "writing").exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(end)
    assert process.wait(TIMEOUT_S) == (130 if end == signal.SIGINT else -signal.SIGKILL)
    assert (tmp_path / "rows.jsonl").read_text() == "the older file"
    parts = list(tmp_path.glob(".rows.jsonl.*.part"))
    assert len(parts) == (0 if end == signal.SIGINT else 1)


def test_credentials_reach_the_reader(server: Server, headrace: Headrace, name: str, tmp_path: Path) -> None:
    with Server(server.kind, Setup(config='authorization { user: ann, password: "secret" }')) as other:
        login = ("--server", other.url, "--user", "ann", "--password", "secret")
        headrace("stream", "add", name, "--subjects", name, *login)
        headrace("pub", name, "x", "-J", *login)
        result = headrace.json("export", name, tmp_path / "rows.csv", *login)
        assert result["messages"] == 1
        rows = headrace.json("sql", f"select count(*) as n from {name}", *login)
        assert rows == [{"n": 1}]
        headrace("export", name, tmp_path / "no.csv", *login[:-1], "wrong", code=5)
