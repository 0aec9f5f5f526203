"""Order per key and dead letters in simulated servers, by seed.

More seeds: `python -m tests.sim.run_keyed_simulation 0 5000`.
"""

from __future__ import annotations

import pytest

from support.mutation import in_child

from .keyed_mutants import MUTANTS
from .run_keyed_simulation import run_keyed

SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_order_per_key_and_dead_letters(seed: int) -> None:
    run_keyed(seed)


def test_a_seed_gives_the_same_run() -> None:
    one, other = run_keyed(3), run_keyed(3)
    assert one.trace == other.trace
    assert one.checker.deliveries


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_caught(name: str) -> None:
    caught = in_child(MUTANTS[name])
    assert caught.dead, f"{name}: {caught}"
