"""kill -9 of a real writing process on real files: nothing acknowledged is lost."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

from headrace.sim.checkers.store_invariants import check_log
from headrace.storage import FileDisk, open_store

from .store_sizes import SMALL
from .store_writer import WallClock, payload_of

ROUNDS = 50
TESTS = Path(__file__).parent.parent


def write_and_kill(
    root: Path, seconds: float, env: dict[str, str] | None = None
) -> dict[str, tuple[int, int]]:
    """Run a writer and kill it; return what it reported as durable: last and first sequence."""
    child = subprocess.Popen(
        [sys.executable, "-m", "crash.store_writer", str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS), **(env or {})},
    )
    assert child.stdout is not None
    os.set_blocking(child.stdout.fileno(), True)
    told = child.stdout.readline()  # it runs: at least one frame is durable
    time.sleep(seconds)  # the random moment is the test; there is no condition to wait for
    child.send_signal(signal.SIGKILL)
    rest, errors = child.communicate(timeout=120)
    assert told, errors.decode()
    return parse_acked(told + rest)


def parse_acked(lines: bytes) -> dict[str, tuple[int, int]]:
    """Parse the complete lines of a writer: last and first sequence by stream."""
    acked: dict[str, tuple[int, int]] = {}
    for line in lines.decode().split("\n")[:-1]:
        name, last_seq, first_seq = line.split()
        acked[name] = int(last_seq), int(first_seq)
    return acked


def verify(root: Path, acked: dict[str, tuple[int, int]]) -> None:
    disk = FileDisk(root)
    store = open_store(disk, WallClock(), SMALL)
    try:
        assert not store.report().damage
        for name, (last_seq, first_seq) in acked.items():
            log = store.logs[name]
            assert log.last_seq >= last_seq
            assert log.first_seq >= first_seq
            assert log.messages == log.last_seq - log.first_seq + 1
            for seq in range(log.first_seq, log.last_seq + 1):
                found = log.get(seq)
                assert found is not None
                assert bytes(found[3]) == payload_of(name, seq), f"{name} {seq} is not what was written"
            check_log(log)
    finally:
        store.close()
        disk.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(5))
def test_nothing_acknowledged_is_lost_when_the_writer_is_killed(part: int, tmp_path: Path) -> None:
    rng = Random(f"kill {part}")
    last: dict[str, int] = {}
    for _ in range(ROUNDS // 5):
        acked = write_and_kill(tmp_path, rng.random() * 0.3)
        verify(tmp_path, acked)
        for name, (last_seq, _) in acked.items():
            assert last_seq >= last.get(name, 0), "sequences go on where they were"
            last[name] = last_seq
