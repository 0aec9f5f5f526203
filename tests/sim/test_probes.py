"""Every probe in the source is hit by a few worlds, so no rare branch is out of their sight."""

import ast
from collections import Counter

import pytest

from .probed import calls, names, taken
from .worlds import run, run_store

#: Found by `python -m tests.sim.worlds --cover 700`: together they hit every probe, most of them twice.
WORLDS = [0, 50, 60, 160, 178, 180, 182, 190, 208, 276, 294, 354, 398, 439, 592]
STORES = [2, 14]
#: A change of the broker changes what happens in a seed. So much further is looked before a probe counts as out of reach.
FURTHER = range(700)


def test_a_probe_has_one_name_and_one_place() -> None:
    for place, call in calls():
        assert len(call.args) == 1, place
        assert isinstance(call.args[0], ast.Constant), f"{place}: a name in full"
    double = [name for name, count in Counter(names()).items() if count > 1]
    assert not double
    assert len(names()) >= 80


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_probe_is_hit() -> None:
    taken()
    for seed in STORES:
        run_store(seed)
    for seed in WORLDS:
        run(seed)
    hits = taken()
    for seed in FURTHER:
        if set(names()) <= set(hits):
            break
        run(seed)
        hits += taken()
    left = sorted(set(names()) - set(hits))
    assert not left, f"worlds never come to {left}: look for seeds that do, or let the worlds do more"
