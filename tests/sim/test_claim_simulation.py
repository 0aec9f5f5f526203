"""Claim simulations: producers, consumers, collectors, object store faults and crashes, verified by the checker."""

from collections.abc import Callable

import pytest

from headrace.sim.claim_simulation import FEATURE_ACTORS as FURTHER
from support.seed_digests import digests

from .run_claim_simulations import make_simulation, run

PARTS = 4
SEEDS = 80


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(600)
def test_every_promise_holds_for_every_seed(
    part: int, record_property: Callable[[str, object], None]
) -> None:
    record_property("count: simulated claims", len(range(part, SEEDS, PARTS)))
    for seed in range(part, SEEDS, PARTS):
        run(seed)


def test_all_features_appear_among_the_seeds_and_many_seeds_have_none() -> None:
    parts = [make_simulation(seed).options.features for seed in range(SEEDS)]
    assert {name for chosen in parts for name in chosen} == set(FURTHER)
    assert parts.count(()) > SEEDS // 2


@pytest.mark.parametrize("seed", [2, 7, 26])
def test_a_seed_decides_everything(seed: int) -> None:
    """The result does not depend on PYTHONHASHSEED either."""
    assert digests("sim.run_claim_simulations", seed) == {run(seed)}
