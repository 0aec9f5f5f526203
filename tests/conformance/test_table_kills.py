"""Workers of tables that are killed: afterwards each message is in the table once. `make table-kills` does more of it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.client import Client
from conformance.servers import Server
from headrace.tables.config import save_tables
from support.tables import make_table, read_seqs

KILLS = 5
#: Each run has at least the first number of steps, and some have the second.
STEPS_MIN, STEPS_MAX = 8, 40


@pytest.mark.slow
def test_a_worker_that_is_killed_anywhere_writes_each_message_once(
    server: Server, client: Client, name: str, make_stream: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    seed = int(os.environ.get("TABLE_KILLS_SEED", random.randrange(1 << 30)))
    print(f"replay with TABLE_KILLS_SEED={seed}")
    chance = random.Random(seed)
    make_stream(allow_direct=True)
    _, config = make_table(tmp_path, name=name)
    path = tmp_path / "tables.yaml"
    save_tables(path, {name: config})
    published = killed = 0
    for round_number in range(KILLS + 1):
        for _ in range(20):
            client.store(f"{name}.x", b"payload")
        published += 20
        most = STEPS_MIN if round_number == 0 else STEPS_MAX  # at least the first one is killed
        step = chance.randint(1, most) if round_number < KILLS else 0
        killed += run_victim(path, name, server.url, step)
        assert read_seqs(config) == sorted(set(read_seqs(config)))
    assert read_seqs(config) == list(range(1, published + 1))
    assert killed


def run_victim(path: Path, name: str, url: str, step: int) -> bool:
    """Run a worker; return whether it was killed."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "support.table_victim", str(path), name, url, str(step)],
        cwd=root / "tests",
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root / "tests")])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode != 0
