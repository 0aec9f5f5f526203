"""Commands that tests interrupt can be interrupted however the run was started, for example by `nohup make test &`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

NUMBERS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")


def test_a_child_ignores_none_of_these_signals() -> None:
    shown = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    (ignored,) = [int(line.split()[1], 16) for line in shown.splitlines() if line.startswith("SigIgn:")]
    assert not [number for number in NUMBERS if ignored & 1 << (number - 1)]


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "workers"])
def test_nor_does_it_in_a_run_that_was_started_with_them_ignored(workers: tuple[str, ...]) -> None:
    selected = f"{__file__}::{test_a_child_ignores_none_of_these_signals.__name__}"
    command = [sys.executable, "-m", "pytest", "-q", *workers, selected]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT HUP QUIT; exec "$@"', "sh", *command],
        cwd=Path(__file__).parents[2],
        env=kept,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
