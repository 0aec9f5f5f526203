"""What a server says about a configuration that it cannot run with, and that it says no more than that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.servers import OURS, Server, Setup, nats_server_binary


def _command(kind: str, *arguments: str) -> list[str]:
    program = [sys.executable, "-m", "headrace", "serve"] if kind == OURS else [nats_server_binary()]
    return [*program, *arguments]


def _run(kind: str, *arguments: str) -> tuple[int, str]:
    result = subprocess.run(
        _command(kind, *arguments), capture_output=True, text=True, timeout=150, check=False
    )
    return result.returncode, result.stdout + result.stderr


@pytest.mark.parametrize("text", ["accounts { A {", "a: [1, 2", 'a: "x'])
def test_a_file_that_cannot_be_parsed(kind: str, tmp_path: Path, text: str) -> None:
    path = tmp_path / "server.conf"
    path.write_text(f"port: 4222\n{text}\n")
    code, output = _run(kind, "-t", "-c", str(path))
    assert code == 1
    assert "Parse error" in output


def test_a_store_directory_that_is_a_file(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("")
    code, output = _run(kind, "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(path))
    assert code == 1
    assert "Can't start JetStream: storage directory is not a directory" in output
    assert "Traceback" not in output


@pytest.mark.parametrize("scheme", ["leaf", "nats-leaf", "nats"])
def test_schemes_of_leafnode_remotes(kind: str, tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "server.conf"
    path.write_text(f'leafnodes {{ remotes: [{{url: "{scheme}://127.0.0.1:7422"}}] }}\n')
    assert _run(kind, "-t", "-c", str(path))[0] == 0


SECTIONS = [
    "cluster { name: c, port: -1 }",
    "gateway { name: g, port: -1 }",
    "server_name: m\njetstream {}\nmqtt { port: -1 }",
]


class TestSectionsOfClusters:
    @pytest.mark.ours_only("Sections about clusters, gateways and MQTT are rejected")
    @pytest.mark.parametrize("section", SECTIONS)
    def test_are_refused_by_a_single_server(self, kind: str, tmp_path: Path, section: str) -> None:
        path = tmp_path / "server.conf"
        path.write_text(section + "\n")
        for check in (["-t"], []):
            code, output = _run(kind, *check, "-a", "127.0.0.1", "-p", "-1", "-c", str(path))
            assert code == 1
            assert "standalone" in output

    @pytest.mark.ours_only("Sections about clusters, gateways and MQTT are rejected")
    @pytest.mark.parametrize("section", SECTIONS)
    def test_are_ignored_with_a_warning_if_it_may_run_alone(
        self, kind: str, tmp_path: Path, section: str
    ) -> None:
        path = tmp_path / "server.conf"
        path.write_text(section + "\n")
        assert _run(kind, "-t", "--standalone", "-c", str(path))[0] == 0
        with Server(kind, Setup(config=f"standalone: true\n{section}", jetstream=False)) as running:
            assert "has no effect" in running.log_text()


#: Runs the command and writes a dot when it begins to import the server; Python itself must have started by then.
ANNOUNCED_START = """
import os, sys
class Announce:
    def find_spec(self, name, path=None, target=None):
        if name == "headrace.cli.serve":
            os.write(1, b".")
sys.meta_path.insert(0, Announce())
from headrace.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_during_the_start_prints_no_traceback(
    kind: str, tmp_path: Path, number: signal.Signals
) -> None:
    """Sent at several moments of the start, the first before most of the program is imported."""
    command = _command(kind, "-a", "127.0.0.1", "-p", "-1", "-js", "-sd", str(tmp_path / "store"))
    if kind == OURS:
        command = [sys.executable, "-c", ANNOUNCED_START, *command[3:]]
    for delay_ms in (0, 20, 60, 150):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            if kind == OURS:
                os.read(process.stdout.fileno(), 1)
            try:
                process.wait(delay_ms / 1000)
            except subprocess.TimeoutExpired:
                process.send_signal(number)
            output = b"".join(process.communicate(timeout=150))
        assert b"Traceback" not in output, output.decode()
