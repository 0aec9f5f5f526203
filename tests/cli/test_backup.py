"""`headrace stream backup` and `restore` on both servers."""

from pathlib import Path

import pytest

from cli.conftest import Headrace
from conformance.servers import KINDS, Server


@pytest.fixture
def backed_up(headrace: Headrace, stream: str, tmp_path: Path) -> Path:
    """A folder with a backup of the stream: 300 messages and a consumer at 2."""
    for _ in range(3):
        headrace("batch", "--subject", f"{stream}.1", stdin=b"x" * 1500 + b"\n" + b"y\n" * 99)
    headrace("consumer", "add", stream, "w")
    headrace("consumer", "next", stream, "w", "--count", 2)
    headrace("stream", "backup", stream, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_stream_comes_back(headrace: Headrace, stream: str, backed_up: Path) -> None:
    assert sorted(file.name for file in backed_up.iterdir()) == ["backup.json", "stream.tar.s2"]
    headrace("stream", "backup", stream, backed_up, code=4)
    headrace("stream", "restore", backed_up, code=1)
    headrace("stream", "rm", stream, "-f")
    assert headrace.json("stream", "restore", backed_up) == {"stream": stream, "messages": 300}
    assert headrace("consumer", "next", stream, "w", "--raw") == "y\n"
    assert headrace.json("stream", "get", stream, 300)["payload"] == "y"


def test_what_is_no_backup(headrace: Headrace, tmp_path: Path) -> None:
    headrace("stream", "restore", tmp_path, code=3)
    assert "does not contain a backup" in headrace.error


def test_a_damaged_backup_is_refused(headrace: Headrace, stream: str, backed_up: Path) -> None:
    headrace("stream", "rm", stream, "-f")
    content = backed_up / "stream.tar.s2"
    content.write_bytes(content.read_bytes()[:-200])
    headrace("stream", "restore", backed_up, code=1)
    headrace("stream", "add", stream, "--subjects", f"{stream}.>")


@pytest.mark.parametrize(("origin", "target"), [KINDS, KINDS[::-1]])
def test_a_backup_moves_to_the_other_kind_of_server(
    origin: str,
    target: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    with Server(origin) as old, Server(target) as new:
        headrace = Headrace(old.url, capsys, monkeypatch)
        headrace("stream", "add", "MOVED", "--subjects", "moved.>")
        headrace("pub", "moved.1", "first", "-J", "-H", "A:b")
        headrace("pub", "moved.2", "second", "-J")
        headrace("stream", "backup", "MOVED", tmp_path / "copy")
        headrace.url = new.url
        assert headrace.json("stream", "restore", tmp_path / "copy")["messages"] == 2
        got = headrace.json("stream", "get", "MOVED", 1)
        assert (got["subject"], got["payload"], got["headers"]) == ("moved.1", "first", {"A": "b"})
