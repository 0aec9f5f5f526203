"""Whole runs by seed: changes, crashes and recoveries in any order, checked against the model."""

from collections.abc import Callable

import pytest

from headrace.sim.checks import Violation
from headrace.sim.storeworld import StoreWorld
from support.digests import digests

from .options import SIZES

PARTS = 10
SEEDS = 300


def run(seed: int) -> str:
    world = StoreWorld(seed, SIZES[seed % len(SIZES)])
    try:
        return world.run()
    except Exception as error:
        text = f"{type(error).__name__}: {error}\n{world}\nreplay: python -m tests.sim.replay {seed}"
        raise Violation(text) from error


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(600)
def test_every_promise_holds_for_every_seed(
    part: int, record_property: Callable[[str, object], None]
) -> None:
    record_property("count: simulated worlds", len(range(part, SEEDS, PARTS)))
    for seed in range(part, SEEDS, PARTS):
        run(seed)


@pytest.mark.parametrize("seed", [503, 1410])
def test_what_was_found_is_not_found_again(seed: int) -> None:
    """Seeds beyond the first ones that found something: docs/reliability.md."""
    run(seed)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_seed_decides_everything(seed: int) -> None:
    """Also under another order of hashes, which differs from process to process."""
    assert digests("sim.test_storeworld", seed) == {run(seed)}


def test_the_options_of_a_seed_are_told() -> None:
    world = StoreWorld(5, SIZES[0])
    assert str(world).startswith("StoreWorld(5): events=")
    assert str(world) == str(StoreWorld(5, SIZES[0]))
