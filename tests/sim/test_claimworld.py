"""Worlds of claims by seed: producers, consumers, collectors, bad days of an object store, crashes; judged by the ledger."""

from collections.abc import Callable

import pytest

from headrace.sim.claimworld import PARTS as FURTHER
from support.digests import digests

from .claimworlds import run, world

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


def test_the_worlds_of_every_run_have_all_parts_and_many_have_none() -> None:
    parts = [world(seed).options.parts for seed in range(SEEDS)]
    assert {name for chosen in parts for name in chosen} == set(FURTHER)
    assert parts.count(()) > SEEDS // 2


@pytest.mark.parametrize("seed", [2, 7, 26])
def test_a_seed_decides_everything(seed: int) -> None:
    """Also under another order of hashes, which differs from process to process."""
    assert digests("sim.claimworlds", seed) == {run(seed)}
