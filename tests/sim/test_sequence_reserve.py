"""A server with `ack: local` that is lost at any moment: a promotion uses none of the sequences that it has shown."""

from __future__ import annotations

import pytest

from .sequence_reserve_simulation import ReserveSimulation, run

SEEDS = 40


@pytest.mark.slow
def test_the_newest_group_reserves_all_that_was_shown() -> None:
    finished: list[ReserveSimulation] = [run(seed) for seed in range(SEEDS)]
    assert sum(each.waits for each in finished) > SEEDS
    assert sum(each.restarts for each in finished) > SEEDS
