"""Every probe in the source is hit by a few seeds, so the simulations reach every rare branch."""

import ast
from collections import Counter

import pytest

from .coverage_marks import calls, names, taken
from .run_keyed_simulation import run_keyed
from .run_simulations import run, run_store

#: Found by `python -m tests.sim.run_simulations --cover 700`: together they hit every probe, most of them twice.
SEEDS = [
    0,
    6,
    10,
    18,
    42,
    50,
    58,
    66,
    73,
    106,
    119,
    141,
    146,
    156,
    184,
    225,
    228,
    238,
    245,
    247,
    258,
    294,
    441,
    472,
    521,
    567,
    703,
    708,
    741,
    774,
    1985,
]
STORE_SEEDS = [2, 21]
KEYED_SEEDS = range(70)
#: A change of the broker changes what a seed does: try this many more seeds before a probe counts as unreachable.
FURTHER = range(700)


def test_a_coverage_mark_has_one_name_and_one_place() -> None:
    for place, call in calls():
        assert len(call.args) == 1, place
        assert isinstance(call.args[0], ast.Constant), f"{place}: the name must be a constant"
    double = [name for name, count in Counter(names()).items() if count > 1]
    assert not double
    assert len(names()) >= 80


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_coverage_mark_is_hit() -> None:
    taken()
    for seed in STORE_SEEDS:
        run_store(seed)
    for seed in KEYED_SEEDS:
        run_keyed(seed)
    for seed in SEEDS:
        run(seed)
    hits = taken()
    for seed in FURTHER:
        if set(names()) <= set(hits):
            break
        run(seed)
        hits += taken()
    left = sorted(set(names()) - set(hits))
    assert not left, f"no seed hits {left}: find seeds that do, or extend the simulation"
