"""A sample of `make table-kills`: workers, the broker, and SeaweedFS as object store and catalog are killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "bench" / "table_kills.py"


@pytest.mark.slow
@pytest.mark.timeout(960)
def test_each_message_is_in_the_table_once_while_everything_is_killed(tmp_path: Path) -> None:
    """Seed 3 kills all parts in ten rounds, among them a rewrite of the files and a rollback."""
    out = tmp_path / "rounds.jsonl"
    command = [
        sys.executable,
        str(PROGRAM),
        "--rounds",
        "10",
        "--seed",
        "3",
        "--plant",
        "rest",
        "--out",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    rounds = [json.loads(line) for line in out.read_text().splitlines()]
    assert {"step", "worker", "broker", "store", "rewrite", "rollback"} == {
        victim for each in rounds for victim in each["victims"]
    }
    assert rounds[-1]["rows"]
