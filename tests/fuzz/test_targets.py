"""Runs every fuzz target with its share of half a million inputs; `make fuzz` continues after these seeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .target import run
from .targets import TARGETS

INPUTS = 500_000
BATCH = 500
#: The inputs of a target are divided into this many parts, so that two processes share them.
PARTS = 4


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", TARGETS)
def test_only_what_is_documented_happens(
    name: str, part: int, record_property: Callable[[str, int], None]
) -> None:
    start, share = TARGETS[name]
    batches = round(INPUTS * share / BATCH)
    fed = sum(run(name, start, seed, BATCH) for seed in range(part, batches, PARTS))
    record_property("count: fuzzed inputs", fed)
    assert fed


def test_the_parts_are_a_whole() -> None:
    assert abs(sum(share for _, share in TARGETS.values()) - 1) < 1e-9
