"""Runs the tests of the store on the pure core, in another process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(bool(os.environ.get("HEADRACE_PURE")), reason="already running on the pure kernel")
def test_the_log_behaves_the_same_without_a_compiler() -> None:
    environment = {**os.environ, "HEADRACE_PURE": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:xdist",
        str(HERE / "io/test_disk.py"),
        str(HERE / "log/test_log.py"),
        str(HERE / "test_store.py"),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:]
