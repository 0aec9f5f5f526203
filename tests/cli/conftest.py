"""Command-line tests run on both servers: one of each kind per module, commands mostly in this process."""

from __future__ import annotations

import io
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.servers import KINDS, Server
from headrace.cli import main

_numbers = itertools.count(1)
VARIABLES = ("URL", "CONTEXT", "USER", "PASSWORD", "TOKEN", "CREDS", "NKEY", "CA", "CERT", "KEY")


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with JetStream, shared by the tests of a module."""
    with Server(request.param) as running:
        yield running


@pytest.fixture
def name() -> str:
    """A name that no other test uses, for streams, buckets and first tokens of subjects."""
    return f"T{os.getpid()}n{next(_numbers)}"


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Isolate the test from the user's contexts and environment variables."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for variable in VARIABLES:
        monkeypatch.delenv(f"HEADRACE_{variable}", raising=False)
        monkeypatch.delenv(f"NATS_{variable}", raising=False)


class Headrace:
    """Runs commands in this process against one server."""

    def __init__(self, url: str, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.url = url
        self._capture = capture
        self._patch = patch
        self.error = ""

    def __call__(self, *words: object, code: int = 0, stdin: bytes = b"") -> str:
        """Run a command, check its exit code and return its output. `error` has what it wrote to stderr."""
        with self._patch.context() as patch:
            patch.setenv("HEADRACE_URL", self.url)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            ended = main([str(word) for word in words])
        shown = self._capture.readouterr()
        self.error = shown.err
        assert ended == code, f"{words} ended with {ended}: {shown.out}{shown.err}"
        assert "Traceback" not in shown.err
        return shown.out

    def json(self, *words: object, code: int = 0, stdin: bytes = b"") -> Any:
        return json.loads(self(*words, "--json", code=code, stdin=stdin))

    def lines(self, *words: object, code: int = 0, stdin: bytes = b"") -> list[Any]:
        shown = self(*words, "--json", code=code, stdin=stdin)
        return [json.loads(line) for line in shown.splitlines()]


@pytest.fixture
def headrace(server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Headrace:
    return Headrace(server.url, capsys, monkeypatch)


@pytest.fixture
def stream(headrace: Headrace, name: str) -> Iterator[str]:
    """A stream for one test that captures `name.>` and allows batches and message TTLs."""
    headrace("stream", "add", name, "--subjects", f"{name}.>", "--allow-atomic", "--allow-msg-ttl")
    yield name
    main(["stream", "rm", name, "--force", "--server", headrace.url])
