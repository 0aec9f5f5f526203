"""The log, `headrace version`, /varz and a metric label show which core runs."""

import os
import subprocess
import sys

import pytest

from headrace import _native
from headrace._native import COMPILED, describe_core, find_missing_core
from headrace.net.logs import Logger
from headrace.server import Server


def test_it_says_what_was_loaded() -> None:
    assert (describe_core() == "pure Python") == (not COMPILED)


def test_a_module_without_its_compiled_form_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    if not COMPILED:
        pytest.skip("nothing is compiled here")
    monkeypatch.setattr(_native, "_missing", {"snappy"})
    assert describe_core() == "compiled without snappy"


def test_the_command_line_says_that_the_pure_core_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "version"],
        env={**os.environ, "HEADRACE_PURE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "core: pure Python" in done.stdout


async def test_the_server_warns_if_compiled_modules_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_PURE", raising=False)
    monkeypatch.setattr(_native, "_missing", set(_native._MODULES))
    assert [text for text in await read_warnings() if text.startswith("The core is pure Python")]
    monkeypatch.setenv("HEADRACE_PURE", "1")
    assert await read_warnings() == []


async def read_warnings() -> list[str]:
    """Start a server; return the warnings in its log."""
    lines: list[tuple[str, str]] = []
    async with Server(log=Logger(write=lambda level, text: lines.append((level, text)))):
        return [text for level, text in lines if level == "WRN"]


def test_there_is_no_warning_if_all_modules_are_compiled() -> None:
    if describe_core() != "compiled":
        pytest.skip("nothing is compiled here")
    assert find_missing_core() == ""
