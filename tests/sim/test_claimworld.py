"""Worlds of claims by seed: producers, consumers, collectors, bad days of an object store, crashes; judged by the ledger."""

from collections.abc import Callable

import pytest

from support.digests import digests

from .claimworlds import run

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


@pytest.mark.parametrize("seed", [2, 7])
def test_a_seed_decides_everything(seed: int) -> None:
    """Also under another order of hashes, which differs from process to process."""
    assert digests("sim.claimworlds", seed) == {run(seed)}
