"""Whole brokers by seed: clients, streams, consumers, batches, lifetimes and copies, with faults, judged by the ledger."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from headrace.sim.broker import SimBroker
from headrace.sim.disk import SimDisk

from .options import SIZES
from .worlds import run

PARTS = 10
SEEDS = 300


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(900)
def test_every_promise_holds_for_every_seed(
    part: int, record_property: Callable[[str, object], None]
) -> None:
    record_property("count: simulated brokers", len(range(part, SEEDS, PARTS)))
    for seed in range(part, SEEDS, PARTS):
        run(seed)


@pytest.mark.parametrize("seed", [1, 4])
def test_a_seed_decides_everything(seed: int) -> None:
    """Also under another order of hashes, which differs from process to process."""
    code = f"from sim.worlds import run; print(run({seed}))"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": hashing, "PYTHONPATH": "tests"},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hashing in ("1", "2")
    }
    assert digests == {run(seed) + "\n"}


def test_a_server_that_starts_on_a_full_disk_serves_as_soon_as_there_is_room() -> None:
    before = SimBroker(SimDisk(), SIZES[0])
    before.start()
    before.call("STREAM.CREATE.S", name="S", subjects=["s"])
    before.settle()
    disk = before.disk.kill()
    disk.capacity = disk.used() + SIZES[0].headroom_bytes - 1
    after = SimBroker(disk, SIZES[0], before.clock)
    after.start()
    after.advance(10**10)
    assert _published(after)["error"]["err_code"] == 10023
    disk.capacity = None
    assert _published(after)["seq"] == 1


def _published(broker: SimBroker) -> Any:
    number = broker.publish("s", b"x" * 30)
    broker.until(lambda: number in broker.answers)
    return broker.answers[number].json
