"""Broker simulations by seed: clients, streams, consumers, batches, TTLs and mirrors, with faults, verified by checkers."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.sim.disk.sim_disk import SimDisk
from headrace.sim.sim_broker import SimBroker

from .run_simulations import digests, run
from .store_sizes import SIZES

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


def test_a_seed_decides_everything() -> None:
    """The result does not depend on PYTHONHASHSEED either."""
    seeds = (1, 3, 4)
    assert digests(seeds, hashing="1") == digests(seeds, hashing="2") == {seed: run(seed) for seed in seeds}


def test_a_server_that_starts_on_a_full_disk_serves_as_soon_as_there_is_room() -> None:
    before = SimBroker(SimDisk(), SIZES[0])
    before.start()
    before.call("STREAM.CREATE.S", name="S", subjects=["s"])
    before.run_until_idle()
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
    broker.run_until(lambda: number in broker.replies)
    return broker.replies[number].json
