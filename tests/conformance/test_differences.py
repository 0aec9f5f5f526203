"""Deliberate differences from nats-server: each reason is an entry of docs/reference/compatibility.md."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "reference" / "compatibility.md"
MARKS = ("ours_only", "single_server")


def _reasons() -> Iterator[str]:
    """Return the texts of all `ours_only(...)` and `single_server(...)` marks in the tests."""
    for file in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in MARKS:
                assert isinstance(node.args[0], ast.Constant), (
                    f"{file.name}: the reason has to be a literal text"
                )
                yield str(node.args[0].value)


def test_each_reason_is_documented() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert [reason for reason in _reasons() if reason not in page] == []


def _serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


@pytest.mark.ours_only("Without authentication the server listens on loopback only")
def test_other_addresses_need_authentication() -> None:
    refused = _serve("-a", "0.0.0.0", "-p", "-1")
    assert refused.returncode == 1
    assert "allow_insecure" in refused.stderr


@pytest.mark.ours_only("Cluster flags are rejected")
@pytest.mark.parametrize("flag", ["--cluster", "--routes", "--cluster_name"])
def test_cluster_flags_are_refused(flag: str) -> None:
    refused = _serve(flag, "nats://127.0.0.1:1")
    assert refused.returncode == 1
    assert "cluster" in refused.stderr


@pytest.mark.ours_only("An unknown flag is an error")
def test_an_unknown_flag_is_refused_by_name() -> None:
    refused = _serve("--wings", "2")
    assert refused.returncode == 2
    assert "-wings" in refused.stderr


@pytest.mark.ours_only("The version names both programs")
def test_version_names_headrace_and_nats_server() -> None:
    shown = _serve("--version")
    assert shown.returncode == 0
    assert shown.stdout.startswith("headrace ")
    assert "nats-server: v2.15.1" in shown.stdout
