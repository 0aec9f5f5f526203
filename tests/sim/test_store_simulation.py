"""Store simulations by seed: changes, crashes and recoveries in any order, compared with the model."""

from collections.abc import Callable

import pytest

from headrace.sim.checkers.store_invariants import Violation
from headrace.sim.store_simulation import StoreSimulation
from support.seed_digests import digests

from .store_sizes import SIZES

PARTS = 10
SEEDS = 300


def run(seed: int) -> str:
    sim = StoreSimulation(seed, SIZES[seed % len(SIZES)])
    try:
        return sim.run()
    except Exception as error:
        text = (
            f"{type(error).__name__}: {error}\n{sim}\nreplay: python -m tests.sim.run_store_simulation {seed}"
        )
        raise Violation(text) from error


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(600)
def test_every_promise_holds_for_every_seed(
    part: int, record_property: Callable[[str, object], None]
) -> None:
    record_property("count: simulated stores", len(range(part, SEEDS, PARTS)))
    for seed in range(part, SEEDS, PARTS):
        run(seed)


@pytest.mark.parametrize("seed", [503, 1410])
def test_every_promise_holds_for_seeds_that_once_failed(seed: int) -> None:
    """Seeds that found a bug: docs/explanation/campaigns.md."""
    run(seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_seed_decides_everything(seed: int) -> None:
    """The result does not depend on PYTHONHASHSEED either."""
    assert digests("sim.test_store_simulation", seed) == {run(seed)}


def test_a_simulation_prints_the_options_of_its_seed() -> None:
    sim = StoreSimulation(5, SIZES[0])
    assert str(sim).startswith("StoreSimulation(seed=5): events=")
    assert str(sim) == str(StoreSimulation(5, SIZES[0]))
