"""The command line in pipes and scripts: real processes without a terminal."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from cli.conftest import Headrace
from conformance.servers import KINDS, Server, Setup
from headrace.cli import main

TIMEOUT_S = 120.0
HEADRACE = f"{shlex.quote(sys.executable)} -m headrace"


def shell(script: str, url: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a bash script in which `headrace` is the command."""
    return subprocess.run(
        ["bash", "-c", f'headrace() {{ {HEADRACE} "$@"; }}\n{script}'],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "HEADRACE_URL": url, **variables},
        check=False,
    )


def test_a_closed_pipe_is_silent(headrace: Headrace, stream: str) -> None:
    headrace("pub", f"{stream}.1", "x" * 10_000, "--count", 200)
    headrace("consumer", "add", stream, "w", "--ack", "none")
    script = f"headrace consumer next {stream} w --count 200 | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = shell(script, headrace.url)
    assert done.stderr == ""
    assert done.stdout == f"[{stream}.1] sequence 1 delivery 1\n141\n"


def test_commands_make_a_pipeline(headrace: Headrace, stream: str) -> None:
    script = f"""set -e -o pipefail
    seq 1 3 | headrace batch --subject {stream}.n >/dev/null
    headrace consumer add {stream} w >/dev/null
    headrace consumer next {stream} w --count 3 --raw | headrace batch --subject {stream}.copy --json
    """
    done = shell(script, headrace.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["last_seq"] == 6


def test_tables_are_plain_columns(headrace: Headrace, stream: str) -> None:
    done = shell("headrace stream ls", headrace.url, COLUMNS="40")
    first, *rows = done.stdout.splitlines()
    assert first.split()[:3] == ["NAME", "SUBJECTS", "STORAGE"]
    assert any(row.split()[:2] == [stream, f"{stream}.>"] for row in rows)
    assert "\x1b" not in done.stdout


@contextlib.contextmanager
def begin(words: Sequence[str], url: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command; end it when the test ends, also if it failed."""
    with subprocess.Popen(
        [sys.executable, "-m", "headrace", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HEADRACE_URL": url},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_an_interrupt_ends_with_130(headrace: Headrace, name: str) -> None:
    with begin(["sub", name, "--json"], headrace.url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "Subscribed" in process.stderr.readline()
        headrace("pub", name, "hello", "-H", "A:b")
        assert json.loads(process.stdout.readline()) == {
            "subject": name,
            "headers": {"A": "b"},
            "payload": "hello",
        }
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, said) == (130, "")


def test_requests_are_answered_by_a_command(headrace: Headrace, name: str) -> None:
    words = ["reply", name, "--command", "tr a-z A-Z", "--count", "1"]
    with begin(words, headrace.url) as process:
        assert process.stderr is not None
        assert "Replying" in process.stderr.readline()
        assert headrace("req", name, "water; rm -rf /", "--raw") == "WATER; RM -RF /\n"
        assert process.wait(TIMEOUT_S) == 0
        process.communicate()


def complete(words: str, number: int, url: str) -> list[str]:
    variables = {"_HEADRACE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)}
    return shell("headrace", url, **variables).stdout.split()


def test_the_shell_completes(headrace: Headrace, stream: str) -> None:
    assert complete("headrace str", 1, headrace.url) == ["stream"]
    assert complete("headrace stream se", 2, headrace.url) == ["seal"]
    assert stream in complete("headrace stream info ", 3, headrace.url)
    assert complete("headrace stream info ", 3, "nats://127.0.0.1:1") == []


@pytest.mark.parametrize("kind", KINDS)
def test_listening_survives_the_server(kind: str, name: str) -> None:
    with (
        Server(kind, Setup(jetstream=False)) as server,
        begin(["sub", name, "--count", "1"], server.url) as process,
    ):
        assert process.stderr is not None
        assert "Subscribed" in process.stderr.readline()
        server.restart(crash=True)
        assert "lost" in process.stderr.readline()
        assert "reconnected" in process.stderr.readline()
        assert main(["pub", name, "still here", "--server", server.url]) == 0
        shown, _ = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, shown) == (0, f"[{name}]\nstill here\n")
