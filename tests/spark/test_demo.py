"""The demo with all its steps, in a process of its own: it starts and stops a Spark session."""

import os
import subprocess
import sys

from headrace import demo
from spark.conftest import BRISK


def test_every_step_shows_its_result() -> None:
    command = [sys.executable, "-m", "headrace.demo", "--exit"]
    done = subprocess.run(command, env={**os.environ, **BRISK}, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for step in demo.STEPS:
        assert step.title in done.stdout
    assert "skipped" not in done.stdout
    assert "WARN" not in done.stderr
