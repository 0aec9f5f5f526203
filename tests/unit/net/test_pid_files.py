"""The files with which other programs find a server."""

import json
import os
from pathlib import Path

import pytest

from headrace.config.options import OptionsError, ServerOptions
from headrace.net.pid_files import PidAndPortsFiles


def test_files_appear_and_go(tmp_path: Path) -> None:
    presence = PidAndPortsFiles(ServerOptions(pid_file=str(tmp_path / "pid"), ports_file_dir=str(tmp_path)))
    presence.write(nats=["nats://127.0.0.1:1"], monitoring=[])
    ports = tmp_path / f"nats-server_{os.getpid()}.ports"
    assert (tmp_path / "pid").read_text() == str(os.getpid())
    assert json.loads(ports.read_text()) == {
        "nats": ["nats://127.0.0.1:1"],
        "monitoring": [],
        "cluster": [],
        "websocket": [],
    }
    presence.remove()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    PidAndPortsFiles(ServerOptions()).write(nats=[], monitoring=[])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    presence = PidAndPortsFiles(ServerOptions(pid_file=str(tmp_path / "missing" / "pid")))
    with pytest.raises(OptionsError, match="missing"):
        presence.write(nats=[], monitoring=[])
