"""A few rounds of `bench/move_kills.py`: a process is killed in each move, and nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[2] / "bench" / "move_kills.py"
ROUNDS = 3
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(960)]


def test_killed_moves_lose_nothing(tmp_path: Path) -> None:
    out = tmp_path / "rounds.jsonl"
    command = [sys.executable, str(PROGRAM), "--rounds", str(ROUNDS), "--seed", "2", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    rounds = [json.loads(line) for line in out.read_text().splitlines()]
    assert [each["to"] for each in rounds] == ["cluster", "headrace", "cluster"]
    assert all(each["acked"] for each in rounds)
