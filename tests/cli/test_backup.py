"""`headrace stream backup` and `restore` on servers that have the API."""

from pathlib import Path

import pytest

from cli.conftest import Headrace
from conformance.servers import OURS, Server
from headrace.cli import main


@pytest.fixture
def backed_up(headrace: Headrace, server: Server, stream: str, tmp_path: Path) -> Path:
    """A folder with the stream as it was with 300 messages and a consumer at 2."""
    for _ in range(3):
        headrace("batch", "--subject", f"{stream}.1", stdin=b"x" * 1500 + b"\n" + b"y\n" * 99)
    headrace("consumer", "add", stream, "w")
    headrace("consumer", "next", stream, "w", "--count", 2)
    words = ["stream", "backup", stream, str(tmp_path / "copy"), "--server", server.url, "--timeout", "2"]
    if main(words) == 6 and server.kind == OURS:
        pytest.skip("this broker has no snapshots yet")
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
    assert "holds no backup" in headrace.error


def test_a_damaged_backup_is_refused(headrace: Headrace, stream: str, backed_up: Path) -> None:
    headrace("stream", "rm", stream, "-f")
    content = backed_up / "stream.tar.s2"
    content.write_bytes(content.read_bytes()[:-200])
    headrace("stream", "restore", backed_up, code=1)
    headrace("stream", "add", stream, "--subjects", f"{stream}.>")
