"""The log, `headrace version`, /varz and a metric label show which core runs."""

import os
import subprocess
import sys

import pytest

from headrace import _native
from headrace._native import COMPILED, describe_core


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
